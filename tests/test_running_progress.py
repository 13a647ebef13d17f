"""How far a run is: the steps, in order, in shares that only grow, for one snapshot, stacks, tiles and the program."""

import re
import time

import pytest
import torch
from cases import write_h5

import cassi
import cassi.looking.figures
from cassi.cli.main import main
from cassi.optics.measurement import Measurement
from cassi.running import progress
from cassi.running.progress import StepBar, expected_steps
from cassi.running.tiling import reconstruct_tiled
from cassi.settings import Settings

SIZE, C = 48, 5
GENERATOR = torch.Generator().manual_seed(4)
MASK = (torch.rand(SIZE, SIZE, generator=GENERATOR) > 0.5).float()
CAMERA = cassi.CASSI.from_step(MASK, 1, C)
Y = CAMERA.forward(torch.rand(C, SIZE, SIZE, generator=GENERATOR))


class Told:
    """Keeps what it was told, and that it made sense."""

    def __init__(self) -> None:
        self.steps: dict[str, list[float]] = {}

    def __call__(self, step: str, share: float) -> None:
        assert step not in list(self.steps)[:-1], "a step that was over goes on"
        shares = self.steps.setdefault(step, [])
        assert 0 <= share <= 1 and (not shares or share >= shares[-1])
        shares.append(share)


@pytest.mark.parametrize(("solver", "seldom"), [("auto", 20), ("gap-tv", 10)])
def test_every_step_is_told_and_grows(solver, seldom):
    told = Told()
    cassi.reconstruct(Y, MASK, num_bands=C, solver=solver, progress=told)
    assert list(told.steps) == list(expected_steps(Settings(solver=solver)))
    assert len(told.steps["final run"]) >= seldom
    assert told.steps["final run"][-1] > (0.5 if solver == "auto" else 0.9)  # total variation may converge


def test_what_is_told_of_a_stack_an_uncertainty_and_tiles(tmp_path):
    told = Told()
    cassi.reconstruct(torch.stack([Y, Y]), MASK, num_bands=C, solver="gap-tv", num_iters=2, progress=told)
    assert list(told.steps) == ["find the camera", "run 1 of 2, final run", "run 2 of 2, final run"]
    told = Told()
    plan = cassi.reconstruct(Y, CAMERA, num_iters=2, uncertainty=True, progress=told).plan
    assert list(told.steps) == ["trials", "final run", "error bars"]
    assert told.steps["error bars"] == [0.25, 0.5, 0.75]
    m = Measurement(y=Y.numpy(), mask=MASK.numpy(), shifts=CAMERA.shifts)
    for name, settings in (("cube", {"num_iters": 2}), ("planned", {"plan": plan})):
        told = Told()
        reconstruct_tiled(m, tmp_path / f"{name}.h5", tile=24, reach=4, **settings, progress=told)
        assert list(told.steps) == expected_steps(Settings(**settings), tiled=True)
        assert told.steps["tiles"] == [0.25, 0.5, 0.75, 1.0]
    told = Told()
    cassi.reconstruct(Y, CAMERA, plan=plan, progress=told)
    assert list(told.steps) == ["final run"] == list(expected_steps(Settings(plan=plan), search=False))


def test_shares_only_grow_and_no_step_goes_back():
    with StepBar(["read", "solve", "draw"], shown=False) as bar:
        bar("read", 0.7)
        bar("solve", 0.5)
        assert (bar.step, bar.share) == ("solve", 0.5)
        for step, share in (("solve", 0.2), ("something else", 1.0), ("read", 1.0)):
            bar(step, share)
            assert (bar.step, bar.share) == ("solve", 0.5)
        bar.expect(["read", "search", "solve", "draw"])
        bar("draw", 3.0)
        assert (bar.step, bar.share) == ("draw", 1.0)


def test_a_log_gets_a_line_for_each_step(capsys):
    with StepBar(["read", "find", "solve"]) as bar:
        for name in ("read", "find", "solve"):
            for share in (0.0, 0.5, 1.0):
                bar(name, share)
    with StepBar(["frames"]) as bar:
        bar("frames")
    expected = ["step 1 of 3: read", "step 2 of 3: find", "step 3 of 3: solve", "frames"]
    assert capsys.readouterr().err.splitlines() == expected


def test_on_a_terminal_there_is_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(progress, "on_screen", lambda: True)
    monkeypatch.setattr(progress, "DELAY", 1e-9)
    with StepBar(["read", "solve"]) as bar:
        bar("read")
        time.sleep(0.2)
        bar("solve", 0.0)
        time.sleep(0.2)
        bar("solve", 0.62)
    shown = capsys.readouterr().err
    assert "step 1 of 2: read |" in shown and "step 2 of 2: solve |" in shown
    assert "62%, 00:00 so far, about 00:00 left" in shown, "of this step"
    monkeypatch.delattr(progress, "tqdm")  # its lock is not for threads that show nothing
    with StepBar(["read"], shown=False) as bar:
        bar("read", 1.0)
    assert capsys.readouterr().err == ""


def test_the_program_counts_all_its_steps(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cassi.looking.figures, "figures_of", lambda data, **look: print("drawn") or {})
    write_h5(tmp_path / "m.h5", measurement=Y.numpy(), mask=MASK.numpy())
    argv = ["reconstruct", str(tmp_path / "m.h5"), "--num-bands", str(C), "--solver", "gap-tv", "--iterations", "3"]
    assert main([*argv, "--report"]) == 0
    captured = capsys.readouterr()
    steps = re.findall(r"^step (\d) of 6: ([\w ]+)$", captured.err, re.MULTILINE)
    names = ["read", "find the camera", "final run", "write", "draw figures", "write the page"]
    assert steps == [(str(k), name) for k, name in enumerate(names, 1)]
    assert captured.out.index(f"  the cube is written: {tmp_path / 'm_cube.h5'}") < captured.out.index("drawn")
    assert main([*argv, "--overwrite", "--figures", "none", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "step" not in captured.err


def test_a_log_says_how_long_the_rest_takes(monkeypatch, capsys):
    """A line as a step begins, then one every ten seconds; none once it is done."""
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    with StepBar(["fit", "judge"]) as bar:
        for step in ("fit", "judge"):
            for k in range(8):
                bar(step, k / 8)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "step 1 of 2: fit" and "step 2 of 2: judge" in said
    between = [line for line in said if line.startswith("fit: ")]
    assert between == ["fit: 38%, 00:12 so far, about 00:20 left", "fit: 75%, 00:24 so far, about 00:08 left"]
    with StepBar(["fit"], shown=False) as bar:
        bar("fit", 0.5)
    assert capsys.readouterr().err == ""


def test_a_camera_is_refined_in_steps_that_grow(monkeypatch):
    """Frames of one stack have one name: each is a step of its own."""
    from cassi.self_calibration import refined_camera
    from cassi.self_calibration.found_camera import FoundCamera

    def find(*measurements, report, **how):
        for share in (0.0, 0.5, 1.0):
            report(share)
        return FoundCamera.as_given(measurements[0])

    monkeypatch.setattr(refined_camera, "find_camera", find)
    monkeypatch.setattr(refined_camera, "of_scenes_of_their_own", lambda captures, _: range(len(captures)))
    monkeypatch.setattr(refined_camera, "predictions", lambda *given, **how: 0.1)
    captures = [Measurement(Y.numpy(), MASK.numpy(), tuple(range(C)), source="stack.h5")] * 3
    told = Told()
    refined_camera.calibrate_from_captures(captures, progress=told)
    steps = refined_camera.fit_steps(["stack.h5"] * 3)
    assert list(told.steps) == steps and len(set(steps)) == 5
    assert len(refined_camera.fit_steps(["a"])) == 2
