"""The page of a result: what a real browser makes of it."""

import csv
import io
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from chromium import Browser, browser  # noqa: F401  (a fixture)
from PIL import Image

from cassi import Record
from cassi.files import write_cube
from cassi.looking.regions import Region, read_regions, spectrum_of, write_regions
from cassi.looking.report_data import ReportData
from cassi.looking.report_page import write_report

HOSTILE = (
    "<img src=x onerror=\"window.owned='img'\">", "</script><script>window.owned='script'</script>",
    '"><svg onload="window.owned=\'svg\'">', "</script><!-- ${policy} $title \u2028 $$\\frac{1}{2}$$ '",
)  # fmt: skip
WAVELENGTHS = np.array([450.0, 500.0, 540.5, 600.0, 650.0])
BANDS, HEIGHT, WIDTH = 5, 24, 32
PATHS = "return [...document.querySelectorAll('#plot-spectra path.kept')].map((one) => one.getAttribute('d'))"


def scene() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cube, truth, uncertainty. Band 3 is bright on the left, band 4 at the top; the rest is noise."""
    cube = np.random.default_rng(7).uniform(0, 0.2, (BANDS, HEIGHT, WIDTH)).astype(np.float32)
    cube[3, :, : WIDTH // 2] += 1
    cube[4, : HEIGHT // 2] += 1
    return cube, cube + 0.05, (0.01 + 0.1 * cube).astype(np.float32)


@pytest.fixture(scope="module")
def result_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result whose every text is hostile."""
    cube, truth, uncertainty = scene()
    random = np.random.default_rng(8)
    datasets = {
        "truth": truth, "uncertainty": uncertainty, "measurement": random.random((HEIGHT, WIDTH + 8), np.float32),
        "residual": random.normal(0, 0.01, (HEIGHT, WIDTH + 8)).astype(np.float32),
    }  # fmt: skip
    choice = {
        "plan": "subspace", "stages": [[1, "total variation"], [3, "non-local (0.5)"]],
        "reasons": [HOSTILE[0], HOSTILE[1]], "held_out": [{HOSTILE[0]: HOSTILE[1], "error": 0.125}],
        "noise": {"sigma": float("nan"), "note": HOSTILE[3]},
    }  # fmt: skip
    attributes = {
        "input_name": HOSTILE[0], "status": "converged", "unit": HOSTILE[3], "command_line": HOSTILE[1],
        HOSTILE[2]: HOSTILE[2], "parameters": {HOSTILE[2]: HOSTILE[1], "num_iters": 8}, "choice": choice,
    }  # fmt: skip
    history = [Record(k, 0.1 * k, 0.5**k, 0.3**k) for k in range(1, 9)]
    path = tmp_path_factory.mktemp("result") / "result.h5"
    return write_cube(path, cube, wavelengths=WAVELENGTHS, history=history, datasets=datasets, attributes=attributes)


@pytest.fixture(scope="module")
def page(result_file: Path) -> Path:
    return write_report(result_file.with_name("report.html"), result_file)


@pytest.fixture
def opened(browser: Browser, page: Path) -> Browser:  # noqa: F811
    """The page of the result, with no spectrum chosen: opened once for the tests that follow one another."""
    if browser.driver.current_url != page.as_uri():
        browser.open(page.as_uri())
    browser.run("document.getElementById('clear').click()")
    return browser


def click_pixel(opened: Browser, plot: str, row: int, column: int, drag_to: tuple[int, int] | None = None) -> None:
    element = opened.find(f"#plot-{plot}")
    opened.run("arguments[0].scrollIntoView({block: 'center'})", element)

    def offset(row: int, column: int) -> tuple[float, float]:
        size = element.rect
        return ((column + 0.5) / WIDTH - 0.5) * size["width"], ((row + 0.5) / HEIGHT - 0.5) * size["height"]

    actions = opened.actions().move_to_element_with_offset(element, *offset(row, column))
    if drag_to is None:
        actions.click()
    else:
        actions.click_and_hold().move_to_element_with_offset(element, *offset(*drag_to)).release()
    places = len(opened.driver.find_elements("css selector", "#list li"))
    actions.perform()
    opened.wait(f"document.querySelectorAll('#list li').length === {places + 1}")


def saved_table(opened: Browser) -> dict[str, list[float]]:
    rows = list(csv.reader(io.StringIO(saved(opened, "#save", "*.csv").read_text())))
    return {name: [float(row[k]) for row in rows[1:]] for k, name in enumerate(rows[0])}


def listed(opened: Browser) -> list[str]:
    """Name and number of pixels of each spectrum that is kept."""
    each = (
        "[...document.querySelectorAll('#list div')].map((one) => [one.children[0].value, one.children[1].textContent])"
    )
    return [", ".join(filter(None, one)) for one in opened.run(f"return {each}")]


def test_every_spectrum_has_a_color_of_its_own(opened: Browser) -> None:
    for k in range(14):
        click_pixel(opened, "picture", 1 + k, 2 * k + 1)
    colors = opened.run("return [...document.querySelectorAll('#list b')].map((one) => one.style.background)")
    assert len(set(colors)) == 14
    assert opened.complaints() == []


def rounding(cube: np.ndarray, levels: int) -> float:
    """Half a step where each band is rounded to `levels` steps, and a little for float32 and seven printed digits."""
    return 0.501 * float((cube.max(axis=(1, 2)) - cube.min(axis=(1, 2))).max()) / levels + 1e-6


def test_a_click_draws_the_spectrum_of_that_pixel(opened: Browser) -> None:
    cube, truth, uncertainty = scene()
    click_pixel(opened, "picture", 3, 20)
    click_pixel(opened, "band", 17, 0)
    assert opened.run("return document.querySelector('#list .place').value") == "row 3, column 20"
    table = saved_table(opened)
    assert table["band"] == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(table["wavelength_nm"], WAVELENGTHS)
    for row, column in ((3, 20), (17, 0)):
        place = f"row {row} column {column}"
        np.testing.assert_allclose(table[place], cube[:, row, column], atol=rounding(cube, 4094))
        np.testing.assert_allclose(table[f"{place} truth"], truth[:, row, column], atol=rounding(truth, 4094))
        spread = uncertainty[:, row, column]
        np.testing.assert_allclose(table[f"{place} error bar"], spread, atol=rounding(uncertainty, 254))
    assert [len(re.findall(r"[ML]", d)) for d in opened.run(PATHS)] == [BANDS] * 2
    assert opened.complaints() == []


def test_a_dragged_box_gives_its_mean(opened: Browser) -> None:
    cube, truth, _ = scene()
    click_pixel(opened, "picture", 15, 20, drag_to=(6, 4))
    assert listed(opened)[0] == "rows 6\u201315, columns 4\u201320, 170 px"
    table, place = saved_table(opened), "rows 6 to 15 columns 4 to 20"
    box = np.s_[:, 6:16, 4:21]
    mean = cube[box].mean(axis=(1, 2))
    np.testing.assert_allclose(table[f"{place} mean of 170 px"], mean, atol=rounding(cube, 4094))
    np.testing.assert_allclose(table[f"{place} std of pixels"], cube[box].std(axis=(1, 2)), atol=1e-3)
    np.testing.assert_allclose(table[f"{place} truth"], truth[box].mean(axis=(1, 2)), atol=1e-3)
    opened.find("#list button").click()
    assert opened.run("return document.querySelectorAll('#list li').length") == 0
    assert not opened.find("#save").is_enabled()


def saved(opened: Browser, button: str, pattern: str) -> Path:
    """The file that a button makes."""
    for old in opened.downloads.iterdir():
        old.unlink()
    opened.find(button).click()
    deadline = time.monotonic() + 10
    while not (
        done := [file for file in opened.downloads.glob(pattern) if file.stat().st_size]
    ):  # at first it is empty
        assert time.monotonic() < deadline, "no file came"
        time.sleep(0.05)
    return done[0]


def test_a_region_is_drawn_saved_and_loaded(opened: Browser, tmp_path: Path) -> None:
    """Corners are clicked; the file goes to Python and back, and all three agree on pixels and means."""
    cube, truth, uncertainty = scene()
    opened.find("#draw").click()
    picture = opened.find("#plot-picture")
    for row, column in ((4.2, 3.2), (4.2, 25.8), (18.8, 8.2)):
        size = picture.rect
        x, y = (column / WIDTH - 0.5) * size["width"], (row / HEIGHT - 0.5) * size["height"]
        opened.actions(20).move_to_element_with_offset(picture, x, y).click().perform()
    assert opened.run("return document.querySelectorAll('#list li').length") == 0
    assert opened.text("#draw") == "Close region"
    opened.find("#draw").click()
    opened.wait("document.querySelectorAll('#plot-band .marks polygon').length === 2")
    (region,) = read_regions(saved(opened, "#export", "*.json"))
    np.testing.assert_allclose(region.corners, [(4.2, 3.2), (4.2, 25.8), (18.8, 8.2)], atol=0.1)
    found = spectrum_of(ReportData(cube, truth=truth, uncertainty=uncertainty), region)
    table, place = saved_table(opened), "region 1"
    for what, values in ((f"mean of {found.num_pixels} px", found.mean), ("std of pixels", found.std)):
        np.testing.assert_allclose(table[f"{place} {what}"], values, atol=rounding(cube, 4094))
    np.testing.assert_allclose(table[f"{place} error bar"], found.error, atol=rounding(uncertainty, 254))
    opened.find("#clear").click()
    write_regions(tmp_path / "mine.json", [region, Region.at("3,20,3")])
    opened.find("#import").send_keys(str(tmp_path / "mine.json"))
    opened.wait("document.querySelectorAll('#list li').length === 2")
    again = saved_table(opened)
    assert again[f"{place} mean of {found.num_pixels} px"] == table[f"{place} mean of {found.num_pixels} px"]
    assert listed(opened)[0] == f"region 1, {found.num_pixels} px"
    named = "one.value = 'my leaf'; one.dispatchEvent(new Event('change'))"
    opened.run(f"const one = document.querySelector('#list .place'); {named}")
    assert f"my leaf mean of {found.num_pixels} px" in saved_table(opened), "the name goes to the table"
    assert read_regions(saved(opened, "#export", "*.json"))[0].name == "my leaf", "and to the regions"
    assert opened.complaints() == []
    (tmp_path / "bad.json").write_text('{"regions": [{"corners": [[1, 2], ["a", 3], [4, 5]]}]}')
    opened.find("#import").send_keys(str(tmp_path / "bad.json"))
    opened.wait("!document.getElementById('trouble').hidden")
    assert "corners must be [row, column]" in opened.text("#trouble")
    opened.driver.refresh()
    opened.wait("document.documentElement.dataset.ready === 'yes'")


def test_the_band_shows_truth_error_and_error_bar(opened: Browser) -> None:
    """The cube is 0.05 below its truth everywhere; the angle between both follows from the spectra."""
    cube, truth, uncertainty = scene()
    options = opened.run("return [...document.querySelectorAll('#layer option')].map((one) => one.value)")
    assert options == ["cube", "truth", "error", "rms", "angle", "uncertainty"]

    change = "const one = document.getElementById('layer'); one.value = arguments[0];"
    change += "one.dispatchEvent(new Event('change'))"

    def limits(layer: str) -> list[float]:
        opened.run(change, layer)
        return [float(opened.text(f"#band-{end}")) for end in ("low", "high")]

    band = int(opened.run("return Number(document.getElementById('band').value)"))
    assert limits("error") == pytest.approx([-0.05, 0.05], abs=1e-3)
    assert limits("rms") == pytest.approx([0, 0.05], abs=1e-3)
    dot = (cube * truth).sum(0) / np.sqrt((cube**2).sum(0) * (truth**2).sum(0))
    assert limits("angle")[1] == pytest.approx(np.quantile(np.degrees(np.arccos(dot)), 0.998), rel=0.05)
    assert not opened.find("#band").is_enabled()
    for layer, values in (("uncertainty", uncertainty), ("truth", truth), ("cube", cube)):
        assert limits(layer)[1] == pytest.approx(values[band].max(), rel=0.03)
    curve = opened.run("return document.querySelector('#plot-psnr path').getAttribute('d')")
    assert len(re.findall(r"[ML]", curve)) == BANDS


def test_what_is_too_dark_to_tell_is_grey_and_amber(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    """The error bars of the upper half of band 2 are larger than its light."""
    cube, _, uncertainty = scene()
    cube[2] = np.linspace(0.2, 0.5, WIDTH)
    uncertainty[2, : HEIGHT // 2] = 0.8
    browser.open(write_report(tmp_path / "doubt.html", ReportData(cube, WAVELENGTHS, uncertainty=uncertainty)).as_uri())
    browser.run("const one = document.getElementById('band');one.value = 2;one.dispatchEvent(new Event('input'));")
    pixels = (
        "const one = document.querySelector('#plot-band canvas');"
        "return [2, one.height - 3].map((row) => [...one.getContext('2d').getImageData(one.width - 9, row, 1, 1).data])"
    )
    above, below = browser.run(pixels)
    assert above[0] > above[1] > above[2] and below[0] == below[1] == below[2]
    grey = "return [...document.querySelectorAll('#plot-spectra path.doubtful')].filter((one) => one.getAttribute('d'))"
    assert browser.run(grey + ".length") >= 1


def eventually(what: Callable[[], bool], seconds: float = 10) -> None:
    """Drawing takes a moment: look until it is there."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "never came on the screen"
        time.sleep(0.1)


def brightness(opened: Browser, plot: str) -> np.ndarray:
    """What is on the screen, as one number a pixel of the scene."""
    opened.run("arguments[0].scrollIntoView({block: 'center'})", opened.find(f"#plot-{plot}"))
    picture = Image.open(io.BytesIO(opened.find(f"#plot-{plot}").screenshot_as_png)).convert("L")
    return np.asarray(picture.resize((WIDTH, HEIGHT), Image.Resampling.BOX), dtype=float)


def test_the_slider_moves_the_band(opened: Browser) -> None:
    slider = opened.find("#band")
    assert opened.text("#band-name") == "540.5 nm, 3 of 5"
    slider.send_keys(opened.keys.ARROW_RIGHT)
    opened.wait("document.getElementById('plot-band').dataset.band === '3'")
    assert opened.text("#band-name") == "600 nm, 4 of 5"
    assert slider.get_attribute("aria-valuetext") == "600 nm"
    # band 3 is bright on the left
    eventually(lambda: (b := brightness(opened, "band"))[:, :14].mean() > 150 > 80 > b[:, 18:].mean())
    slider.send_keys(opened.keys.ARROW_RIGHT)
    opened.wait("document.getElementById('plot-band').dataset.band === '4'")
    # band 4 at the top
    eventually(lambda: (b := brightness(opened, "band"))[:10].mean() > 150 > 80 > b[14:].mean())
    assert opened.find("#plot-spectra").get_attribute("data-here") == "650"
    color = brightness(opened, "picture")
    assert color[2:10, 2:14].mean() > color[14:, 18:].mean() + 60
    assert opened.complaints() == []


def test_the_keyboard_reaches_every_pixel(opened: Browser) -> None:
    keys = opened.keys
    opened.driver.refresh()  # nothing has pointed at it
    opened.wait("document.documentElement.dataset.ready === 'yes'")
    opened.run("document.getElementById('clear').click()")
    picture = opened.find("#plot-picture")
    picture.send_keys(keys.ARROW_DOWN)  # the cursor appears in the middle
    picture.send_keys(keys.ARROW_DOWN, keys.ARROW_LEFT, keys.ARROW_LEFT)
    cube, *_ = scene()
    row, column = HEIGHT // 2 + 1, WIDTH // 2 - 2
    opened.wait(f"document.getElementById('under').textContent.startsWith('row {row}, column {column}: ')")
    picture.send_keys(keys.ENTER)
    opened.wait("document.querySelectorAll('#list li').length === 1")
    drawn = saved_table(opened)[f"row {row} column {column}"]
    np.testing.assert_allclose(drawn, cube[:, row, column], atol=rounding(cube, 4094))
    for _ in range(5):
        picture.send_keys(keys.SHIFT, keys.ARROW_UP)
    opened.wait(f"document.getElementById('under').textContent.startsWith('row 0, column {column}: ')")
    picture.send_keys(keys.ESCAPE)
    assert opened.text("#under") == ""


def test_hostile_text_stays_text(opened: Browser, page: Path) -> None:
    assert '<th scope="row">from iteration 3</th><td>non-local (0.5)</td>' in page.read_text(encoding="utf-8")
    assert opened.text("h1") == opened.run("return document.title") == HOSTILE[0]
    assert opened.run("return window.owned") is None
    assert opened.run("return document.querySelectorAll('img, [onload], h1 *').length") == 0
    opened.run("for (const one of document.querySelectorAll('details')) one.open = true")
    body = opened.run("return document.body.innerText")
    for text in HOSTILE[:3]:
        assert body.count(text) >= 2
    labels = "[...document.querySelectorAll('#plot-spectra .label')].map((one) => one.textContent)"
    assert opened.run(f"return {labels}") == ["wavelength [nm]", HOSTILE[3]]
    assert opened.complaints() == []


def test_the_pictures_zoom_together(opened: Browser) -> None:
    opened.find("#plot-band").send_keys("+")
    sizes = "[...document.querySelectorAll('.scene')].map((one) => one.firstChild.offsetWidth / one.clientWidth)"
    assert opened.run(f"return {sizes}") == pytest.approx([1.5, 1.5], abs=0.01)
    click_pixel(opened, "picture", HEIGHT // 2, WIDTH // 2)
    row, column = map(int, re.findall(r"\d+", opened.run("return document.querySelector('#list .place').value")))
    assert abs(row - HEIGHT // 2) <= 1 and abs(column - WIDTH // 2) <= 1
    opened.find("#plot-band").send_keys("-", opened.keys.ESCAPE)
    assert opened.run(f"return {sizes}") == pytest.approx([1, 1], abs=0.01)
    opened.find("#plot-band").send_keys("+" * 20)
    assert opened.run(f"return {sizes}") == pytest.approx([WIDTH / 8] * 2, abs=0.01)  # 8 pixels are seen at least
    opened.find("#unzoom").click()
    assert opened.run(f"return {sizes}") == pytest.approx([1, 1], abs=0.01)
    assert not opened.find("#unzoom").is_displayed()


def test_the_page_asks_nothing_from_any_network(browser: Browser, page: Path) -> None:  # noqa: F811
    browser.open(page.as_uri())
    click_pixel(browser, "picture", 3, 20)
    assert [address for address in browser.requests() if not address.startswith(("blob:", "data:"))] == [page.as_uri()]
    # and the policy would not let it
    told = browser.driver.execute_async_script(
        "const done = arguments[0]; fetch('http://127.0.0.1:9/').then(() => done('fetched'), (e) => done(e.name))"
    )
    assert told == "TypeError"
    assert any("Content Security Policy" in message for message in browser.complaints())


def test_dark_mode_and_a_phone(opened: Browser) -> None:
    ask = opened.driver.execute_cdp_cmd
    color = "return getComputedStyle(document.querySelector('#plot-spectra .tick')).fill"
    paper = "return getComputedStyle(document.body).backgroundColor"
    seen = {}
    try:
        for scheme in ("light", "dark"):
            ask("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
            opened.wait(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
            seen[scheme] = [sum(map(int, re.findall(r"\d+", opened.run(what))[:3])) for what in (paper, color)]
        assert seen["light"][0] > 600 > 150 > seen["dark"][0] and seen["light"][1] < seen["dark"][1]
        ask("Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True})
        opened.driver.refresh()
        opened.wait("document.documentElement.dataset.ready === 'yes'")
        assert opened.run("return document.documentElement.scrollWidth") == 390  # nothing sticks out
        cards = opened.run("return [...document.querySelectorAll('.look > figure')].map((f) => f.offsetLeft)")
        assert len(set(cards)) == 1  # one column
        assert opened.complaints() == []
    finally:
        ask("Emulation.clearDeviceMetricsOverride", {})
        ask("Emulation.setEmulatedMedia", {"features": []})


def test_what_speaks_against_a_result_stands_in_a_red_box(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    cube, *_ = scene()
    path = write_cube(tmp_path / "bad.h5", cube, attributes={"verdict": f"wrong mask {HOSTILE[0]}", "ok": False})
    browser.open(write_report(tmp_path / "bad.html", path).as_uri())
    assert browser.text(".problem") == f"wrong mask {HOSTILE[0]}"
    edge = browser.run("return getComputedStyle(document.querySelector('.problem')).borderLeftColor")
    red, green, blue = map(int, re.findall(r"\d+", str(edge))[:3])
    assert red > 100 and red > 2 * green and red > 2 * blue
    browser.open(write_report(tmp_path / "good.html", ReportData(cube, verdict="the mask fits")).as_uri())
    assert browser.run("return document.querySelector('.problem')") is None
    assert "the mask fits" in browser.text("header")
    assert browser.complaints() == []


@pytest.mark.parametrize("wavelengths", [None, WAVELENGTHS[::-1]], ids=["unknown", "falling"])
def test_a_bare_cube_makes_a_page(browser: Browser, tmp_path: Path, wavelengths: object) -> None:  # noqa: F811
    """Nothing to compare with, a NaN; and bands in falling order are drawn by wavelength."""
    cube = scene()[0][::-1].copy()
    cube[0, 2, 3] = np.nan
    browser.open(write_report(tmp_path / "bare.html", ReportData(cube, wavelengths)).as_uri())
    browser.run("document.getElementById('clear').click()")
    assert browser.text("#band-name") == ("band 3, 3 of 5" if wavelengths is None else "540.5 nm, 3 of 5")
    assert browser.run("return document.querySelectorAll('section').length") == 0
    assert not browser.find("#trouble").is_displayed()
    click_pixel(browser, "picture", 3, 20)
    table, shown = saved_table(browser), cube if wavelengths is None else cube[::-1]
    assert table["band"] == ([1, 2, 3, 4, 5] if wavelengths is None else [5, 4, 3, 2, 1])
    found = table["row 3 column 20 [relative radiance]"]
    np.testing.assert_allclose(found, shown[:, 3, 20], atol=rounding(scene()[0], 4094))
    assert browser.complaints() == []
