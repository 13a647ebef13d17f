"""Figures: what they show is read back from the artists; text must not collide; nothing global changes."""

import os
import subprocess
import sys
import warnings
from itertools import combinations

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from messages import refused
from PIL import Image

from cassi.errors import OutputError
from cassi.looking import figures
from cassi.looking.color import band_colors
from cassi.looking.drawing import GREY
from cassi.looking.report_data import ReportData
from cassi.solvers.loop import Record

BANDS = np.linspace(450, 650, 8)
HISTORY = tuple(Record(k, 0.25 * k, 0.5**k, 0.3**k) for k in range(1, 13))


@pytest.fixture(scope="module")
def cube():
    rng = np.random.default_rng(0)
    row, column = np.mgrid[:40, :52] / 52
    phase = np.arange(8)[:, None, None]
    smooth = 0.4 + 0.3 * np.sin(4 * row + 0.5 * phase) * np.cos(3 * column - 0.3 * phase)
    return (smooth + 0.01 * rng.random((8, 40, 52))).astype(np.float32)


def visible_texts(figure):
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()  # places all, and paints nothing
    beyond = set()  # matplotlib keeps ticks beyond the ends of an axis and does not draw them
    for axes in figure.findobj(Axes):
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            slack = 1e-9 * (high - low)
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not (axes.axison and low - slack <= tick.get_loc() <= high + slack):
                    beyond |= {tick.label1, tick.label2}
    texts = figure.findobj(Text)
    found = [text for text in texts if text.get_visible() and text.get_text().strip() and text not in beyond]
    return [(text.get_text(), text.get_window_extent(renderer)) for text in found]


def assert_text_is_readable(figure):
    """No two texts overlap and none leaves the page."""
    texts = visible_texts(figure)
    assert texts
    page = figure.bbox
    for words, box in texts:
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= page.x1 + 1 and box.y1 <= page.y1 + 1
        assert inside, f"{words!r} leaves the page"
    for (words, a), (others, b) in combinations(texts, 2):
        width = min(a.x1, b.x1) - max(a.x0, b.x0)
        assert width <= 1 or (min(a.y1, b.y1) - max(a.y0, b.y0)) <= 1, f"{words!r} overlaps {others!r}"


def words(figure):
    """All text of a figure, without drawing it."""
    return " | ".join(text.get_text() for text in figure.findobj(Text) if text.get_text().strip())


def result(cube, wavelengths=None, **more):
    """A result with a snapshot, a residual and a history."""
    snapshot = np.pad(cube[0], ((0, 0), (0, 14)))
    parts = {"measurement": snapshot, "residual": 0.01 * (snapshot - 0.4), "history": HISTORY, "unit": "counts"}
    return ReportData(cube, wavelengths, **(parts | {"title": "scene01.h5"} | more))


SAME_WITHOUT_WAVELENGTHS = {"convergence", "warning", "residual", "uncertainty"}


def all_figures(cube, wavelengths):
    truth, wide = cube + 0.02, np.pad(cube[0] - 0.4, ((0, 0), (0, 14)))
    whole = result(cube, wavelengths, truth=truth, uncertainty=0 * cube + 0.1)
    bad = result(cube, wavelengths, ok=False, verdict="wrong mask", markers=[(6, "")])
    return {
        "bands": figures.bands(cube, wavelengths, unit="counts", title="a scene"),
        "srgb": figures.srgb(cube, wavelengths),
        "convergence": figures.convergence(HISTORY),
        "summary": figures.summary(whole, caption="gap-tv, 60 iterations\nresidual 0.01"),
        "warning": figures.summary(bad, caption="x"),
        "residual": figures.residual(wide, unit="counts"),
        "difference": figures.difference(cube, truth, wavelengths, unit="counts", title="scene01.h5"),
        "uncertainty": figures.uncertainty_map(0.1 * cube, unit="counts"),
    }


@pytest.mark.parametrize("wavelengths", [BANDS, None], ids=["wavelengths", "unknown"])
def test_every_figure_is_readable_and_leaves_no_trace(cube, wavelengths):
    before = dict(matplotlib.rcParams)
    for name, figure in all_figures(cube, wavelengths).items():
        assert isinstance(figure, Figure), name
        if wavelengths is not None or name not in SAME_WITHOUT_WAVELENGTHS:
            assert_text_is_readable(figure)
    assert dict(matplotlib.rcParams) == before


def test_the_settings_of_the_user_change_nothing(cube, tmp_path, monkeypatch):
    """TeX for all words, a cropped page, a dark style: the same pixels, in every format, and none is changed."""

    def written(folder):
        made = figures.figures_of(ReportData(cube, wavelengths=BANDS))
        page = figures.save_figures(made, folder)
        made["summary"].savefig(folder / "vector.svg", metadata={"Date": None})
        return [np.asarray(Image.open(path)) for path in page], (folder / "vector.svg").read_text()

    (tmp_path / "plain").mkdir()
    (tmp_path / "users").mkdir()
    monkeypatch.setenv("PATH", "")  # no TeX
    changed = {
        "text.usetex": True, "savefig.bbox": "tight", "image.origin": "lower", "svg.hashsalt": "x",
        "figure.facecolor": "black", "lines.marker": "o", "font.size": 30, "axes.grid": True, "savefig.dpi": 10,
    }  # fmt: skip
    with matplotlib.rc_context({"svg.hashsalt": "x"}):
        plain, vector = written(tmp_path / "plain")
    with matplotlib.rc_context(changed):
        users, users_vector = written(tmp_path / "users")
        assert matplotlib.rcParams["text.usetex"] and matplotlib.rcParams["font.size"] == 30
    assert all(np.array_equal(one, other) for one, other in zip(plain, users, strict=True))
    assert len(users_vector) == len(vector)


def test_a_backend_that_is_not_installed(tmp_path):
    """As the environment of a notebook's shell names it; a backend that is there is still the user's."""
    drawn = "cassi.looking.figures.srgb(numpy.ones((3, 8, 8)), numpy.array([450.0, 550, 650])).savefig('a.png')"
    for backend, kept, module, work in (
        ("of-no-one", "agg", "cassi.looking.figures", drawn), ("svg", "svg", "cassi.looking", "0"),
    ):  # fmt: skip
        code = (
            f"import {module}, numpy, matplotlib, os; {work};"
            "print(matplotlib.get_backend().lower(), os.environ['MPLBACKEND'])"
        )
        env = os.environ | {"MPLBACKEND": backend, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=env)
        assert done.stdout.split() == [kept, backend], done.stderr


@pytest.mark.parametrize("shape", [(3, 90, 20), (31, 16, 70), (1, 12, 12), (2, 1, 1)])
def test_odd_shapes_are_readable(shape):
    cube = np.random.default_rng(1).random(shape)
    wavelengths = 400 + 10.0 * np.arange(shape[0])
    for figure in (figures.bands(cube, wavelengths), figures.srgb(cube, wavelengths), figures.residual(cube[0])):
        assert_text_is_readable(figure)
    figures.summary(result(cube, wavelengths)).savefig("/dev/null", format="png", dpi=30)


def test_broken_values_still_give_figures(cube):
    broken = cube.copy()
    broken[:, 5:9, 5:9], broken[2, 0, 0] = np.nan, np.inf
    for figure in (
        figures.summary(result(broken, BANDS)), figures.bands(np.full_like(cube, np.nan), BANDS),
        figures.summary(result(0 * cube, BANDS)), figures.convergence([Record(1, 0.1, 0.0, np.nan)]),
        figures.difference(broken, cube, BANDS),
    ):  # fmt: skip
        FigureCanvasAgg(figure).draw()


def test_bands_name_what_they_show(cube):
    bright = cube.copy()
    bright[0, 0, 0] = 7.5
    shown = words(figures.bands(bright, BANDS, unit="counts"))
    assert "450 nm" in shown and "650 nm" in shown
    assert "8 of 8 bands, all on one scale" in shown and "counts" in shown
    assert f"≥ {np.percentile(bright, 99.5):.3g}" in shown and "≤" not in shown
    shown = words(figures.bands(np.concatenate([cube] * 4), None))
    assert [f"band {k} |" in shown for k in (1, 5, 32)] == [True, False, True] and "28 of 32 bands" in shown
    assert "450.5 nm" in words(figures.bands(cube[:2], [450.5, 451.5]))


def test_bands_are_grey():
    levels = np.array([0.01, 0.1, 1.0])
    picture = figures.bands(np.ones((3, 10, 10)) * levels[:, None, None], [460.0, 540.0, 640.0]).axes[0].images[0]
    mosaic = np.asarray(picture.get_array()) / 255
    tile = (mosaic.shape[1] + 1) // 3
    middles = [mosaic[-5, tile * k + 5, :3] for k in range(3)]
    assert all(np.ptp(color) < 1e-6 for color in middles)
    np.testing.assert_allclose([color[0] for color in middles], levels ** (1 / 2.2), atol=1 / 255)


def test_the_summary_shows_the_spectra_of_its_points(cube):
    truth = cube + 0.05
    figure = figures.summary(result(cube, BANDS[::-1], truth=truth, uncertainty=0 * cube + 0.1, unit="W"))
    panels = [axes for axes in figure.axes if axes.get_xlabel() == "wavelength [nm]"]
    assert len(panels) == 6 and panels[0].get_ylabel() == "W"
    for axes, (row, column) in zip(panels, figures.points_of(cube, truth, None), strict=True):
        estimate, true = [line for line in axes.lines if line.get_color() != GREY]
        np.testing.assert_allclose(estimate.get_xdata(), np.sort(BANDS))
        np.testing.assert_allclose(estimate.get_ydata(), cube[::-1, row, column])
        np.testing.assert_allclose(true.get_ydata(), truth[::-1, row, column])
        assert true.is_dashed()
        vertices = axes.collections[0].get_paths()[0].vertices
        assert np.ptp(vertices[np.isclose(vertices[:, 0], 450), 1]) == pytest.approx(0.2, rel=1e-4)
        a, b = cube[:, row, column].astype(float), truth[:, row, column].astype(float)
        angle = np.degrees(np.arccos(a @ b / np.linalg.norm(a) / np.linalg.norm(b)))
        assert axes.get_title(loc="left") == f"row {row}, column {column} · {angle:.1f}°"
    assert len({axes.get_ylim() for axes in panels}) == 1, "one axis for all"
    assert "± 1 standard deviation" in words(figure)


@pytest.mark.parametrize(("tinted", "color"), [(False, [0.977, 0.674, 0.351]), (True, [1, 1, 1])])
def test_what_is_too_dark_to_tell_has_another_color(tinted, color):
    """Of three bands of equal light the second has error bars of the same size above, of half of it below."""
    cube, sigma = np.full((3, 12, 12), 0.5), np.full((3, 12, 12), 0.2)
    sigma[1, :6] = 0.6
    shown = result(cube, [460.0, 540.0, 640.0], uncertainty=sigma)
    made = figures.figures_of(shown, look=figures.Look(tinted=tinted))
    mosaic = np.asarray(made["bands"].axes[0].images[0].get_array())[..., :3] / 255
    tile = (mosaic.shape[1] + 1) // 3
    light, dark = mosaic[-3, tile + 5], mosaic[-10, tile + 5]
    np.testing.assert_allclose(dark / dark.max(), np.array(color) / max(color), atol=0.01)
    assert (np.ptp(light) > 0.1) == tinted
    assert ("grey: the error bar" if tinted else "amber: the error bar") in words(made["bands"])
    for panel in [axes for axes in made["summary"].axes if axes.get_xlabel() == "wavelength [nm]"]:
        row = int(panel.get_title(loc="left").split()[1].rstrip(","))
        doubtful = [line.get_ydata() for line in panel.lines if line.get_color() == GREY]
        assert len(doubtful) == (row < 6)
        assert not doubtful or np.isfinite(doubtful[0]).tolist() == [False, True, False]
    assert "error bar" not in words(figures.bands(cube))


def test_one_point_shows_an_ordinary_error_of_the_worst():
    generator = np.random.default_rng(3)
    cube = generator.random((4, 1, 1)) * np.ones((4, 40, 40))
    error = np.zeros((4, 40, 40))
    error[:, 30:36, :] = 1.0  # more than a tenth of the rows ...
    error[:, 32, 17] = 5.0  # ... and one pixel that is far worse
    points = figures.choose_points(cube, error=error)
    assert len(set(points)) == 6 and sum(error[0, row, column] > 0 for row, column in points) >= 1
    assert (32, 17) not in points


def test_points_are_distinct_inside_and_the_same_each_time():
    rng = np.random.default_rng(2)
    colors = rng.random((6, 8))
    cube = np.zeros((8, 80, 120))
    for k in range(6):
        cube[:, 40 * (k // 3) : 40 * (k // 3) + 40, 40 * (k % 3) : 40 * (k % 3) + 40] = colors[k][:, None, None]
    noisy = cube * (1 + 0.3 * np.sin(np.arange(120) / 9)) + 0.01 * rng.standard_normal(cube.shape)
    points = figures.choose_points(noisy)
    assert points == figures.choose_points(torch.from_numpy(noisy))
    with warnings.catch_warnings(action="error"):  # float32 holds no squares of such
        for unit in (4095, 1e28, 1e-25):
            assert points == figures.choose_points((unit * noisy).astype(np.float32))
    assert len({(row // 40, column // 40) for row, column in points}) == 6, "one point in each color"
    assert points == sorted(points)
    assert all(min(row % 40, column % 40) >= 2 for row, column in points), "none on an edge"
    assert len(figures.choose_points(noisy, 20)) == 20
    assert len(set(figures.choose_points(np.ones((3, 2, 2)), 9))) == 4


def test_convergence_shows_the_history():
    figure = figures.convergence(HISTORY, markers=[(4, "non-local"), (9, "TV again")])
    (left,) = figure.axes
    residual, change, *markers = left.lines
    assert [line.get_xdata()[0] for line in markers] == [4, 9] and "TV again" in words(figure)
    assert "iteration: 4 non-local (1 s), 9 TV again (2.25 s), 12 end (3 s)" in words(figure)  # 0.25 s each
    np.testing.assert_allclose(residual.get_ydata(), [r.residual for r in HISTORY])
    np.testing.assert_allclose(change.get_ydata(), [r.change for r in HISTORY])
    assert left.get_yscale() == "log"
    assert "no iterations" in words(figures.convergence(()))
    figure.canvas.draw()
    assert not [label for label in figure.axes[0].get_yticklabels() if "$" in label.get_text()], "no formulas"
    start = [Record(1, 0.1, 1e-9, 0.5), *(Record(k, 0.1 * k, 0.1 / k, 0.5 / k) for k in range(2, 20))]
    assert figures.convergence(start).axes[0].get_ylim()[0] > 1e-4  # an exact start does not flatten the rest


def test_the_residual_is_shown_around_zero(cube):
    rest = np.random.default_rng(4).normal(0, 1, (60, 80))
    rest[5, 5] = -9
    figure = figures.residual(rest, unit="counts")
    low, high = figure.axes[0].images[0].get_clim()
    assert low == -high == pytest.approx(-np.percentile(np.abs(rest), 99.5))
    assert f"≤ {low:.3g}" in words(figure) and "counts" in words(figure)
    down, across = (np.mean(a * b) / np.mean(rest**2) for a, b in ((rest[1:], rest[:-1]), (rest[:, 1:], rest[:, :-1])))
    assert f"neighbors correlate {down:+.3f} down, {across:+.3f} across; by chance ±0.03" in words(figure)


def test_the_difference_shows_errors_and_decibels(cube):
    truth = np.clip(cube, 0, 1)
    other = truth.copy()
    other[2] += 0.1 * (truth[2] < 0.9)  # one band is off
    figure = figures.difference(other, truth, BANDS)
    maps = [axes for axes in figure.axes if axes.images]
    np.testing.assert_allclose(maps[0].images[0].get_array().max(), 0.1 / np.sqrt(8), rtol=1e-5)
    curve = next(axes for axes in figure.axes if axes.get_ylabel() == "PSNR [dB]").lines[0]
    clipped = np.clip(other, 0, 1)
    assert curve.get_ydata()[2] == pytest.approx(-10 * np.log10(np.mean((clipped[2] - truth[2]) ** 2)), rel=1e-6)
    assert np.isinf(curve.get_ydata()[[0, 1, 3]]).all()
    a, b = other[:, 7, 9].astype(float), truth[:, 7, 9].astype(float)
    angle = np.degrees(np.arccos(a @ b / np.linalg.norm(a) / np.linalg.norm(b)))
    assert maps[1].images[0].get_array()[7, 9] == pytest.approx(angle, rel=1e-3)
    assert f"Spectral angle: mean {maps[1].images[0].get_array().mean():.1f}°" in words(figure)
    refused(figures.difference, cube, cube[:3], error=ValueError)


def test_the_summary_warns_in_red(cube):
    good = result(cube, BANDS, verdict="the mask fits", ok=True)
    assert good.problems() == [] and "mask" not in words(figures.summary(good))
    bad = result(cube, BANDS, verdict="wrong mask", ok=False)
    (box,) = [text for text in figures.summary(bad).findobj(Text) if text.get_text() == "wrong mask"]
    red, green, _, _ = box.get_bbox_patch().get_edgecolor()
    assert red > 2 * green


@pytest.fixture(scope="module")
def made(cube):
    """All figures of a result that has everything, in no unit."""
    return figures.figures_of(result(cube, BANDS, unit="as in the file", **{"truth": cube, "uncertainty": 0.1 * cube}))


def test_figures_of_a_result(cube, made):
    bare = figures.figures_of(ReportData(cube))
    assert set(bare) == {"summary", "bands", "srgb", "convergence"}
    assert set(made) - set(bare) == {"residual", "errors", "uncertainty"}
    (axes,) = made["uncertainty"].axes
    np.testing.assert_allclose(axes.images[0].get_array(), 0.1 * np.sqrt((cube**2).mean(0)), rtol=1e-5)
    assert "Standard deviation, root mean square" in words(made["uncertainty"])
    for name in set(made) - {"srgb", "convergence"}:
        assert "relative radiance" in words(made[name]), name
        assert "as in the file" not in words(made[name])


def test_the_summary_shows_truth_in_one_exposure_or_else_the_residual(cube):
    def pictures(**more):
        shown = [axes for axes in figures.summary(result(cube, BANDS, **more)).axes if axes.images]
        return {axes.get_title(loc="left"): np.asarray(axes.images[0].get_array()) for axes in shown}

    known = pictures(truth=0.5 * cube)
    assert "Residual y - Φx" in pictures() and "Residual y - Φx" not in known
    estimate, truth = known["Color, not corrected for lamp and detector"], known["Truth, the same exposure"]
    assert truth[..., :3].mean() < 0.85 * estimate[..., :3].mean()


def test_save_figures_is_atomic(tmp_path, cube, monkeypatch):
    figure = figures.residual(cube[0])
    paths = figures.save_figures({"a": figure, "b": figure}, tmp_path / "new" / "folder", dpi=40)
    assert [p.name for p in paths] == ["a.png", "b.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in paths)

    def broken(self, file, *args, **options):
        file.write(b"half a file")
        raise OSError("disk full")

    before = paths[0].read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "save", broken)
        refused(figures.save_figures, {"a": figure}, tmp_path / "new" / "folder", error=OutputError)
    assert paths[0].read_bytes() == before
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == ["a.png", "b.png"]


@pytest.mark.parametrize("draw", [figures.bands, figures.srgb])
def test_bad_input(cube, draw):
    refused(draw, cube, BANDS[:3], error=ValueError)
    refused(figures.bands, cube[0], error=ValueError)
    refused(figures.choose_points, cube[0], error=ValueError)


def test_formats_and_resolution(tmp_path):
    def drawn():
        return {"a": figures.srgb(np.random.default_rng(0).random((3, 20, 30)))}

    paths = figures.save_figures(figure := drawn(), tmp_path, formats=("png", "pdf", "svg"), dpi=50)
    assert [path.name for path in paths] == ["a.png", "a.pdf", "a.svg"]
    assert b"/FontFile2" in (pdf := paths[1].read_bytes()) and b"/Type3" not in pdf, "fonts that publishers take"
    assert [path.read_bytes()[:4] for path in paths[1:]] == [b"%PDF", b"<?xm"]
    wide = Image.open(paths[0]).size[0]
    (again,) = figures.save_figures(figure, tmp_path, dpi=100)
    assert Image.open(again).size[0] == pytest.approx(2 * wide, abs=2)
    before = [path.read_bytes() for path in paths[1:]]
    figures.save_figures(drawn(), tmp_path, formats=("pdf", "svg"), dpi=50)
    assert [path.read_bytes() for path in paths[1:]] == before  # equal input, equal file
    refused(figures.save_figures, figure, tmp_path, formats=("bmp",))


@pytest.mark.parametrize(("size", "width", "expected"), [(2.5, 256, 100), (0.1, 100, 2), (7, 60, 50)])
def test_a_scale_bar_has_a_round_length(size, width, expected):
    figure = figures.srgb(np.ones((3, 20, width)), look=figures.Look(pixel_size=size, pixel_unit="mm"))
    axes = figure.axes[0]
    assert axes.texts[-1].get_text() == f"{expected} mm"
    left, right = axes.lines[-1].get_xdata()
    assert (right - left) * size == pytest.approx(expected) and right - left <= width / 5


def test_a_talk_has_no_markers_and_bands_have_the_color_of_their_light():
    data = ReportData(np.full((5, 32, 32), 0.5), wavelengths=np.array([440.0, 490, 530, 580, 640]))
    looks = (figures.Look(), figures.Look(markers=False))
    marked, bare = (len(figures.summary(data, look=look).axes[0].lines) for look in looks)
    assert marked > bare == 0
    pictures = (figures.bands(data.cube, data.wavelengths, tinted=tinted).axes[0].images[0] for tinted in (True, False))
    tinted, plain = (np.ptp(one.get_array()[..., :3].astype(int), axis=-1) for one in pictures)
    assert (tinted > 40).any() and not (plain > 0).any()
    strongest = band_colors(data.wavelengths, 5).argmax(1).tolist()
    assert strongest in ([2, 2, 1, 1, 0], [2, 2, 1, 0, 0])


def test_of_a_cube_that_is_huge_every_kth_pixel_is_drawn(monkeypatch):
    monkeypatch.setattr(figures, "MAX_VALUES", 16 * 16)
    cube = np.random.default_rng(0).random((2, 32, 48))
    drawn = figures.figures_of(result(cube, None, uncertainty=cube, truth=cube))["bands"]
    assert "one of 4 x 4 pixels" in words(drawn)
