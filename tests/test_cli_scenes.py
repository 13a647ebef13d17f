"""`cassi reconstruct` with several shots a scene, double dispersers and video, and one line where files are wrong."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from messages import check_refusal, last_line

from cassi.cli.main import main
from cassi.files import read_cube, write_arrays
from cassi.looking.report_data import read_report
from cassi.self_calibration import search
from cassi.self_calibration.found_camera import FoundCamera
from cassi.sequence import frames as sequence, neighbors

FAST = ("--figures", "none", "--solver", "least-squares", "--iterations", "2")


def run(*argv: object) -> int:
    return main(["reconstruct", *map(str, argv)])


def simulate(path: Path, *options: str, pixels: int = 40) -> Path:
    size = ("--size", str(pixels), "--num-bands", "4", "--mask", "grey", "--output", str(path))
    assert main(["simulate", *options, *size]) == 0
    return path


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """Two shots in one file, and the same as files of each shot and each mask."""
    path = simulate(tmp_path / "scene.h5", "--shots", "2")
    with h5py.File(path) as file:
        for k in range(2):
            write_arrays(tmp_path / f"shot{k}.h5", {"measurement": file["measurement"][k]})
            write_arrays(tmp_path / f"mask{k}.h5", {"mask": file["mask"][k]})
        write_arrays(tmp_path / "masks.h5", {"mask": file["mask"][:]})
    return path


def test_files_of_shots_and_a_stack_give_one_cube(scene, tmp_path):
    assert run(scene, *FAST) == 0
    files = [tmp_path / f"{name}{k}.h5" for name in ("shot", "mask") for k in range(2)]
    # of two shots one before the options, one after them
    assert run(files[0], "--mask", *files[2:], "--num-bands", 4, files[1], *FAST) == 0
    one = read_cube(tmp_path / "scene_cube.h5")[0]
    assert one.shape == (4, 40, 40)
    np.testing.assert_allclose(read_cube(tmp_path / "shot0_cube.h5")[0], one, rtol=1e-5, atol=1e-6)
    assert run("--measurement", *files[:2], "--mask", tmp_path / "masks.h5", "--shots", 2, "--num-bands", 4,
               "--output", tmp_path / "tiled.h5", "--tile", 36, *FAST[4:]) == 0  # fmt: skip
    assert read_cube(tmp_path / "tiled.h5")[0].shape == (4, 40, 40)


def test_a_folder_of_scenes_is_a_batch_that_resumes(scene, tmp_path, capsys):
    (tmp_path / "night").mkdir()
    for k in range(4):
        (tmp_path / "night" / f"s{k}.h5").write_bytes((tmp_path / f"shot{k % 2}.h5").read_bytes())
    command = (tmp_path / "night", "--mask", tmp_path / "masks.h5", "--shots", 2, "--num-bands", 4, *FAST[2:])
    assert run(*command) == 0
    assert sorted(p.name for p in (tmp_path / "night_cubes").glob("*_cube.h5")) == ["s0_cube.h5", "s2_cube.h5"]
    assert "2 already finished" in last_line(capsys, run(*command))
    assert "2 snapshots, s0 to s2" in last_line(capsys, run(*command, "--dry-run"))


def test_files_with_masks_of_their_own_have_no_camera_in_common(tmp_path, monkeypatch, capsys):
    searched, find = [], search.find_camera
    monkeypatch.setattr(search, "find_camera", lambda *m, **_: searched.append(len(m)) or find(*m, **_))
    (tmp_path / "night").mkdir()
    for k in range(2):
        simulate(tmp_path / "night" / f"s{k}.h5", "--seed", str(k))
    capsys.readouterr()
    camera = ("--save-camera", tmp_path / "camera.h5")
    assert run(tmp_path / "night", *FAST[:2], "--prior", "tv", "--iterations", "5", "--batch", "1", *camera) == 0
    assert searched == [1, 1]
    said = capsys.readouterr()
    assert "have different masks" in said.out.splitlines()[0] and "camera.h5 is not written" in said.err


def test_every_file_of_a_folder_is_asked_for_its_mask(tmp_path, monkeypatch, capsys):
    """Also those that the camera is not found from, of which there are five here."""
    monkeypatch.setattr(search, "find_camera", lambda *m, **_: searched.append(len(m)) or FoundCamera.as_given(m[0]))
    (tmp_path / "night").mkdir()
    for k in range(9):
        simulate(tmp_path / "night" / f"s{k}.h5", "--seed", "0")
    searched: list[int] = []
    assert run(tmp_path / "night", "--figures", "none", "--prior", "tv", "--iterations", "1") == 0 and searched == [4]
    simulate(tmp_path / "night" / "s6.h5", "--seed", "1", "--overwrite")
    searched.clear()
    capsys.readouterr()
    assert run(tmp_path / "night", "--prior", "tv", "--iterations", "1", "--overwrite") == 0 and searched == [1] * 9
    assert "s0.h5 and s6.h5" in capsys.readouterr().out.splitlines()[0]


def test_shots_in_another_order_than_their_masks_are_told(scene, tmp_path, capsys):
    shots, masks = ([tmp_path / f"{name}{k}.h5" for k in order] for name, order in (("shot", (1, 0)), ("mask", (0, 1))))
    assert run("--measurement", *shots, "--mask", *masks, "--num-bands", 4, *FAST) == 0
    assert "shot 1: wrong mask" in capsys.readouterr().err
    assert run(scene, "--figures", "none", "--iterations", 2) == 0
    assert "taken as given: it is found from scenes of one shot only" in capsys.readouterr().out


def test_what_cannot_be_is_one_line(scene, tmp_path, capsys):
    shot, mask = tmp_path / "shot0.h5", tmp_path / "mask0.h5"
    for argv in (
        (shot, shot, shot, "--mask", mask, mask), (shot, "--mask", mask, "--shots", 3), (scene, "--shots", 3),
        (scene, "--mask", mask, mask, mask), (scene, "--mask", mask, mask, "--shots", 3),
        (scene, "--calibration", mask),
    ):  # fmt: skip
        check_refusal(capsys, run(*argv))


def test_a_sequence_becomes_one_file_with_a_time_axis_and_resumes(tmp_path, capsys, monkeypatch):
    path = simulate(tmp_path / "film.h5", "--frames", "2", "--motion", "0.7", "--seed", "1", pixels=48)
    command = ("--sequence", path, "--camera", "as-given", "--batch", 2)
    assert "each with its neighbors" in last_line(capsys, run(*command, "--dry-run"))
    made = []
    monkeypatch.setattr(
        sequence, "reconstruct_single_frame",
        lambda *of, **more: made.append(0) or neighbors.reconstruct_single_frame(*of, **more),
    )  # fmt: skip
    assert run(*command) == 0 and len(made) == 2  # each frame once, whoever needs it
    values, wavelengths = read_cube(tmp_path / "film_sequence.h5")
    assert values.shape == (2, 4, 48, 48) and len(wavelengths) == 4
    with h5py.File(tmp_path / "film_sequence.h5") as file:
        assert file["measurement"].shape == file["residual"].shape == (2, 48, 54)
        truth = np.asarray(file["truth"])
    assert np.abs(values - truth).mean() < 0.15 * truth.mean()
    assert run(path, "--camera", "as-given", "--figures", "none", "--output", tmp_path / "alone") == 0
    alone = np.stack([read_cube(file)[0] for file in sorted((tmp_path / "alone").glob("*_cube.h5"))])
    assert np.abs(values - truth).mean() < 0.9 * np.abs(alone - truth).mean()
    assert (tmp_path / "film_sequence.gif").read_bytes().startswith(b"GIF8")
    capsys.readouterr()
    (tmp_path / "film_sequence_frames" / "film_000001_cube.h5").unlink()
    for more in (("--dry-run",), ()):  # the file is finished
        assert "film_sequence" in last_line(capsys, run(*command, *more))
    assert len(made) == 2
    check_refusal(capsys, run(*command, "--seed", 1))
    assert "1 already finished" in last_line(capsys, run(*command, "--overwrite", "--figures", "none"))
    np.testing.assert_array_equal(read_cube(tmp_path / "film_sequence.h5")[0], values)
    path = simulate(tmp_path / "single.h5", pixels=48)
    assert run("--sequence", path, "--camera", "as-given") == 0
    assert read_cube(tmp_path / "single_sequence.h5")[0].shape == (1, 4, 48, 48)
    capsys.readouterr()
    for argv in ((*command, "--tile", 40), (*command, "--output", tmp_path / "x.mat")):
        check_refusal(capsys, run(*argv))


def test_of_a_sequence_is_told_where_the_mask_does_not_belong(tmp_path, capsys, monkeypatch):
    """In the run, and in the file; a black frame among others, too."""
    for iterations in ("SINGLE_FRAME_ITERS", "MULTI_FRAME_ITERS"):  # what is told comes from snapshots, not from cubes
        monkeypatch.setattr(neighbors, iterations, 2)
    path = simulate(tmp_path / "film.h5", "--frames", "3", "--motion", "0.7")
    with h5py.File(path) as file:
        y, mask = file["measurement"][:], file["mask"][:]
    wrong = write_arrays(tmp_path / "wrong.h5", {"mask": np.random.default_rng(0).permutation(mask)})

    def said_of(path: Path, code: int, *mask: object, words: str) -> str:
        assert run("--sequence", path, *command, *mask) == code
        said = capsys.readouterr()
        assert words in said.err
        return said.out.splitlines()[-1] if said.out else ""

    command = ("--num-bands", 4, "--camera", "as-given", "--batch", 1, "--figures", "none")
    assert "3 not fitting the mask" in said_of(path, 0, "--mask", wrong, words="film_000002: wrong mask")
    data = read_report(tmp_path / "film_sequence.h5")
    assert not data.ok and data.verdict.startswith("3 of 3 frames do not fit the mask; wrong mask")
    y[1] = 0
    gap = write_arrays(tmp_path / "gap.h5", {"measurement": y, "mask": mask})
    assert "1 not fitting the mask" in said_of(gap, 0, words="gap_000001: the snapshot is black")
    y[0, 3, 3] = np.nan
    nan = write_arrays(tmp_path / "nan.h5", {"measurement": y, "mask": mask})
    said_of(nan, 1, words="nan_sequence.h5 is not written without all frames")
    assert len(list((tmp_path / "nan_sequence_frames").glob("*.h5"))) == 2


def test_simulate_says_what_it_photographed(tmp_path, capsys):
    simulate(tmp_path / "video.h5", "--frames", "2", "--motion", "1.5")
    assert "2 frames of a scene that moves by 1.5 px from one to the next" in capsys.readouterr().out
    simulate(tmp_path / "shots.h5", "--shots", "3")
    assert "3 shots, detector 40 x 46 px, no noise" in capsys.readouterr().out
