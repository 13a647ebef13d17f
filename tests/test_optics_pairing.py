"""Bands are paired by wavelength wherever two cubes or spectra meet: reordered, averaged with a word, or refused."""

import h5py
import numpy as np
import pytest
import torch
from messages import refused

import cassi
from cassi.calibration.frames_on_disk import find_frames
from cassi.choice.plan import Plan
from cassi.choice.stages import Tv
from cassi.cli.main import main
from cassi.evidence.noise import NoiseModel
from cassi.files import read_cube, read_measurement, write_cube, write_measurement
from cassi.files.writing import gather_cubes
from cassi.looking.comparison import compare
from cassi.optics.measurement import Measurement, join_shots
from cassi.optics.wavelengths import pair_bands, same_bands
from cassi.running.white import check_white
from cassi.sequence.frames import _stack

NM = np.array([450.0, 500, 550, 600, 650])
RISING = (0.1 + np.arange(5.0)[:, None, None] ** 2 * np.ones((5, 16, 16))).astype(np.float32)
ORDERS = {"same": np.arange(5), "reversed": np.arange(5)[::-1], "shuffled": np.array([3, 0, 4, 1, 2])}
MASK = np.random.default_rng(0).random((16, 16)).astype(np.float32)


def cube(path, order=slice(None), nm=NM, **more):
    return write_cube(path, RISING[order], wavelengths=None if nm is None else nm[order], attributes={"residual": 0.1})


def measurement(nm=NM, shifts=(0, 1, 2, 3, 4), **more):
    return Measurement(y=np.ones((16, 20), np.float32), mask=MASK, shifts=shifts, wavelengths=nm, **more)


@pytest.mark.parametrize("name", ORDERS)
def test_pairs(name):
    order = ORDERS[name]
    assert NM[order][pair_bands(NM, NM[order] + 0.3)].tolist() == NM.tolist()
    assert same_bands(NM, NM[order]) == (name == "same")


def test_what_is_no_pair():
    assert pair_bands(NM, NM + 1) is None and pair_bands(NM, NM[:4]) is None
    assert pair_bands([500, 500.2], [500, 600]) is None  # two bands for one
    assert pair_bands(None, NM).tolist() == list(range(5)) and pair_bands(None, None) is None
    assert same_bands(None, NM) and not same_bands(NM, NM + 400)


@pytest.mark.parametrize("name", ORDERS)
def test_compare_pairs_whole_cubes_and_places(tmp_path, capsys, name):
    a, b = cube(tmp_path / "a.h5"), cube(tmp_path / "b.h5", ORDERS[name])
    assert compare(a, b).numbers["psnr"] > 100 and list(compare(a, b).band_psnr) == list(compare(a, a).band_psnr)
    assert main(["compare", str(a), str(b), "--at", "8,8"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.split()[1:2] == ["nm"]]
    assert len(rows) == 5 and all(abs(float(row[-1])) < 1e-5 for row in rows)


def test_compare_averages_or_refuses_other_bands(tmp_path, capsys):
    a = cube(tmp_path / "a.h5")
    finer = np.arange(400.0, 701, 2)
    line = ((finer - 450) / 50)[:, None, None] * np.ones((1, 16, 16), np.float32)  # straight: means are centers
    b = write_cube(tmp_path / "b.h5", line, wavelengths=finer)
    assert main(["compare", str(a), str(b), "--at", "8,8"]) == 0
    said = capsys.readouterr()
    rows = [line.split() for line in said.out.splitlines() if line.split()[1:2] == ["nm"]]
    np.testing.assert_allclose([float(row[-2]) for row in rows], np.arange(5), atol=1e-3)
    assert "averaged" in said.err
    for other in (cube(tmp_path / "far.h5", nm=NM + 400), cube(tmp_path / "near.h5", nm=NM + 5)):
        refused(compare, a, other)
    assert main(["compare", str(a), str(tmp_path / "far.h5"), "--at", "8,8"]) == 2
    few = write_cube(tmp_path / "few.h5", RISING[:3])
    assert main(["compare", str(a), str(few), "--at", "8,8"]) == 2


@pytest.mark.parametrize("name", ORDERS)
def test_gathered_frames_have_the_bands_of_the_first(tmp_path, name):
    a, b = cube(tmp_path / "a.h5"), cube(tmp_path / "b.h5", ORDERS[name])
    found, nm = read_cube(gather_cubes(tmp_path / "all.h5", [a, b]))
    assert nm.tolist() == NM.tolist() and np.array_equal(found[0], RISING) and np.array_equal(found[1], RISING)


def test_frames_of_other_bands_are_not_gathered(tmp_path):
    a, far = cube(tmp_path / "a.h5"), cube(tmp_path / "far.h5", nm=NM + 400)
    refused(gather_cubes, tmp_path / "all.h5", [a, far])
    assert not (tmp_path / "all.h5").exists()
    gather_cubes(tmp_path / "all.h5", [a, cube(tmp_path / "unknown.h5", nm=None)])


def test_white_references_shots_and_frames_have_the_bands_of_the_scene():
    m = measurement()
    for other in (measurement(NM[::-1]), measurement(NM + 400)):
        refused(check_white, m, other)
        refused(join_shots, [m, other])
        refused(_stack, [m, other])
    refused(check_white, m, measurement(shifts=(0, -1, -2, -3, -4)))
    for other in (measurement(NM + 0.2), measurement(None)):
        check_white(m, other)
        assert join_shots([m, other]).wavelengths.tolist() == NM.tolist()


def test_a_plan_is_for_its_bands():
    plan = Plan(
        "smooth-5", torch.eye(5, dtype=torch.float64), NoiseModel(0.0, 1.0, "given"), 1.0, (Tv(1),), axis=tuple(NM)
    )
    for other in (NM[::-1], NM + 400):
        refused(plan.check_bands, 5, other)
    plan.check_bands(5, NM + 0.2)
    plan.check_bands(5)
    Plan("smooth-5", plan.vectors, plan.noise, 1.0, plan.stages, axis=5).check_bands(5, NM + 400)


def test_masks_are_of_the_bands_of_the_snapshot(tmp_path):
    write_measurement(tmp_path / "y.h5", measurement())
    for name, nm in (("reversed", NM[::-1]), ("far", NM + 400)):
        write_measurement(tmp_path / f"{name}.h5", measurement(nm))
        refused(read_measurement, tmp_path / "y.h5", mask=tmp_path / f"{name}.h5")
        given = read_measurement(tmp_path / "y.h5", mask=tmp_path / f"{name}.h5", wavelengths="450:650:5")
        assert given.wavelengths.tolist() == NM.tolist()
    with h5py.File(tmp_path / "scene.h5", "w") as file:  # its wavelengths are of another thing
        file["mask"], file["wavelengths"] = MASK, np.arange(31) * 10 + 400.0
    assert read_measurement(tmp_path / "y.h5", mask=tmp_path / "scene.h5").wavelengths.tolist() == NM.tolist()


def test_a_side_response_has_the_bands_of_the_camera():
    A = cassi.CASSI.from_step(torch.from_numpy(MASK), 1, 5)
    picture = np.random.default_rng(1).random((32, 32, 3))
    side = cassi.SidePicture(picture, response=np.ones((3, 4)))
    refused(cassi.reconstruct, A @ torch.from_numpy(RISING), MASK, num_bands=5, side=side, camera="as-given")


NAMES = {
    "532": 532, "532.5nm": 532.5, "532,5nm": 532.5, "532p5nm": 532.5, "532nm_10nm": 532, "fwhm10nm_532nm": 532,
    "0.532um": 532, "12bit_532_nm": 532, "532 nm FWHM 1.5 nm": 532, "532nm-450nm": None, "5nm": None, "532_5": None,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_of_frames(tmp_path, name):
    for kind in ("dark", "flat", f"mask_{name}{'nm' if name == '532' else ''}", "mask_650nm"):
        np.save(tmp_path / f"{kind}.npy", np.ones((4, 4)))
    if NAMES[name] is None:
        refused(find_frames, tmp_path)
    else:
        assert sorted(find_frames(tmp_path).wavelengths.tolist()) == [NAMES[name], 650]
