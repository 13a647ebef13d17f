"""Many snapshots: nothing finished is lost or done again, nothing half written is ever seen, whatever happens."""

import json
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from cases import write_h5
from messages import refused, refuses
from test_priors_learned import SMALL, stirred

from cassi import CASSI, reconstruct
from cassi.cli.main import main
from cassi.files import OutputError, read_measurement
from cassi.priors.learned import LearnedPrior
from cassi.running import many
from cassi.running.fingerprint import Frame, content_of
from cassi.running.many import find_frames, reconstruct_many

SOLVE = partial(reconstruct, solver="gap-tv", num_iters=6)
N, H, W, C = 5, 16, 14, 3
MASK = (torch.rand(H, W, generator=torch.Generator().manual_seed(5)) > 0.5).float()


def snapshots(count: int = N, size: tuple[int, int] = (H, W)) -> np.ndarray:
    generator = torch.Generator().manual_seed(6)
    A = CASSI.from_step(MASK[: size[0], : size[1]], 2, C)
    return torch.stack([A.forward(torch.rand(C, *size, generator=generator)) for _ in range(count)]).numpy()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of five snapshots, frame0.h5 to frame4.h5; their mask lies beside it."""
    folder = tmp_path / "in"
    folder.mkdir()
    for k, y in enumerate(snapshots()):
        write_h5(folder / f"frame{k}.h5", measurement=y)
    write_h5(tmp_path / "mask.h5", mask=MASK.numpy())
    return folder


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    write_h5(tmp_path / "mask.h5", mask=MASK.numpy())
    return write_h5(tmp_path / "stack.h5", measurement=snapshots())


def run(source: Path, output: Path, **options) -> many.BatchReport:
    read = partial(read_measurement, mask=source.parent / "mask.h5", num_bands=C)
    frames = find_frames(source, count=N if source.is_file() else None)
    return reconstruct_many(frames, output, **{"read": read, "solve": SOLVE} | options)


def cube_of(output: Path, name: str) -> np.ndarray:
    with h5py.File(output / f"{name}_cube.h5") as file:
        return file["cube"][:]


def times(output: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in output.glob("*_cube.h5")}


def index(output: Path) -> list[dict]:
    return [json.loads(line) for line in (output / "index.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("at_once", [1, 3, None])
def test_each_frame_is_as_if_it_were_alone(folder, tmp_path, at_once):
    threads, out = torch.get_num_threads(), tmp_path / "out"
    report = run(folder, out, batch=at_once, attributes={"command_line": "reconstruct.py --all"})
    assert (report.computed, report.found, report.failed) == (N, 0, {})
    for k, y in enumerate(snapshots()):
        np.testing.assert_array_equal(cube_of(out, f"frame{k}"), SOLVE(y, MASK, num_bands=C).cube.numpy())
    assert [(line["frame"], line["status"]) for line in index(out)] == [(f"frame{k}", "done") for k in range(N)]
    assert torch.get_num_threads() == threads
    with h5py.File(out / "frame2_cube.h5") as file:
        assert (file.attrs["command_line"], file.attrs["input_name"]) == ("reconstruct.py --all", "frame2.h5")


def test_a_stack_and_a_folder_agree_and_only_what_is_missing_is_computed(stack, folder, tmp_path):
    out = tmp_path / "out"
    run(folder, out)
    run(stack, tmp_path / "frames")
    for k in range(N):
        np.testing.assert_array_equal(cube_of(tmp_path / "frames", f"stack_{k:06d}"), cube_of(out, f"frame{k}"))
    before, cube = times(out), cube_of(out, "frame3")
    (out / "frame3_cube.h5").unlink()
    assert run(folder, out).computed == 1
    after = times(out)
    assert {name for name in after if after[name] != before[name]} == {"frame3_cube.h5"}
    np.testing.assert_array_equal(cube_of(out, "frame3"), cube)
    report = run(folder, out)
    assert (report.computed, report.found) == (0, N) and times(out) == after


def test_what_was_made_otherwise_is_noticed_and_only_it_replaced(folder, tmp_path):
    out = tmp_path / "out"
    run(folder, out)
    before = times(out)
    other = partial(SOLVE, tv_weight=0.7)
    refused(run, folder, out, solve=other)
    write_h5(folder / "frame1.h5", measurement=2 * snapshots()[1])
    refused(run, folder, out)
    assert times(out) == before
    assert run(folder, out, overwrite=True).computed == 1
    assert {name for name, t in times(out).items() if t != before[name]} == {"frame1_cube.h5"}
    write_h5(tmp_path / "mask.h5", mask=1 - MASK.numpy())
    refused(run, folder, out)
    assert run(folder, out, solve=other, overwrite=True).computed == N
    assert run(folder, out, solve=other, overwrite=True).computed == 0, "the same command goes on"


def test_other_weights_are_another_solver():
    one, same, other = LearnedPrior(SMALL), LearnedPrior(SMALL), stirred()
    same.load_state_dict(one.state_dict())
    assert content_of(one) == content_of(same) != content_of(other)


def test_what_must_not_be_written_to_is_not(folder, tmp_path):
    """A file that is none of ours; a place where another run writes."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "frame4_cube.h5").write_text("precious")
    refused(run, folder, out)
    assert (out / "frame4_cube.h5").read_text() == "precious"
    pytest.importorskip("fcntl", reason="file locks are a POSIX matter")
    with many.lock_folder(tmp_path / "locked"), refuses(OutputError):
        run(folder, tmp_path / "locked")


def test_a_frame_that_fails_is_recorded_and_tried_again(folder, tmp_path):
    """A fault in the computation fails one frame with its kind."""
    out, good = tmp_path / "out", snapshots()[2]

    def solve(m, monitor):
        if m.source == "frame0.h5":
            raise FloatingPointError("diverged\nat iteration 3")
        return SOLVE(m, monitor=monitor)

    write_h5(folder / "frame2.h5", measurement=np.full_like(good, np.nan))
    (folder / "frame3.h5").write_bytes((folder / "frame3.h5").read_bytes()[:700])
    report = run(folder, tmp_path / "other", solve=solve)
    assert report.failed["frame0"] == "FloatingPointError: diverged at iteration 3" and len(report.failed) == 3
    report = run(folder, out)
    assert report.computed == N - 2 and set(report.failed) == {"frame2", "frame3"} and "NaN" in report.failed["frame2"]
    assert {line["frame"]: line["status"] for line in index(out)}["frame2"] == "failed"
    write_h5(folder / "frame2.h5", measurement=good)
    report = run(folder, out)
    assert (report.computed, report.found, set(report.failed)) == (1, N - 2, {"frame3"})


def test_a_full_disk_stops_the_run_and_loses_nothing(folder, tmp_path, monkeypatch):
    out = tmp_path / "out"
    write, written = many.write_result, []

    def until_full(path, *args, **options):
        if len(written) == 2:
            raise OutputError(f"{path}: the disk is full")
        written.append(path)
        write(path, *args, **options)

    monkeypatch.setattr(many, "write_result", until_full)
    refused(run, folder, out, error=OutputError, batch=1)
    monkeypatch.undo()
    before = times(out)
    assert len(before) == 2
    report = run(folder, out)
    assert (report.computed, report.found) == (N - 2, 2)
    assert before.items() <= times(out).items()


def test_an_interrupt_leaves_finished_frames_and_no_others(folder, tmp_path, monkeypatch):
    out = tmp_path / "out"

    def interrupted(self, step, share=0.0):
        if "snapshots" in step:  # one has ended
            raise KeyboardInterrupt

    monkeypatch.setattr(many.StepBar, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(folder, out, batch=1)
    monkeypatch.undo()
    finished = times(out)
    assert finished
    report = run(folder, out)
    assert (report.computed, report.found) == (N - len(finished), len(finished))
    assert not list(out.glob(".*.part"))


def test_frames_of_a_folder_a_pattern_and_a_stack(folder, tmp_path):
    names = [f"frame{k}" for k in range(N)]
    assert [frame.name for frame in find_frames(folder, leave_out=[folder / "frame0.h5"])] == names[1:]
    assert [frame.name for frame in find_frames(folder / "frame[13].h5")] == ["frame1", "frame3"]
    assert find_frames("s.h5", count=2) == [Frame("s_000000", "s.h5", 0), Frame("s_000001", "s.h5", 1)]
    (folder / "frame1.mat").write_bytes((folder / "frame1.h5").read_bytes())
    refused(find_frames, folder)  # two of one name
    refused(reconstruct_many, [], tmp_path / "out")
    (folder / "frame1.mat").unlink()
    refused(run, folder, tmp_path / "out", batch=0)


def command(folder: Path, *options: object) -> list[str]:
    mask = folder.parent / "mask.h5"
    argv = ["reconstruct", folder, "--mask", mask, "--num-bands", C, "--solver", "gap-tv", *options]
    return [str(a) for a in argv]


def test_integer_frames_share_one_scale(folder):
    """The dark frame alone would pass for 8 bits; its cube has the unit of the others all the same."""
    bright = np.round(1000 * snapshots()[0] / snapshots()[0].max()).astype(np.uint16)
    for k, counts in enumerate((bright, bright // 10)):
        write_h5(folder / f"frame{k}.h5", measurement=counts)
    for k in range(2, 5):
        (folder / f"frame{k}.h5").unlink()
    assert main(command(folder, "--iterations", 30, "--quiet")) == 0
    out = folder.with_name("in_cubes")
    assert 9 < (cube_of(out, "frame0").mean() / cube_of(out, "frame1").mean()) < 11
