"""A new camera, stage, option or format is a file or an entry, as CONTRIBUTING.md says; with examples."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_optics_contract as contract
import torch

import cassi
from cassi.choice import automatic, stages
from cassi.choice.chain import STAGES
from cassi.choice.plan import Plan
from cassi.cli.main import main
from cassi.cli.options import TABLE
from cassi.files import read_cube, read_measurement, write_measurement
from cassi.files.formats.table import FORMATS
from cassi.optics.measurement import Measurement

PAGE = (Path(__file__).resolve().parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
Example = Callable[[str], dict[str, Any]]


@pytest.fixture
def example(tmp_path, monkeypatch) -> Example:
    """Runs the example that holds these words, and gives its names."""
    monkeypatch.chdir(tmp_path)

    def run(words: str) -> dict[str, Any]:
        (found,) = [text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if words in text]
        names: dict[str, Any] = {"__name__": "example"}
        exec(compile(found, "CONTRIBUTING.md", "exec", dont_inherit=True), names)
        return names

    return run


def test_a_camera(example):
    A = example("class FilterArray")["FilterArray"]((torch.arange(4)[:, None] + torch.arange(5)) % 3)
    A.dtype, A.tol, A.max_iters = torch.float64, 1e-13, 500
    matrix = np.stack([A.forward(x).numpy().ravel() for x in torch.eye(60, dtype=A.dtype).view(60, 3, 4, 5)], axis=1)
    case = contract.Case(A, matrix)
    contract.test_both_directions_are_the_matrix(case, (2,))
    for check in (
        contract.test_arguments_are_not_modified, contract.test_no_buffer_is_shared,
        contract.test_the_pseudo_inverse_is_that_of_moore_and_penrose, contract.test_admm_by_its_equations,
    ):  # fmt: skip
        check(case)
    for solver in contract.SOLVERS:
        contract.test_every_solver_takes_every_camera(case, solver)


@dataclass(frozen=True)
class Dimmed(stages.Stage):
    """A stage as a stranger would write it: the cube times a factor."""

    factor: float
    key = name = words = "dimmed"
    cost = 1.0

    def run(self, A, y, problem, state, watch) -> stages.State:
        return replace(state, x=self.factor * state.x, stages=(*state.stages, self))


@pytest.mark.parametrize(("factor", "kept"), [(0.95, True), (0.0, False)])
def test_a_stage_of_the_default_solver(monkeypatch, factor, kept):
    """In a chain of `stages_of` it is judged like the others; in `STAGES` its plan is saved and repeated."""
    monkeypatch.setattr(automatic, "stages_of", lambda A, method: (stages.Tv(50), ((Dimmed(factor),),)))
    monkeypatch.setitem(STAGES, "dimmed", Dimmed)
    A = cassi.CASSI.from_step(torch.rand(32, 32, generator=torch.Generator().manual_seed(0)), step=1, num_bands=4)
    x = torch.rand(4, 32, 32, generator=torch.Generator().manual_seed(1))
    found = cassi.reconstruct(A @ x, A)
    assert found.plan.stages == (stages.Tv(50), *([Dimmed(factor)] if kept else []))
    plan = Plan.from_dict(found.plan.as_dict())
    assert plan.stages == found.plan.stages
    assert float((cassi.reconstruct(A @ x, A, plan=plan).cube - found.cube).norm() / x.norm()) < 0.1


def test_an_option(example, monkeypatch, tmp_path, capsys):
    """One entry of the table: parsed, checked against others, and in the field of the request that has its name."""
    monkeypatch.setitem(TABLE["reconstruct"], "method", TABLE["reconstruct"]["method"])  # put back afterwards
    example("def plan(name)")
    A = cassi.CASSI.from_step(torch.rand(32, 32, generator=torch.Generator().manual_seed(0)), step=1, num_bands=4)
    y = A @ torch.rand(4, 32, 32, generator=torch.Generator().manual_seed(1))
    write_measurement("m.h5", Measurement(y.numpy(), A.mask.numpy(), A.shifts))
    plan = cassi.reconstruct(y, A, num_iters=5).plan
    Path("plan.json").write_text(json.dumps(plan.as_dict()))
    argv = ["reconstruct", "m.h5", "--plan", "plan.json", "--figures", "none", "--quiet", "--camera", "as-given"]
    assert main([*argv, "--quality", "fast"]) == 2
    assert "--plan does not go with --quality" in capsys.readouterr().err
    assert main(argv) == 0
    alone = cassi.reconstruct("m.h5", plan=Plan.from_dict(plan.as_dict()), camera="as-given").cube
    np.testing.assert_array_equal(read_cube("m_cube.h5")[0], alone.numpy())


def test_a_file_format(example, monkeypatch):
    """With its line in the table of formats, a measurement is read from it as from any other."""
    monkeypatch.setattr("cassi.files.opening.FORMATS", (*FORMATS, example("def open_raw")["RAW"]))
    m = read_measurement("a.raw", mask=np.eye(2, 2, dtype=np.float32), num_bands=2)
    assert m.y.shape == (2, 3) and m.shifts == (0, 1)
