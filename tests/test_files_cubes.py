"""Cubes that are turned, at other wavelengths, or in other formats: against loops, closed forms and the file itself."""

import itertools
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
import torch
from messages import check_refusal, refused

import cassi
from cassi.cli.main import main
from cassi.files import read_cube, write_cube
from cassi.files.cubes import (
    TURNS,
    check_turned_alike,
    export_cube,
    parse_output_bands,
    resample,
    resampling,
    turn,
    turn_of,
)
from cassi.looking.regions import Region, spectrum_of
from cassi.looking.report_data import read_report
from cassi.priors.spectral_basis import resolution, smooth_basis

NM = np.array([450.0, 470, 500, 540, 590, 650])


PLACES = {  # where a pixel (i, j) of a picture (m + 1, n + 1) lies once that is turned clockwise
    "none": lambda i, j, m, n: (i, j), "90": lambda i, j, m, n: (j, m - i), "flip": lambda i, j, m, n: (m - i, j),
    "270": lambda i, j, m, n: (n - j, i), "180": lambda i, j, m, n: (m - i, n - j),
}  # fmt: skip


@pytest.mark.parametrize("how", TURNS)
def test_pictures_are_turned(how):
    picture = np.random.default_rng(0).random((5, 8))
    expected = np.empty(picture.shape if how in ("none", "180", "flip") else picture.shape[::-1])
    for i, j in np.ndindex(5, 8):
        expected[PLACES[how](i, j, 4, 7)] = picture[i, j]
    assert np.array_equal(turn(picture, how), expected)
    assert np.array_equal(turn(torch.as_tensor(picture)[None], how)[0].numpy(), expected)


def test_turns_after_each_other_are_one_turn(tmp_path):
    """All pairs, by pictures; two files that are turned alike by other steps are compared, and turned back."""
    picture = np.random.default_rng(0).random((5, 8))
    for pair in itertools.product(TURNS, repeat=2):
        there, how = turn(turn(picture, pair[0]), pair[1]), turn_of(*pair)
        assert np.array_equal(turn(picture, how), there) and np.array_equal(
            turn(there, turn_of(how, back=True)), picture
        )
        assert len(how.split(", ")) == 1 or how.endswith("0, flip")
    write_cube(tmp_path / "none.h5", np.random.default_rng(0).random((6, 5, 8)), wavelengths=NM)
    export_cube(tmp_path / "none.h5", tmp_path / "once.h5", turn_result="180")
    export_cube(tmp_path / "none.h5", tmp_path / "half.h5", turn_result="90")
    export_cube(tmp_path / "half.h5", tmp_path / "twice.h5", turn_result="90")
    export_cube(tmp_path / "half.h5", tmp_path / "back.h5", turn_result="270")
    for a, b in (("once", "twice"), ("none", "back")):
        assert main(["compare", *(str(tmp_path / f"{name}.h5") for name in (a, b))]) == 0
    refused(turn_of, "around")


def test_other_wavelengths_meet_the_bands_and_smooth_spectra_between_them():
    """Straight lines are met everywhere, as natural splines do; a smooth spectrum nearly; the bands exactly."""
    wanted = np.arange(400.0, 700, 5)
    inside, weights, _ = resampling(NM[::-1], wanted)
    assert inside.tolist() == [w for w in wanted if 450 <= w <= 650]
    cube = np.stack([np.full((2, 3), 2 * nm + 1) for nm in NM[::-1]]).astype(np.float32)
    assert np.allclose(resample(cube, weights)[:, 1, 2], 2 * inside + 1, rtol=1e-6)
    bell = np.exp(-(((NM - 550) / 90) ** 2))
    between, same = resampling(NM, NM).weights, resampling(NM, inside).weights
    assert np.allclose(between, np.eye(6), atol=1e-12)
    assert np.abs(same @ bell - np.exp(-(((inside - 550) / 90) ** 2))).max() < 0.03
    spread = resample(torch.ones(6, 2, 3), weights, spread=True)
    assert spread.shape == (len(inside), 2, 3) and spread.min() >= 0.9, "errors of neighbors go together"


@pytest.mark.parametrize("text", ["400", "400:300:5", "400:500:0", "400:500:x", "unknown", "0:9e9:1"])
def test_output_bands_that_are_none(text):
    refused(resampling, NM, text)


def test_output_bands_that_are_none_are_refused_before_anything_is_read(tmp_path, capsys):
    """Here nothing can be read: the message is that of the bands."""
    (tmp_path / "m.h5").write_bytes(b"damaged")
    for way in ({}, {"mask": tmp_path / "m.h5"}):
        refused(cassi.reconstruct, tmp_path / "m.h5", output_bands="450:x:5", **way)
    refused(export_cube, tmp_path / "m.h5", tmp_path / "n.h5", output_bands="450:x:5")
    check_refusal(capsys, main(["reconstruct", str(tmp_path / "m.h5"), "--output-bands", "450:x:5"]))


def test_output_bands_as_typed():
    assert parse_output_bands("500:520:10nm").tolist() == parse_output_bands("500,510,520").tolist() == [500, 510, 520]
    assert len(parse_output_bands("cave-31")) == 31 and parse_output_bands([5.0]).tolist() == [5]
    refused(resampling, None, NM)


def test_what_a_basis_resolves():
    """K cosines over L resolve 1.2 L / K (Dirichlet); single bands their gap."""
    nm = np.linspace(400, 700, 301)
    for K in (6, 12, 20):
        assert np.median(resolution(smooth_basis(nm, K), nm)) == pytest.approx(1.207 * 300 / K, rel=0.05)
    assert resolution(torch.eye(6, dtype=torch.float64), NM) == pytest.approx(np.gradient(NM))


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A small default run, with error bars and a truth."""
    folder = tmp_path_factory.mktemp("views")
    for words in (
        f"simulate --size 40x48 --num-bands 6 --full-well 10000 --output {folder}/m.h5 --quiet",
        f"reconstruct {folder}/m.h5 --uncertainty --prior tv --quality fast --figures none --quiet",
    ):
        assert main(words.split()) == 0
    return folder / "m_cube.h5"


@pytest.mark.parametrize("suffix", [".h5", ".nc", ".mat", ".npz", ".tif", ".hdr"])
def test_every_format_gives_the_cube_back_and_says_how_it_is_turned(result, tmp_path, suffix, capsys):
    target, (expected, wavelengths) = tmp_path / f"a{suffix}", read_cube(result)
    assert main(["export", str(result), str(target), "--turn-result", "90"]) == 0
    cube, nm = read_cube(target)
    assert np.array_equal(cube, np.rot90(expected, -1, (1, 2))) and np.allclose(nm, wavelengths)
    check_refusal(capsys, main(["export", str(result), str(target)]))
    refused(check_turned_alike, target, result)
    export_cube(target, tmp_path / "back.h5", turn_result="270")
    check_turned_alike(tmp_path / "back.h5", result)


def test_everything_is_turned_and_named(result, tmp_path):
    export_cube(result, tmp_path / "a.h5", turn_result="180")
    export_cube(tmp_path / "a.h5", tmp_path / "b.mat", turn_result="flip", output_bands="450:650:20")
    with h5py.File(result) as before, h5py.File(tmp_path / "a.h5") as after:
        for name in ("cube", "truth", "uncertainty", "measurement", "residual"):
            assert np.array_equal(after[name][:], before[name][:][..., ::-1, ::-1]), name
        assert np.array_equal(after["history/residual"][:], before["history/residual"][:])
        assert after.attrs["turned"] == "180" and after.attrs["choice"] == before.attrs["choice"]
        assert 20 < before.attrs["resolution_nm"] < 100
    mat = scipy.io.loadmat(tmp_path / "b.mat")
    assert str(mat["attributes"]["turned"].item().item()) == "180, flip"
    assert min(mat["cube"].shape) == 11 == min(mat["uncertainty"].shape)


def test_a_run_makes_the_same_as_an_export(result, tmp_path, capsys):
    how = {"turn_result": "270", "output_bands": "450:650:20"}
    made = cassi.reconstruct(result.with_name("m.h5"), prior="tv", quality="fast", uncertainty=True, **how)
    made.save(tmp_path / "made.h5")
    export_cube(result, tmp_path / "exported.h5", **how)
    with h5py.File(tmp_path / "made.h5") as a, h5py.File(tmp_path / "exported.h5") as b:
        for name in ("cube", "truth", "uncertainty", "measurement", "residual", "wavelengths"):
            np.testing.assert_allclose(a[name][:], b[name][:], rtol=1e-3, atol=1e-3, err_msg=name)
        assert a.attrs["turned"] == b.attrs["turned"] and a.attrs["resolution_nm"] == b.attrs["resolution_nm"]
    there = spectrum_of(read_report(tmp_path / "made.h5"), Region.box(0, 0)).mean  # a corner, by what is seen
    cube, _ = read_cube(result)
    assert there[::1][0] == pytest.approx(cube[0, 0, -1], abs=1e-3)


def test_a_folder_is_exported_and_tabulated(result, tmp_path, capsys):
    folder = tmp_path / "cubes"
    folder.mkdir()
    for name in ("a", "b"):
        export_cube(result, folder / f"{name}_cube.h5")
    assert main(["export", str(folder), str(tmp_path / "out"), "--format", "tif", "--output-bands", "500:600:50"]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a_cube.tif", "b_cube.tif"]
    assert "interpolated to 3 wavelengths, 500 to 600 nm; it resolves about" in capsys.readouterr().out
    check_refusal(capsys, main(["export", str(folder), str(tmp_path / "other")]))
    leaf = {"name": "leaf", "corners": [[2, 2], [2, 5], [5, 5], [5, 2]]}
    (tmp_path / "r.json").write_text(json.dumps({"regions": [leaf]}))
    assert main(["export", str(folder), str(folder), "--format", "tif"]) == 0, "beside, where each counts once"
    assert main(["export", str(folder), str(tmp_path / "mat"), "--format", "mat", "--quiet"]) == 0
    regions, table, figure = (str(tmp_path / name) for name in ("r.json", "s.csv", "s.pdf"))
    words = f"--at spot=7,9 --regions {regions} --csv {table} --figure {figure}".split()
    assert main(["spectra", str(folder), *words]) == 0
    first, *rows = Path(table).read_text().splitlines()
    assert "a: leaf (9 px) error bar [relative radiance]" in first and "b: spot (1 px) mean" in first and len(rows) == 6
    cube, _ = read_cube(result)
    column = [part.strip('"') for part in first.split(",")].index("a: leaf (9 px) mean [relative radiance]")
    assert [float(row.split(",")[column]) for row in rows] == pytest.approx(cube[:, 2:5, 2:5].mean((1, 2)), rel=1e-5)
    check_refusal(capsys, main(["spectra", str(result)]))
    other = write_cube(tmp_path / "c_cube.h5", np.ones((3, 8, 12)), wavelengths=[500, 510, 520])
    check_refusal(capsys, main(["spectra", str(result), str(other), "--at", "3,3"]))


def test_only_what_is_turned_alike_is_compared(result, tmp_path, capsys):
    """Two cubes, and places in them; a truth in the same file is turned with it."""
    export_cube(result, tmp_path / "a.h5", turn_result="180")
    turned = str(tmp_path / "a.h5")
    check_refusal(capsys, main(["compare", turned, str(result)]))
    check_refusal(capsys, main(["compare", turned, str(result), "--at", "3,3"]))
    for other in ([], [turned], ["--at", "3,3"]):
        assert main(["compare", turned, *other]) == 0
    assert "PSNR" in capsys.readouterr().out
