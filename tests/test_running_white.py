"""Reflectance by a white reference, in Python and at the command line."""

import warnings
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from messages import check_words, refused

import cassi
from cassi.cli.main import run
from cassi.files import write_arrays
from cassi.files.cubes import turn
from cassi.files.spectrum_files import Spectrum
from cassi.looking.figures import figures_of
from cassi.looking.methods import methods_text
from cassi.looking.report_data import read_report, report_of
from cassi.optics.measurement import Measurement
from cassi.optics.single_disperser import CASSI
from cassi.running import pipeline
from cassi.running.tiling import reconstruct_tiled
from cassi.running.white import MAX_COLORED, MAX_UNEVEN, light_of, reflectance as divide, unevenness
from cassi.self_calibration.camera_model import CameraModel
from cassi.self_calibration.found_camera import FoundCamera
from cassi.simulation.scene import procedural_scene

C, SIZE = 6, 48


def reflectance(scene, white, **how):
    """Of copies, as cubes are divided in their place."""
    own = replace(scene, cube=scene.cube.clone())
    own = own if own.uncertainty is None else replace(own, uncertainty=own.uncertainty.clone())
    return divide(own, light_of(white.cube.clone(), white.imprint), **how)


@pytest.fixture(scope="module")
def bench():
    """A scene of two reflectances under light that differs by place and band, and the white board in it."""
    mask = (torch.rand(SIZE, SIZE, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    A = CASSI.from_step(mask, step=1, num_bands=C)
    light = torch.linspace(0.4, 1.0, C).view(-1, 1, 1) * torch.linspace(0.8, 1.2, SIZE).view(1, -1, 1)
    light = light.expand(C, SIZE, SIZE)
    return A, torch.where(torch.arange(SIZE) < SIZE // 2, 0.3, 0.7).expand(C, SIZE, SIZE), light


@pytest.fixture(scope="module")
def results(bench):
    A, rho, light = bench
    how = {"step": 1, "num_bands": C, "solver": "gap-tv", "num_iters": 60, "camera": "as-given"}
    return [cassi.reconstruct(A.forward(x), A.mask, **how) for x in (rho * light, light)]


def test_the_color_of_the_light_is_gone(bench, results):
    found = reflectance(*results)
    assert found.unit == "reflectance"
    assert (report_of(found).unit, report_of(found).measured_unit) == ("reflectance", "")
    assert report_of(results[0]).measured_unit == results[0].unit
    inner = found.cube[:, 8:-8]
    for columns, true in ((slice(6, 18), 0.3), (slice(30, 42), 0.7)):
        assert inner[..., columns].mean((1, 2)).tolist() == pytest.approx([true] * C, rel=0.05)
    assert results[0].cube[0].mean() < 0.6 * results[0].cube[-1].mean()  # the light's color was in it


def test_the_factor_holds_for_the_uncertainty_and_is_0_where_hardly_any_light_falls(results):
    scene, white = results
    known = replace(scene, uncertainty=scene.cube / 10)
    found = reflectance(known, replace(white, cube=white.cube * (torch.arange(SIZE) < SIZE // 2)))
    assert torch.allclose(found.uncertainty, found.cube / 10)
    assert (found.cube[..., -8:] == 0).all() and (found.cube[:, 10:-10, 6:12] > 0).any()


@pytest.fixture
def files(tmp_path, bench):
    """The folder of `scene.npz` and `white.npz`."""
    A, rho, light = bench
    for name, x in (("scene", rho * light), ("white", light)):
        np.savez(tmp_path / f"{name}.npz", measurement=A.forward(x).numpy(), mask=A.mask.numpy(), shifts=range(C))
    return tmp_path


def test_at_the_command_line(files, bench, capsys, monkeypatch):
    A, tmp_path = bench[0], files
    cube = tmp_path / "cube.h5"
    words = ["--measurement", str(tmp_path / "scene.npz"), "--white", str(tmp_path / "white.npz")]
    words += ["--solver", "gap-tv", "--iterations", "40", "--figures", "none", "--output", str(cube)]
    assert run("reconstruct", words, "reconstruct.py") == 0
    assert "divided by the light on the white reference white.npz" in capsys.readouterr().out
    with h5py.File(cube) as h:
        assert h.attrs["unit"] == "reflectance"
        assert np.median(h["cube"][:, 8:-8, 6:18]) == pytest.approx(0.3, rel=0.1)
    found = FoundCamera(0.9 * A.mask.numpy(), tuple(range(C)), CameraModel(), True)
    seen, solve = [], pipeline.solve_by_name
    monkeypatch.setattr("cassi.self_calibration.search.find_camera", lambda m, **settings: found)
    monkeypatch.setattr(pipeline, "solve_by_name", lambda A, y, **k: seen.append(A.mask.numpy()) or solve(A, y, **k))
    assert run("reconstruct", [*words, "--align", "--overwrite"], "reconstruct.py") == 0
    assert len(seen) == 2 and all(np.array_equal(mask, found.mask) for mask in seen), "one camera took both"


def test_board_and_exposure_as_they_are_typed(files, capsys):
    """A number or a table, and a ratio, reach the division, and a run with others is another run."""
    tmp_path = files
    (tmp_path / "board.csv").write_text("nm;R\n400;0.8\n700;0.8\n", encoding="utf-8")
    words = [str(tmp_path / "scene.npz"), "--white", str(tmp_path / "white.npz"), "--wavelengths", f"450:650:{C}"]
    words += ["--solver", "gap-tv", "--iterations", "40", "--figures", "none", "--camera", "as-given", "--quiet"]
    how = {"solver": "gap-tv", "num_iters": 40, "camera": "as-given", "wavelengths": f"450:650:{C}"}
    for name, board in (("number", "0.8"), ("table", str(tmp_path / "board.csv"))):
        cube = tmp_path / f"{name}.h5"
        more = ["--white-reflectance", board, "--exposure-ratio", "2", "--output", str(cube)]
        assert run("reconstruct", [*words, *more], "reconstruct.py") == 0
        more[3] = "4"
        assert run("reconstruct", [*words, *more], "reconstruct.py") == 2, "exists, made otherwise"
        check_words(capsys.readouterr().err)
        with h5py.File(cube) as h:
            typed = h["cube"][:]
        assert np.median(typed[:, 8:-8, 6:18]) == pytest.approx(0.3 * 0.8 / 2, rel=0.1)
        result = cassi.reconstruct(
            tmp_path / "scene.npz", white=tmp_path / "white.npz", white_reflectance=board, exposure_ratio=2, **how
        )
        np.testing.assert_allclose(result.cube.numpy(), typed, rtol=1e-3, atol=1e-5)


def test_reflectance_of_the_board_and_exposure(results):
    """R x / (E G * w): by hand, from the plain call."""
    plain = reflectance(*results).cube
    torch.testing.assert_close(reflectance(*results, board=0.95, exposure=4).cube, plain * 0.95 / 4)
    nm = np.linspace(450, 650, C)
    scene = replace(results[0], wavelengths=nm)
    table = Spectrum(np.array([300.0, 800.0]), np.array([0.3, 0.8]))  # linear: its mean over a band is its value there
    expected = plain * torch.as_tensor(0.001 * nm, dtype=plain.dtype).view(-1, 1, 1)
    torch.testing.assert_close(reflectance(scene, results[1], board=table).cube, expected)


def test_a_reference_that_is_none_is_refused(bench, results):
    scene, white = results
    for cube in (white.cube[:, :8], 0 * white.cube):
        refused(reflectance, scene, replace(white, cube=cube), error=ValueError)
    for board in (95.0, 0.0):
        refused(reflectance, *results, board=board)
    refused(reflectance, *results, exposure=0)
    table = Spectrum(np.array([500.0, 800.0]), np.ones(2))
    refused(reflectance, *results, board=table)
    refused(reflectance, replace(results[0], wavelengths=np.linspace(450, 650, C)), results[1], board=table)
    picture = procedural_scene(SIZE, SIZE, torch.linspace(450, 650, C), generator=torch.Generator().manual_seed(0))
    refused(reflectance, results[0], replace(results[1], cube=picture.float()))


@pytest.mark.parametrize("seed", range(4))
def test_light_is_told_from_pictures(seed):
    """Vignetting, lamps of two colors, dust, a field stop and noise are light; painted scenes and discs are none."""
    rng = np.random.default_rng(seed)
    i, j = np.mgrid[:96, :128]
    lamps = [np.exp(-((i - 96 * rng.random()) ** 2 + (j - 128 * rng.random()) ** 2) / (2 * 70**2)) for _ in range(2)]
    colors = rng.uniform(0.2, 1, (2, 3))
    spectra = [np.interp(np.arange(C), [0, C / 2, C], color)[:, None, None] for color in colors]
    vignetting = 1 - 0.4 * ((i - 48) ** 2 + (j - 64) ** 2) / (48**2 + 64**2)
    light = (
        sum(s * lamp for s, lamp in zip(spectra, lamps, strict=True)) * vignetting * rng.normal(1, 0.05, (C, 96, 128))
    )
    light[:, 30:36, 40:46] *= 0.7
    for stop in (1, np.where((i - 48) ** 2 + (j - 64) ** 2 < 44**2, 1, 0.01)):
        brightness, color = unevenness(light * stop)
        assert brightness < 0.7 * MAX_UNEVEN and color < 0.7 * MAX_COLORED
    nm = torch.linspace(450, 650, C)
    picture = procedural_scene(96, 128, nm, generator=torch.Generator().manual_seed(seed)).numpy()
    assert unevenness(picture)[0] > 1.5 * MAX_UNEVEN
    disc = (i - 96 * rng.uniform(0.3, 0.7)) ** 2 + (j - 128 * rng.uniform(0.3, 0.7)) ** 2 < rng.uniform(12, 18) ** 2
    assert unevenness(np.where(disc, 0.4, 1) * light)[0] > 1.2 * MAX_UNEVEN
    red = np.where(np.arange(C) < C / 2, 0.6, 1.4)[:, None, None]
    assert unevenness(np.where(disc, red, 1) * light)[1] > 1.5 * MAX_COLORED


def test_the_methods_state_white_reference_and_dark_frame(bench, tmp_path):
    """In memory as in the file; and neither where there is none."""
    A, rho, light = bench
    scene, white = (Measurement(1 + A.forward(x).numpy(), A.mask.numpy(), A.shifts) for x in (rho * light, light))
    dark = np.ones(A.measurement_shape)
    how = {"solver": "gap-tv", "num_iters": 5, "camera": "as-given"}
    given = {"white": white, "dark": dark, "white_reflectance": "0.95", "exposure_ratio": 4.0}
    result = cassi.reconstruct(scene, **how, **given)
    result.save(tmp_path / "cube.h5")
    text = methods_text(report_of(result))
    assert methods_text(read_report(tmp_path / "cube.h5")) == text
    assert "A dark frame was subtracted from the snapshots of scene and white reference." in text
    assert "by the same camera, of reflectance 0.95, exposed for 0.25 of the scene's time; its values are ref" in text
    plain = methods_text(report_of(cassi.reconstruct(scene, **how, white=white)))
    assert "by the same camera; its values are reflectances." in plain and "dark" not in plain
    alone = methods_text(report_of(cassi.reconstruct(scene, **how, dark=dark)))
    assert "A dark frame was subtracted from the snapshot." in alone and "white" not in alone


def test_a_reference_beside_a_camera_object(bench, results):
    A, rho, light = bench
    y, white = (A.forward(x) for x in (rho * light, light))
    board = Measurement(y=white.numpy(), mask=A.mask.numpy(), shifts=A.shifts)
    found = cassi.reconstruct(y, A, white=board, solver="gap-tv", num_iters=60)
    assert found.unit == "reflectance"
    assert torch.allclose(found.cube, reflectance(*results).cube, atol=1e-3)


def test_a_reference_without_sensitivity_gets_that_of_the_snapshot(bench):
    """And that is said; nothing is where both have it."""
    A, rho, light = bench
    even = (1 + 0.2 * torch.rand(A.measurement_shape, generator=torch.Generator().manual_seed(1))).numpy()
    camera = {"mask": A.mask.numpy(), "shifts": A.shifts}
    m, board = (Measurement(y=A.forward(x).numpy() * even, sensitivity=even, **camera) for x in (rho * light, light))
    both, warned = [], []
    for white in (board, replace(board, sensitivity=None)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            both.append(cassi.reconstruct(m, white=white, camera="as-given", solver="gap-tv", num_iters=5).cube)
        warned.append([str(one.message) for one in caught if "sensitivities" in str(one.message)])
    assert torch.equal(*both) and not warned[0] and len(warned[1]) == 1
    assert "the snapshot's are us" in warned[1][0]


@pytest.fixture(scope="module")
def night(tmp_path_factory, bench):
    """A folder of two scenes, and beside it the white reference."""
    A, rho, light = bench
    folder = tmp_path_factory.mktemp("night")
    (folder / "night").mkdir()
    for k, x in enumerate((rho * light, 0.5 * rho * light)):
        write_arrays(folder / "night" / f"s{k}.h5", {"measurement": A.forward(x).numpy()})
    write_arrays(folder / "white.h5", {"measurement": A.forward(light).numpy()})
    write_arrays(folder / "mask.h5", {"mask": A.mask.numpy()})
    return folder


def test_a_folder_is_divided_by_a_reference_that_is_solved_once(night, tmp_path, monkeypatch, capsys):
    """With figures, scale bars and pages; the same as single runs; what is there already is drawn, not computed."""
    seen, solve = [], pipeline.solve_white
    monkeypatch.setattr(pipeline, "solve_white", lambda *given: seen.append(1) or solve(*given))
    how = ["--mask", str(night / "mask.h5"), "--num-bands", str(C), "--step", "1", "--camera", "as-given"]
    how += ["--white", str(night / "white.h5"), "--white-reflectance", "0.9", "--solver", "gap-tv"]
    how += ["--iterations", "30"]
    out = tmp_path / "out"
    words = [str(night / "night"), *how, "--output", str(out), "--quiet"]
    assert run("reconstruct", words, "cassi reconstruct") == 0 and len(seen) == 1
    more = ["--pixel-size", "2um", "--report", "--figure-format", "svg"]
    assert run("reconstruct", [*words, *more], "cassi reconstruct") == 0 and len(seen) == 1
    drawn = sorted(path.name for path in (tmp_path / "out_figures" / "s1").iterdir())
    assert "srgb.svg" in drawn and (out / "s1_report.html").exists() and (out / "index.html").exists()
    assert sorted(path.name for path in (tmp_path / "out_figures").iterdir()) == ["s0", "s1"]
    single = tmp_path / "single.h5"
    words = [str(night / "night" / "s1.h5"), *how, "--output", str(single), "--figures", "none", "--quiet"]
    assert run("reconstruct", words, "cassi reconstruct") == 0
    with h5py.File(single) as one, h5py.File(out / "s1_cube.h5") as many:
        np.testing.assert_allclose(one["cube"][:], many["cube"][:], atol=1e-4)
        assert many.attrs["unit"] == "reflectance"
        assert np.median(many["cube"][:, 8:-8, 6:18]) == pytest.approx(0.9 * 0.5 * 0.3, rel=0.1)
    assert run("reconstruct", [*words[:1], *how, "--white-reflectance", "0.8", "--output", str(single)], "c") == 2
    capsys.readouterr()


def test_tiles_are_divided_turned_and_have_error_bars(bench, tmp_path):
    """As the whole frame, whose noise, basis and weights are the tiles' too."""
    turned = "90"
    mask = (torch.rand(48, 64, generator=torch.Generator().manual_seed(1)) > 0.5).float()
    A = CASSI.from_step(mask, step=1, num_bands=C)
    light = torch.linspace(0.5, 1, C)[:, None, None] * torch.linspace(0.9, 1.1, 64) * torch.ones(C, 48, 1)
    rho = procedural_scene(48, 64, torch.linspace(450, 650, C), generator=torch.Generator().manual_seed(2)).float()
    noise = 0.005 * torch.randn(2, *A.measurement_shape, generator=torch.Generator().manual_seed(3))
    scene, white = (
        Measurement((A.forward(x) + n).numpy(), mask.numpy(), A.shifts)
        for x, n in zip((rho * light, light), noise, strict=True)
    )
    how = {"prior": "tv", "camera": "as-given", "turn_result": turned, "uncertainty": True}
    whole = cassi.reconstruct(scene, **how, white=white, white_reflectance=0.9)
    reconstruct_tiled(scene, tmp_path / "t.h5", tile=40, reach=16, **how, white=white, white_reflectance=0.9)
    with h5py.File(tmp_path / "t.h5") as file:
        assert file.attrs["unit"] == "reflectance" and file.attrs["turned"] == turned
        cube, spread = file["cube"][:], file["uncertainty"][:]
        assert file["measurement"].shape == turn(scene.y, turned).shape == file["residual"].shape
        residual = file.attrs["residual"]
    assert cube.shape == tuple(whole.cube.shape)
    assert np.abs(cube - whole.cube.numpy()).mean() < 0.01
    assert np.median(spread / whole.uncertainty.numpy()) == pytest.approx(1, abs=0.25)
    assert residual == pytest.approx(whole.residual, rel=0.15), "that of the radiance"
    truth = turn(0.9 * rho.numpy(), turned)
    assert np.abs(cube - truth).mean() < 0.05
    assert np.mean(np.abs(cube - truth) < 2 * spread) > 0.8
    data = read_report(tmp_path / "t.h5")
    assert {"uncertainty", "residual"} < set(figures_of(data))
