"""Tiles: which detector pixels a block may use, the windows, and tiled against whole frames."""

import errno
import json
import os
import re
import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from messages import check_refusal, refused

from cassi import CASSI, reconstruct, reconstruct_tiled
from cassi.choice.adaptation import Adapt
from cassi.choice.automatic import window
from cassi.choice.stages import STRIDE, STRIDE_OF_SEVERAL
from cassi.cli.main import script
from cassi.files import OutputError, read_cube, write_measurement
from cassi.files.cubes import turn
from cassi.looking.report_data import read_report
from cassi.optics.blurred import BlurredCASSI
from cassi.optics.cropping import crop
from cassi.optics.imprint import imprint_on
from cassi.optics.measurement import Measurement
from cassi.priors.learned import MULTIPLE
from cassi.running import tiling
from cassi.running.tiling import solve_tiled, tile_grid, zeros_in_file
from cassi.self_calibration.camera_model import CameraModel
from cassi.self_calibration.found_camera import FoundCamera, read_found_mask
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene

HEIGHT, WIDTH, BANDS = 72, 96, 6


def frame(seed=4, step=1, height=HEIGHT, width=WIDTH):
    generator = torch.Generator().manual_seed(seed)
    truth = procedural_scene(height, width, np.linspace(450, 650, BANDS).tolist(), generator=generator)
    A = CASSI.from_step(random_mask(height, width, generator=generator), step, BANDS)
    return A, A.forward(truth), truth


def measurement(A, y, **more):
    return Measurement(y=y.numpy(), mask=A.mask.numpy(), shifts=A.shifts, **more)


def psnr(x, reference):
    return float(10 * torch.log10(reference.max() ** 2 / ((x - reference) ** 2).mean()))


def solved(A, y, solve, **settings):
    x = torch.zeros(A.cube_shape, dtype=y.dtype)
    return x, solve_tiled(A, y, solve, x, **settings)


@given(
    shape=st.tuples(st.integers(1, 180), st.integers(1, 180)),
    shifts=st.tuples(*[st.integers(-9, 9)] * 3), tile=st.integers(1, 200), reach=st.integers(0, 40),
)  # fmt: skip
def test_windows_sum_to_one_and_blocks_lie_on_the_grids_of_patches_and_network(shape, shifts, tile, reach):
    A = CASSI(torch.ones(shape), shifts)
    total = torch.zeros(shape, dtype=torch.float64)
    for one in tile_grid(A, tile, reach=reach):
        total[one.kept] += one.window
        assert float(one.window.min()) >= 0
        for kept, block in zip(one.kept, one.block, strict=True):
            assert block.start <= kept.start < kept.stop <= block.stop
        for step in (STRIDE, STRIDE_OF_SEVERAL, MULTIPLE):
            for block, length in zip(one.block, shape, strict=True):
                assert block.start % step == 0 and (block.stop % step == 0 or block.stop == length)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-14)


CAMERAS = {
    "right": lambda m: CASSI.from_step(m, 2, 4), "left": lambda m: CASSI.from_step(m, -1, 4),
    "uneven": lambda m: CASSI(m, (3, 0, 7, 4)), "between pixels": lambda m: BlurredCASSI(m, (0.0, 1.7, 3.4, -0.5)),
    "blurred": lambda m: BlurredCASSI(m, (0.0, 2.0, 4.5, 6.0), psf=torch.ones(4)),
}  # fmt: skip


@pytest.mark.parametrize("name", CAMERAS)
def test_a_block_uses_the_pixels_that_its_own_scene_explains_and_no_others(name, generator, monkeypatch):
    """Light the frame outside the block only: a pixel has weight 1 just where none of that light can arrive."""
    monkeypatch.setattr(tiling, "GRID", 1)
    A = CAMERAS[name](torch.rand(21, 40, generator=generator, dtype=torch.float64) + 0.5)
    x = torch.rand(A.cube_shape, generator=generator, dtype=torch.float64) + 0.5
    y = A.forward(x)
    tiles = tile_grid(A, 12, reach=2)
    assert len(tiles) == 8
    for tile in tiles:
        rows, columns = tile.block
        a, b = crop(A, y, *tile.block)
        detector = slice(columns.start, columns.stop + A.measurement_shape[1] - A.cube_shape[2])
        outside = x.clone()
        outside[:, rows, columns] = 0
        foreign = A.forward(outside)[rows, detector] > 1e-12
        left_out = a.weights == 0
        assert bool(left_out[foreign].all())
        if name != "uneven":  # gaps between its shifts leave some pixels beyond the block without foreign light
            assert bool(foreign[left_out].all())
        torch.testing.assert_close(a.forward(x[:, rows, columns]), b)
        # what is kept has all its detector pixels
        kept = [slice(k.start - s.start, k.stop - s.start) for k, s in zip(tile.kept, tile.block, strict=True)]
        inside = torch.zeros(a.cube_shape, dtype=torch.float64)
        inside[:, kept[0], kept[1]] = 1
        assert float(a.weighted(None).forward(inside).sum()) == pytest.approx(float(a.forward(inside).sum()))


def test_tiles_of_the_closed_form_are_those_of_the_whole():
    A, y, _ = frame()
    x, history = solved(A, y, lambda a, b: a.pinv(b), tile=48)
    torch.testing.assert_close(x, A.pinv(y))
    assert len(history) == 4
    assert max(record.residual for record in history) < 1e-6


def test_auto_in_tiles_has_no_seam(tmp_path):
    A, y, truth = frame(height=64)
    m = measurement(A, y, wavelengths=np.linspace(450, 650, BANDS), unit="counts", source="a.h5")
    path = tmp_path / "cube.h5"
    result = reconstruct_tiled(m, path, tile=48, num_iters=60, seed=3, attributes={"command_line": "x"}, device="cpu")
    with h5py.File(path) as file:
        x, residual = (torch.from_numpy(file[name][:]) for name in ("cube", "residual"))
        assert file["history/residual"].shape == (len(result.history),) == (4,)
        assert (file.attrs["unit"], file.attrs["command_line"], file["wavelengths"][0]) == ("counts", "x", 450)
        assert json.loads(file.attrs["choice"])["solver"] == "subspace-tv"
    torch.testing.assert_close(residual, y - A.forward(x), rtol=0, atol=1e-5)
    assert result.residual == pytest.approx(float((y - A.forward(x)).norm() / y.norm()), rel=1e-5)
    assert psnr(x, truth) > psnr(A.pinv(y), truth) + 3
    step = (x[:, :, 1:] - x[:, :, :-1] - truth[:, :, 1:] + truth[:, :, :-1]).abs().mean((0, 1))
    assert float(step[47]) < 2 * float(step.median())
    again = tmp_path / "again.h5"
    reconstruct_tiled(m, again, tile=48, num_iters=60, seed=3, device="cpu")
    np.testing.assert_array_equal(read_cube(again)[0], x.numpy())


def test_tiles_repeat_the_plan_of_the_whole_frame(tmp_path):
    A, y, _ = frame(height=64)
    m = measurement(A, y)
    plan = reconstruct(m, prior="nonlocal", camera="as-given", device="cpu").plan
    whole = reconstruct(m, plan=plan, camera="as-given", device="cpu")
    adapting = replace(plan, stages=(*plan.stages, Adapt(1.0, 1)))  # which no tile does: there is not even a network
    reconstruct_tiled(m, tmp_path / "cube.h5", tile=48, plan=adapting, camera="as-given", device="cpu")
    assert psnr(torch.from_numpy(read_cube(tmp_path / "cube.h5")[0]), whole.cube) > 50


def test_tiles_are_solved_with_the_camera_that_is_found(tmp_path, monkeypatch):
    A, y, _ = frame()
    moved = A.mask.roll(1, dims=0)
    found = FoundCamera(A.mask.expand(BANDS, -1, -1).numpy(), A.shifts, CameraModel(down={"1": -1.0}), True)
    monkeypatch.setattr("cassi.self_calibration.search.find_camera", lambda m, **settings: found)
    ways = {"tile": 48, "num_iters": 5, "device": "cpu"}
    right, wrong = (Measurement(y=y.numpy(), mask=mask.numpy(), shifts=A.shifts) for mask in (A.mask, moved))
    reconstruct_tiled(right, tmp_path / "right.h5", camera="as-given", **ways)
    result = reconstruct_tiled(wrong, tmp_path / "found.h5", **ways)
    np.testing.assert_allclose(read_cube(tmp_path / "found.h5")[0], read_cube(tmp_path / "right.h5")[0], atol=1e-5)
    assert result.camera is found and result.check.matches
    with h5py.File(tmp_path / "found.h5") as file:
        assert json.loads(file.attrs["camera"])["accepted"]
        np.testing.assert_array_equal(file["mask_given"][:], moved.numpy())
    made = read_found_mask(tmp_path / "found.h5")
    assert made.shape == found.mask.shape and np.abs(made - found.mask)[:, :-1].max() < 1e-5


def test_a_cube_in_a_file_is_told_of_as_one_in_memory(tmp_path, monkeypatch):
    """Its residual by strips, imprint and texture of its most telling part; neither is the file left behind."""
    A, y, _ = frame()
    m = measurement(A, y)
    for module in ("cassi.choice.automatic", "cassi.optics.cropping"):
        monkeypatch.setattr(f"{module}.{'PLAN_SIDE' if 'choice' in module else 'STRIP'}", 40)
    result = reconstruct_tiled(m, tmp_path / "cube.h5", tile=48, num_iters=5, camera="as-given", device="cpu")
    torch.testing.assert_close(result.residual_image, y - A.forward(result.cube), rtol=0, atol=1e-5)
    part = window(A, y)
    assert result.imprint == pytest.approx(imprint_on(result.cube[:, *part], crop(A, y, *part)[0]))
    np.testing.assert_array_equal(result.cube.numpy(), read_cube(tmp_path / "cube.h5")[0])
    assert [path.name for path in tmp_path.iterdir()] == ["cube.h5"]
    turned = reconstruct_tiled(
        m, tmp_path / "turned.h5", tile=48, num_iters=5, camera="as-given", device="cpu", turn_result="90"
    )
    np.testing.assert_array_equal(turned.cube.numpy(), turn(result.cube.numpy(), "90"))


def test_a_drive_that_cannot_hold_the_cube_is_known_at_once(tmp_path, monkeypatch):
    """And one that cannot set room aside is taken as it is."""

    def failing(number):
        def fail(*_):
            raise OSError(number, os.strerror(number))

        return fail

    A, y, _ = frame()
    monkeypatch.setattr("os.posix_fallocate", failing(errno.EOPNOTSUPP))
    assert not zeros_in_file(tmp_path, (2, 3, 4)).any()
    full = failing(errno.ENOSPC)
    usage = shutil.disk_usage(tmp_path)._replace(free=100_000)  # bytes: less than the cube
    for name, function in (("os.posix_fallocate", full), ("shutil.disk_usage", lambda folder: usage)):
        with monkeypatch.context() as patch:
            patch.setattr(name, function)
            refused(reconstruct_tiled, measurement(A, y), tmp_path / "a.h5", error=OutputError, tile=48, num_iters=2)
    assert not list(tmp_path.iterdir())


def test_errors(tmp_path):
    A, y, _ = frame()
    m = measurement(A, y)
    stack = replace(m, y=m.y[None])
    for one, settings in ((m, {"tile": 0}), (m, {"tile": 8, "reach": 9}), (stack, {})):
        refused(reconstruct_tiled, one, tmp_path / "a.h5", **settings)
    refused(reconstruct_tiled, m, tmp_path / "a.tif", error=OutputError, num_iters=2)
    assert not list(tmp_path.iterdir())


def test_the_benchmark_sees_a_seam():
    from benchmarks.tiles import interior_psnr, seam, tiles

    whole = torch.arange(64.0).expand(2, 64, 64).clone()
    whole = whole + whole.mT
    assert seam(whole, whole, 16) == pytest.approx(1)
    broken = whole.clone()
    broken[:, :, 32:] += 1  # one of the three borders between columns is twice as steep
    assert seam(broken, whole, 16) == pytest.approx(4 / 3)
    assert interior_psnr(whole + 1.26, whole) == pytest.approx(40 - 20 * np.log10(1.26 * 100 / 94), abs=0.2)
    table = tiles(64, 40, large=0, num_bands=4, step=1, num_iters=10, report=lambda line: None)
    assert float(table.splitlines()[-1].split("|")[4]) > 50


def test_the_program_in_tiles(tmp_path, monkeypatch, capsys):
    A, y, _ = frame()
    write_measurement(tmp_path / "m.h5", measurement(A, y))
    settings = ("--measurement", "m.h5", "--device", "cpu", "--iterations", "5", "--tile", "48")
    main = script("reconstruct")
    monkeypatch.chdir(tmp_path)
    assert main([*settings, "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    x, _ = read_cube(tmp_path / "m_cube.h5")
    assert (tmp_path / "m_figures" / "summary.png").exists()
    write_measurement(tmp_path / "m.h5", replace(measurement(A, y), cube=x + 0.01), overwrite=True)
    assert main([*settings, "--overwrite"]) == 0
    np.testing.assert_array_equal(read_cube(tmp_path / "m_cube.h5", key="truth")[0], x + 0.01)
    said = capsys.readouterr().out
    assert "Held-out error " in said and re.search(r"residual [\d.]+%, [\d.]+ s, PSNR [\d.]+ dB", said)
    assert "the mask fits the measurement" in said and "m_figures" in said.splitlines()[-1]
    best = ("--prior", "tv", "--quality", "best", "--figures", "none", "--overwrite")
    assert main([*settings[:4], "--tile", "48", *best]) == 0
    assert "another network for each tile: default is used" in capsys.readouterr().out
    assert read_report(tmp_path / "m_cube.h5").parameters["quality"] == "default", "as it was solved"
    for more in (["--solver", "gap-tv"], ["--output", "m.mat", "--dry-run"]):
        check_refusal(capsys, main([*settings, "--overwrite", *more]))
