"""The report: what it takes from a result file, and what a real browser makes of it."""

import csv
import io
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cases import write_h5
from chromium import Browser, browser  # noqa: F401  (a fixture)
from messages import refused, refuses
from PIL import Image

from cassi import Record
from cassi.files import OutputError, write_cube
from cassi.looking.regions import Region, read_regions, spectrum_of, write_regions
from cassi.looking.report_data import ReportData, read_report
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
    generator = np.random.default_rng(8)
    path = tmp_path_factory.mktemp("result") / "result.h5"
    return write_cube(
        path,
        cube,
        wavelengths=WAVELENGTHS,
        history=[Record(k, 0.1 * k, 0.5**k, 0.3**k) for k in range(1, 9)],
        datasets={
            "truth": truth,
            "uncertainty": uncertainty,
            "measurement": generator.random((HEIGHT, WIDTH + 8), np.float32),
            "residual": generator.normal(0, 0.01, (HEIGHT, WIDTH + 8)).astype(np.float32),
        },
        attributes={
            "input_name": HOSTILE[0],
            "status": "converged",
            "unit": HOSTILE[3],
            "command_line": HOSTILE[1],
            HOSTILE[2]: HOSTILE[2],
            "parameters": {HOSTILE[2]: HOSTILE[1], "num_iters": 8},
            "choice": {
                "plan": "subspace",
                "stages": [[1, "total variation"], [3, "non-local (0.5)"]],
                "reasons": [HOSTILE[0], HOSTILE[1]],
                "held_out": [{HOSTILE[0]: HOSTILE[1], "error": 0.125}],
                "noise": {"sigma": float("nan"), "note": HOSTILE[3]},
            },
        },
    )


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


def test_read_report_takes_everything_from_the_file(result_file: Path, page: Path) -> None:
    data = read_report(result_file)
    cube, truth, uncertainty = scene()
    np.testing.assert_array_equal(data.cube[:, :, :], cube)
    np.testing.assert_array_equal(data.truth[1:3, 4:6, 7:9], truth[1:3, 4:6, 7:9])
    np.testing.assert_array_equal(data.uncertainty[:, 5:6, :], uncertainty[:, 5:6, :])
    np.testing.assert_array_equal(data.wavelengths, WAVELENGTHS)
    assert data.measurement.shape == data.residual.shape == (HEIGHT, WIDTH + 8)
    assert data.history[2] == Record(3, pytest.approx(0.3), 0.125, pytest.approx(0.027))
    assert (data.title, data.unit) == (HOSTILE[0], HOSTILE[3])
    assert data.parameters["num_iters"] == 8 and data.choice["plan"] == "subspace"
    assert data.provenance["status"] == "converged"
    assert '<th scope="row">from iteration 3</th><td>non-local (0.5)</td>' in page.read_text(encoding="utf-8")


def test_read_report_picks_the_frame_of_a_stack(tmp_path: Path) -> None:
    cubes = np.random.default_rng(0).random((3, 2, 4, 5), np.float32)
    snapshots = np.random.default_rng(1).random((3, 4, 6), np.float32)
    history = [Record(k, 0.1 * k, 0.5, 0.1 * frame) for frame in range(3) for k in range(1, 4 + frame)]
    path = write_cube(
        tmp_path / "stack.h5", cubes, history=history, datasets={"measurement": snapshots},
        attributes={"notes": ["seen", "so"], "choice": "none"},
    )  # fmt: skip
    data = read_report(path, frame=2)
    assert [record.iteration for record in data.history] == [1, 2, 3, 4, 5]
    assert {record.change for record in data.history} == {0.2}
    assert data.provenance["notes"] == ["seen", "so"]
    assert data.choice == {} and data.title == "stack.h5, frame 3 of 3"
    np.testing.assert_array_equal(data.cube[:, 1:3, :], cubes[2, :, 1:3])
    np.testing.assert_array_equal(data.measurement, snapshots[2])
    for frame in (3, -1):
        refused(read_report, path, frame=frame)


def test_read_report_refuses_what_is_no_result(tmp_path: Path) -> None:
    np.savez(tmp_path / "cube.npz", cube=np.ones((2, 3, 4)))
    refused(read_report, tmp_path / "cube.npz")
    write_h5(tmp_path / "other.h5", picture=np.ones((3, 4)))
    refused(read_report, tmp_path / "other.h5")
    # with its truth, as `cassi simulate` writes it
    write_h5(tmp_path / "m.h5", measurement=np.ones((3, 6)), mask=np.ones((3, 4)), cube=np.ones((3, 3, 4)))
    with refuses() as caught:
        read_report(tmp_path / "m.h5")
    assert caught.value.kind == "measurement"
    write_cube(tmp_path / "odd.h5", np.ones((2, 3, 4)), datasets={"truth": np.ones((2, 3, 5))})
    refused(read_report, tmp_path / "odd.h5")


@pytest.mark.parametrize(
    "parts",
    [
        {"cube": np.ones((2, 3, 4, 5))},
        {"uncertainty": np.ones((2, 3, 3))},
        {"residual": np.ones(5)},
        {"wavelengths": np.ones(3)},
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused(parts: dict) -> None:
    refused(ReportData, error=ValueError, **{"cube": np.ones((2, 3, 4))} | parts)


def test_write_report_leaves_nothing_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = ReportData(np.random.default_rng(0).random((3, 16, 16)))
    refused(write_report, tmp_path / "report.pdf", data, error=OutputError)
    path = write_report(tmp_path / "report.html", data)
    before = path.read_bytes()
    refused(write_report, path, data, error=OutputError)
    refused(write_report, tmp_path / "no folder" / "report.html", data, error=OutputError)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    refused(write_report, path, data, error=OutputError, overwrite=True)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_full_size_result_stays_below_10_megabytes(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    y, x = np.mgrid[0:256, 0:256] / 256
    smooth = [np.sin((3 + c / 9) * x * np.pi) * np.cos(5 * y + c / 5) + 1 for c in range(28)]
    truth = np.stack(smooth).astype(np.float32)
    cube = truth + generator.normal(0, 0.02, truth.shape).astype(np.float32)  # a noisy one: it packs badly
    snapshot = generator.random((256, 310), np.float32)
    data = ReportData(cube, np.linspace(450, 650, 28), truth, np.abs(cube - truth), snapshot, snapshot - 0.5)
    assert 2e6 < write_report(tmp_path / "report.html", data).stat().st_size < 9e6


def click_pixel(opened: Browser, plot: str, row: int, column: int, drag_to: tuple[int, int] | None = None) -> None:
    from selenium.webdriver import ActionChains

    element = opened.find(f"#plot-{plot}")
    opened.run("arguments[0].scrollIntoView({block: 'center'})", element)

    def offset(row: int, column: int) -> tuple[float, float]:
        size = element.rect
        return ((column + 0.5) / WIDTH - 0.5) * size["width"], ((row + 0.5) / HEIGHT - 0.5) * size["height"]

    actions = ActionChains(opened.driver, duration=50).move_to_element_with_offset(element, *offset(row, column))
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


def rounding(cube: np.ndarray, levels: int) -> float:
    """Half a step where each band is rounded to `levels` steps, and a little for float32 and seven printed digits."""
    return 0.501 * float((cube.max(axis=(1, 2)) - cube.min(axis=(1, 2))).max()) / levels + 1e-6


def test_a_click_draws_the_spectrum_of_that_pixel(opened: Browser) -> None:
    cube, truth, uncertainty = scene()
    click_pixel(opened, "picture", 3, 20)
    click_pixel(opened, "band", 17, 0)
    assert "row 3, column 20" in opened.text("#list li:nth-child(1)")
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
    assert "rows 6\u201315, columns 4\u201320" in opened.text("#list li")
    table = saved_table(opened)
    place = "rows 6 to 15 columns 4 to 20"
    np.testing.assert_allclose(table[f"{place} std of pixels"], cube[:, 6:16, 4:21].std(axis=(1, 2)), atol=1e-3)
    np.testing.assert_allclose(
        table[f"{place} mean of 170 px"], cube[:, 6:16, 4:21].mean(axis=(1, 2)), atol=rounding(cube, 4094)
    )
    np.testing.assert_allclose(table[f"{place} truth"], truth[:, 6:16, 4:21].mean(axis=(1, 2)), atol=1e-3)
    opened.find("#list button").click()
    assert opened.run("return document.querySelectorAll('#list li').length") == 0
    assert not opened.find("#save").is_enabled()


def saved(opened: Browser, button: str, pattern: str) -> Path:
    """The file that a button makes."""
    for old in opened.downloads.iterdir():
        old.unlink()
    opened.find(button).click()
    deadline = time.monotonic() + 10
    while not (done := list(opened.downloads.glob(pattern))):
        assert time.monotonic() < deadline, "no file came"
        time.sleep(0.05)
    return done[0]


def test_a_region_is_drawn_saved_and_loaded(opened: Browser, tmp_path: Path) -> None:
    """Corners are clicked; the file goes to Python and back, and all three agree on pixels and means."""
    from selenium.webdriver import ActionChains

    cube, truth, uncertainty = scene()
    opened.find("#draw").click()
    picture = opened.find("#plot-picture")
    for row, column in ((4.2, 3.2), (4.2, 25.8), (18.8, 8.2)):
        size = picture.rect
        x, y = (column / WIDTH - 0.5) * size["width"], (row / HEIGHT - 0.5) * size["height"]
        ActionChains(opened.driver, duration=20).move_to_element_with_offset(picture, x, y).click().perform()
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
    assert f"region 1, {found.num_pixels} px" in opened.text("#list")
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

    def limits(layer: str) -> list[float]:
        opened.run(
            "const one = document.getElementById('layer');"
            "one.value = arguments[0]; one.dispatchEvent(new Event('change'))",
            layer,
        )
        return [float(opened.text(f"#band-{end}")) for end in ("low", "high")]

    band = int(opened.run("return Number(document.getElementById('band').value)"))
    assert limits("error") == pytest.approx([-0.05, 0.05], abs=1e-3)
    assert limits("rms") == pytest.approx([0, 0.05], abs=1e-3)
    dot = (cube * truth).sum(0) / np.sqrt((cube**2).sum(0) * (truth**2).sum(0))
    assert limits("angle")[1] == pytest.approx(np.quantile(np.degrees(np.arccos(dot)), 0.998), rel=0.05)
    assert not opened.find("#band").is_enabled()
    assert limits("uncertainty")[1] == pytest.approx(uncertainty[band].max(), rel=0.03)
    assert limits("truth")[1] == pytest.approx(truth[band].max(), rel=0.03)
    assert limits("cube")[1] == pytest.approx(cube[band].max(), rel=0.03)
    assert (
        len(re.findall(r"[ML]", opened.run("return document.querySelector('#plot-psnr path').getAttribute('d')")))
        == BANDS
    )


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
    from selenium.webdriver import Keys

    slider = opened.find("#band")
    assert opened.text("#band-name") == "540.5 nm, 3 of 5"
    slider.send_keys(Keys.ARROW_RIGHT)
    opened.wait("document.getElementById('plot-band').dataset.band === '3'")
    assert opened.text("#band-name") == "600 nm, 4 of 5"
    assert slider.get_attribute("aria-valuetext") == "600 nm"
    # band 3 is bright on the left
    eventually(lambda: (b := brightness(opened, "band"))[:, :14].mean() > 150 > 80 > b[:, 18:].mean())
    slider.send_keys(Keys.ARROW_RIGHT)
    opened.wait("document.getElementById('plot-band').dataset.band === '4'")
    # band 4 at the top
    eventually(lambda: (b := brightness(opened, "band"))[:10].mean() > 150 > 80 > b[14:].mean())
    assert opened.find("#plot-spectra").get_attribute("data-here") == "650"
    color = brightness(opened, "picture")
    assert color[2:10, 2:14].mean() > color[14:, 18:].mean() + 60
    assert opened.complaints() == []


def test_the_keyboard_reaches_every_pixel(opened: Browser) -> None:
    from selenium.webdriver import Keys

    opened.driver.refresh()  # nothing has pointed at it
    opened.wait("document.documentElement.dataset.ready === 'yes'")
    opened.run("document.getElementById('clear').click()")
    picture = opened.find("#plot-picture")
    picture.send_keys(Keys.ARROW_DOWN)  # the cursor appears in the middle
    picture.send_keys(Keys.ARROW_DOWN, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    cube, *_ = scene()
    row, column = HEIGHT // 2 + 1, WIDTH // 2 - 2
    opened.wait(f"document.getElementById('under').textContent.startsWith('row {row}, column {column}: ')")
    picture.send_keys(Keys.ENTER)
    opened.wait("document.querySelectorAll('#list li').length === 1")
    drawn = saved_table(opened)[f"row {row} column {column}"]
    np.testing.assert_allclose(drawn, cube[:, row, column], atol=rounding(cube, 4094))
    for _ in range(5):
        picture.send_keys(Keys.SHIFT, Keys.ARROW_UP)
    opened.wait(f"document.getElementById('under').textContent.startsWith('row 0, column {column}: ')")
    picture.send_keys(Keys.ESCAPE)
    assert opened.text("#under") == ""


def test_hostile_text_stays_text(opened: Browser) -> None:
    assert opened.text("h1") == HOSTILE[0]
    assert opened.run("return document.title") == HOSTILE[0]
    assert opened.run("return window.owned") is None
    assert opened.run("return document.querySelectorAll('img, [onload], h1 *').length") == 0
    body = opened.run("return document.body.innerText")
    for text in HOSTILE[:3]:
        assert body.count(text) >= 2
    labels = "[...document.querySelectorAll('#plot-spectra .label')].map((one) => one.textContent)"
    assert opened.run(f"return {labels}") == ["wavelength [nm]", HOSTILE[3]]
    assert opened.complaints() == []


def test_the_pictures_zoom_together(opened: Browser) -> None:
    from selenium.webdriver import Keys

    opened.find("#plot-band").send_keys("+")
    sizes = "[...document.querySelectorAll('.scene')].map((one) => one.firstChild.offsetWidth / one.clientWidth)"
    assert opened.run(f"return {sizes}") == pytest.approx([1.5, 1.5], abs=0.01)
    click_pixel(opened, "picture", HEIGHT // 2, WIDTH // 2)
    row, column = map(int, re.findall(r"\d+", opened.text("#list .place")))
    assert abs(row - HEIGHT // 2) <= 1 and abs(column - WIDTH // 2) <= 1
    opened.find("#plot-band").send_keys("-", Keys.ESCAPE)
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


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"ok": False}, "The mask does not fit the measurement."),
        (  # pixels that are left out read anything
            {"measurement": np.diag([9e9, 1, 1, 1]), "residual": np.diag([0, 0.6, 0.6, 0.6])},
            "much of the snapshot unexplained (residual 60%)",
        ),
        ({"choice": {"held_out_error": 0.31}}, "held-out pixels: their error is 31%"),
        ({"provenance": {"imprint": 0.2}}, "the mask's pattern is left in the cube (imprint 0.20, good: below 0.12)"),
    ],
)
def test_what_speaks_against_a_result(more: dict, problem: str) -> None:
    assert problem in " ".join(ReportData(np.ones((2, 4, 5)), **more).problems())
    fine = {"measurement": np.ones((4, 5)), "residual": np.full((4, 5), 0.1), "choice": {"held_out_error": 0.29}}
    fine["provenance"] = {"imprint": 0.03}
    assert ReportData(np.ones((2, 4, 5)), **fine).problems() == []


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
    table = saved_table(browser)
    shown = cube if wavelengths is None else cube[::-1]
    assert table["band"] == ([1, 2, 3, 4, 5] if wavelengths is None else [5, 4, 3, 2, 1])
    np.testing.assert_allclose(
        table["row 3 column 20 [relative radiance]"], shown[:, 3, 20], atol=rounding(scene()[0], 4094)
    )
    assert browser.complaints() == []
