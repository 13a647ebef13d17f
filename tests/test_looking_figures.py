"""Figures: what they show is read back from the artists; text must not collide; nothing global changes."""

import subprocess
import sys
from itertools import combinations

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from cassi.looking import figures
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
    FigureCanvasAgg(figure).draw()
    renderer = figure.canvas.get_renderer()
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
        height = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert width <= 1 or height <= 1, f"{words!r} overlaps {others!r}"


def words(figure):
    return " | ".join(text for text, _ in visible_texts(figure))


def all_figures(cube, wavelengths):
    truth = cube + 0.02
    return {
        "snapshot": figures.snapshot(cube[0], unit="counts"),
        "bands": figures.bands(cube, wavelengths, unit="counts", title="a scene"),
        "srgb": figures.srgb(cube, wavelengths),
        "spectra": figures.spectra(
            cube, wavelengths, truth=truth, uncertainty=0 * cube + 0.1, unit="counts", title="x"
        ),
        "convergence": figures.convergence(HISTORY),
        "summary": figures.summary(
            np.pad(cube[0], ((0, 0), (0, 14))),
            cube,
            wavelengths,
            history=HISTORY,
            truth=truth,
            unit="counts",
            cube_unit="counts",
            title="scene01.h5",
            caption="solver gap-tv, 60 iterations\nresidual 0.01",
        ),
        "covariance": figures.spectral_covariance(np.cov(cube.reshape(8, -1)), wavelengths),
        "uncertainty": figures.uncertainty_map(0.1 * cube, 0.05 + 0 * cube, unit="counts"),
    }


@pytest.mark.parametrize("wavelengths", [BANDS, None], ids=["wavelengths", "unknown"])
def test_every_figure_is_readable_and_leaves_no_trace(cube, wavelengths):
    before = dict(matplotlib.rcParams)
    for name, figure in all_figures(cube, wavelengths).items():
        assert isinstance(figure, Figure), name
        assert_text_is_readable(figure)
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("shape", [(3, 90, 20), (31, 16, 70), (1, 12, 12), (2, 1, 1)])
def test_odd_shapes_are_readable(shape):
    cube = np.random.default_rng(1).random(shape)
    wavelengths = 400 + 10.0 * np.arange(shape[0])
    for figure in (figures.bands(cube, wavelengths), figures.srgb(cube, wavelengths), figures.snapshot(cube[0])):
        assert_text_is_readable(figure)
    figures.summary(cube[0], cube, wavelengths).savefig("/dev/null", format="png", dpi=30)


def test_broken_values_still_give_figures(cube):
    broken = cube.copy()
    broken[:, 5:9, 5:9] = np.nan
    broken[2, 0, 0] = np.inf
    for figure in (
        figures.summary(broken[0], broken, BANDS, history=HISTORY),
        figures.bands(np.full_like(cube, np.nan), BANDS),
        figures.summary(0 * cube[0], 0 * cube, BANDS, history=[Record(1, 0.1, 0.0, np.nan)]),
    ):
        FigureCanvasAgg(figure).draw()


def test_the_uncertainty_map_shows_what_it_says(cube):
    seen = np.zeros_like(cube)
    seen[:2] = 0.25
    left, right = figures.uncertainty_map(cube, seen).axes[:2]
    np.testing.assert_allclose(left.images[0].get_array(), np.sqrt((cube**2).mean(0)), rtol=1e-5)
    np.testing.assert_allclose(right.images[0].get_array(), 0.5)
    assert "8 unknowns" in right.get_title(loc="left")
    assert len([a for a in figures.uncertainty_map(cube).axes if a.images]) == 1
    with pytest.raises(ValueError, match="visibility"):
        figures.uncertainty_map(cube, seen[1:])


def test_tensors_give_the_same_pictures(cube):
    from_array, from_tensor = (
        figures.srgb(c, w).axes[0].images[0].get_array()
        for c, w in ((cube, BANDS), (torch.from_numpy(cube).requires_grad_(), torch.from_numpy(BANDS)))
    )
    np.testing.assert_array_equal(from_array, from_tensor)


def test_snapshot_scale_survives_a_hot_pixel(cube):
    hot = cube[0].copy()
    hot[3, 3] = 1e6
    limits = [figures.snapshot(y).axes[0].images[0].get_clim() for y in (cube[0], hot)]
    assert limits[1] == pytest.approx(limits[0], rel=0.02)
    figure = figures.snapshot(hot, unit="electrons", title="Frame 3")
    assert "electrons" in words(figure) and "Frame 3, 40 x 52 px" in words(figure)


def test_bands_name_what_they_show(cube):
    shown = words(figures.bands(cube, BANDS, unit="counts"))
    assert "450 nm" in shown and "650 nm" in shown
    top = np.percentile(cube, 99.5)
    assert f"8 bands, all bands on one scale, 0 to {top:.3g} counts" in shown
    shown = words(figures.bands(cube, None, count=3, scale="band"))
    assert [f"band {k}" in shown for k in (1, 2, 8)] == [True, False, True]
    assert "3 of 8 bands, each band on its own scale" in shown
    assert "450.5 nm" in words(figures.bands(cube[:2], [450.5, 451.5]))


def test_bands_scale_and_tint():
    cube = np.ones((3, 10, 10)) * np.array([0.01, 0.1, 1.0])[:, None, None]

    def middles(**options):
        mosaic = figures.bands(cube, [460.0, 540.0, 640.0], **options).axes[0].images[0].get_array()
        tile = (mosaic.shape[1] + 1) // 3
        return [np.asarray(mosaic[-5, tile * k + 5]) for k in range(3)]

    blue, green, red = middles(scale="band")
    assert blue.argmax() == 2 and green.argmax() == 1 and red.argmax() == 0
    brightness = [color.max() for color in middles()]
    assert brightness[0] < brightness[1] < brightness[2]
    grey = middles(scale="band", tint=False)
    assert all(np.ptp(color) < 1e-6 for color in grey)


def test_spectra_show_the_numbers(cube):
    reversed_bands = BANDS[::-1]
    truth = cube + 0.05
    figure = figures.spectra(
        cube, reversed_bands, points=[(3, 4), (30, 50)], truth=truth, uncertainty=0 * cube + 0.1, unit="W"
    )
    panels = [axes for axes in figure.axes if axes.get_xlabel() == "wavelength [nm]"]
    assert len(panels) == 2 and panels[0].get_ylabel() == "W"
    for axes, (row, column) in zip(panels, [(3, 4), (30, 50)], strict=True):
        estimate, true = axes.lines
        np.testing.assert_allclose(estimate.get_xdata(), np.sort(BANDS))
        np.testing.assert_allclose(estimate.get_ydata(), cube[::-1, row, column])
        np.testing.assert_allclose(true.get_ydata(), truth[::-1, row, column])
        assert true.is_dashed()
        vertices = axes.collections[0].get_paths()[0].vertices
        assert np.ptp(vertices[np.isclose(vertices[:, 0], 450), 1]) == pytest.approx(0.2, rel=1e-4)
        a, b = cube[:, row, column].astype(float), truth[:, row, column].astype(float)
        angle = np.degrees(np.arccos(a @ b / np.linalg.norm(a) / np.linalg.norm(b)))
        assert f"row {row}, column {column} · {angle:.1f}°" in words(figure)


def test_points_are_distinct_inside_and_the_same_each_time():
    rng = np.random.default_rng(2)
    colors = rng.random((6, 8))
    cube = np.zeros((8, 80, 120))
    for k in range(6):
        cube[:, 40 * (k // 3) : 40 * (k // 3) + 40, 40 * (k % 3) : 40 * (k % 3) + 40] = colors[k][:, None, None]
    shading = 1 + 0.3 * np.sin(np.arange(120) / 9)
    noisy = cube * shading + 0.01 * rng.standard_normal(cube.shape)
    points = figures.choose_points(noisy)
    assert points == figures.choose_points(torch.from_numpy(noisy))
    assert points == figures.choose_points(4095 * noisy)
    assert len({(row // 40, column // 40) for row, column in points}) == 6, "one point in each color"
    assert points == sorted(points)
    assert all(min(row % 40, column % 40) >= 2 for row, column in points), "none on an edge"
    assert len(figures.choose_points(noisy, 20)) == 20
    assert len(set(figures.choose_points(np.ones((3, 2, 2)), 9))) == 4


def test_convergence_shows_the_history():
    figure = figures.convergence(HISTORY)
    left, right = figure.axes
    residual, change = left.lines
    np.testing.assert_allclose(residual.get_ydata(), [r.residual for r in HISTORY])
    np.testing.assert_allclose(change.get_ydata(), [r.change for r in HISTORY])
    np.testing.assert_allclose(right.lines[0].get_xdata(), [r.seconds for r in HISTORY])
    assert left.get_yscale() == "log" and right.get_xlabel() == "time [s]"
    assert "no iterations" in words(figures.convergence(()))
    start = [Record(1, 0.1, 1e-9, 0.5), *(Record(k, 0.1 * k, 0.1 / k, 0.5 / k) for k in range(2, 20))]
    assert figures.convergence(start).axes[0].get_ylim()[0] > 1e-4  # an exact start does not flatten the rest


def test_covariance_counts_its_eigenvectors():
    figure = figures.spectral_covariance(np.diag([100.0, 99.0, 0.5, 0.4]), None)
    assert "2 of 4 hold 99 % of the variance" in words(figure)
    correlation = figure.axes[1].collections[0].get_array()
    np.testing.assert_allclose(np.asarray(correlation).reshape(4, 4), np.eye(4))
    FigureCanvasAgg(figures.spectral_covariance(np.zeros((3, 3)))).draw()


def test_summary_uses_one_exposure_for_estimate_and_truth(cube):
    figure = figures.summary(cube[0], cube, BANDS, truth=0.5 * cube)
    pictures = {axes.get_title(loc="left"): axes.images[0].get_array() for axes in figure.axes if axes.images}
    estimate, truth = pictures["Reconstruction, sRGB (CIE 1931)"], pictures["Truth, the same exposure"]
    assert truth.mean() < 0.85 * estimate.mean()


def test_save_figures_is_atomic(tmp_path, cube):
    figure = figures.snapshot(cube[0])
    paths = figures.save_figures({"a": figure, "b": figure}, tmp_path / "new" / "folder", dpi=40)
    assert [p.name for p in paths] == ["a.png", "b.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in paths)

    class Broken(Figure):
        def savefig(self, file, **options):
            file.write(b"half a file")
            raise OSError("disk full")

    before = paths[0].read_bytes()
    with pytest.raises(OSError, match="disk full"):
        figures.save_figures({"a": Broken()}, tmp_path / "new" / "folder")
    assert paths[0].read_bytes() == before
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == ["a.png", "b.png"]
    for name in ("../a", "", "a/b"):
        with pytest.raises(ValueError, match="plain file name"):
            figures.save_figures({name: figure}, tmp_path)


def test_no_pyplot():
    code = "import sys, cassi.looking.figures; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_bad_input(cube):
    with pytest.raises(ValueError, match=r"y must be one picture \(height, width\), got shape \(8, 40, 52\)"):
        figures.snapshot(cube)
    for draw in (figures.bands, figures.srgb, figures.spectra):
        with pytest.raises(ValueError, match=r"cube must be \(bands, height, width\)"):
            draw(cube[0])
        with pytest.raises(ValueError, match=r"wavelengths must have shape \(8,\)"):
            draw(cube, BANDS[:3])
    with pytest.raises(ValueError, match=r"cube must be \(bands, height, width\)"):
        figures.choose_points(cube[0])
    with pytest.raises(ValueError, match="count must be at least 1"):
        figures.bands(cube, count=0)
    with pytest.raises(ValueError, match="scale must be"):
        figures.bands(cube, scale="log")
    with pytest.raises(ValueError, match="lies outside the picture"):
        figures.spectra(cube, points=[(40, 0)])
    with pytest.raises(ValueError, match="points must not be empty"):
        figures.spectra(cube, points=[])
    with pytest.raises(ValueError, match="truth must have the shape of the cube"):
        figures.spectra(cube, truth=cube[:3])
    with pytest.raises(ValueError, match="uncertainty must have the shape of the cube"):
        figures.summary(cube[0], cube, uncertainty=cube[:3])
    with pytest.raises(ValueError, match=r"covariance must be \(bands, bands\)"):
        figures.spectral_covariance(cube[0])
