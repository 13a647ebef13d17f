"""A new camera, stage, option or format is a file or an entry, as CONTRIBUTING.md says; with examples."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_optics_contract as contract
import test_solvers_contract as solvers
import torch

import cassi
from cassi.choice import automatic, stages
from cassi.choice.chain import STAGES
from cassi.choice.plan import Plan
from cassi.files import read_measurement
from cassi.files.opening import FORMATS

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
Example = Callable[[str], dict[str, Any]]


@pytest.fixture
def example(tmp_path, monkeypatch) -> Example:
    """Runs the example that holds these words, and gives its names."""
    monkeypatch.chdir(tmp_path)

    def run(words: str) -> dict[str, Any]:
        (found,) = [text for text in EXAMPLES if words in text]
        assert len(found.splitlines()) < 30
        names: dict[str, Any] = {"__name__": "example"}
        exec(compile(found, "CONTRIBUTING.md", "exec", dont_inherit=True), names)
        return names

    return run


def test_a_camera(example, capsys):
    A = example("class FilterArray")["FilterArray"]((torch.arange(4)[:, None] + torch.arange(5)) % 3)
    assert float(re.search(r"[\d.]+", capsys.readouterr().out).group()) == pytest.approx(1, abs=0.02)
    A.dtype, A.tol, A.max_iters = torch.float64, 1e-13, 500
    matrix = np.stack([A.forward(x).numpy().ravel() for x in torch.eye(60, dtype=A.dtype).view(60, 3, 4, 5)], axis=1)
    case, (solve, dense) = contract.Case(A, matrix), solvers.METHODS["admm"]
    contract.test_both_directions_are_the_matrix(case)
    for check in (
        contract.test_arguments_are_not_modified, contract.test_no_buffer_is_shared,
        contract.test_the_pseudo_inverse_is_that_of_moore_and_penrose,
        partial(solvers.test_the_iterates_are_those_of_the_equations, solve=solve, dense=dense),
        solvers.test_every_solver_takes_every_camera,
    ):  # fmt: skip
        check(case)


def test_a_prior_and_a_stage_as_they_are_written_there(example, capsys):
    assert len(EXAMPLES) == 5
    example("def smooth(")
    example("class Smooth(Stage)")
    prior, stages = capsys.readouterr().out.splitlines()
    assert float(prior) < 0.01 and stages == "(Tv(num_iters=50), Smooth(size=3))"


@dataclass(frozen=True)
class Dimmed(stages.Stage):
    """A stage as a stranger would write it: the cube times a factor."""

    factor: float
    name = words = "dimmed"
    cost = 1.0

    def run(self, A, y, problem, state, watch) -> stages.State:
        return replace(state, x=self.factor * state.x, stages=(*state.stages, self))


@pytest.mark.parametrize(("factor", "kept"), [(0.95, True), (0.0, False)])
def test_a_stage_of_the_default_solver(monkeypatch, factor, kept):
    """In a chain of `default_stages` it is judged like the others; in `STAGES` its plan is saved and repeated."""
    monkeypatch.setattr(automatic, "default_stages", lambda A, method: (stages.Tv(50), ((Dimmed(factor),),)))
    monkeypatch.setitem(STAGES, "dimmed", Dimmed)
    A = cassi.CASSI.from_step(torch.rand(32, 32, generator=torch.Generator().manual_seed(0)), step=1, num_bands=4)
    x = torch.rand(4, 32, 32, generator=torch.Generator().manual_seed(1))
    found = cassi.reconstruct(A @ x, A)
    assert found.plan.stages[:2] == (stages.Tv(50), *([Dimmed(factor)] if kept else []))
    plan = Plan.from_dict(found.plan.as_dict())
    assert plan.stages == found.plan.stages
    assert float((cassi.reconstruct(A @ x, A, plan=plan).cube - found.cube).norm() / x.norm()) < 0.1


TRIED = """
import contextlib, io, runpy
from cassi.cli.main import main
from cassi.cli.options import check, parser_of
from cassi.errors import InputError
from cassi.settings import Settings

assert Settings().restarts == 1 and Settings(restarts=3).as_dict()["restarts"] == 3
for wrong, kind in (({"restarts": 0}, "range"), ({"restarts": 2, "solver": "gap-tv"}, "conflict")):
    try:
        raise SystemExit(f"accepted: {Settings(**wrong)}")
    except InputError as error:
        assert error.kind == kind, error
parser = parser_of("reconstruct", "cassi reconstruct", "", "")
assert parser.parse_args(["m.h5", "--restarts", "3"]).restarts == 3 and "--restarts N" in parser.format_help()
try:
    check("reconstruct", parser.parse_args(["m.h5", "--restarts", "3", "--solver", "gap-tv"]))
except InputError as error:
    assert str(error).startswith("--restarts needs --solver auto"), error
made = runpy.run_path("docs/make_tables.py")
assert "restarts: int" in made["keywords"]() and "`--restarts N`" in made["tables"]()["reconstruct"]
"""


def test_a_setting(tmp_path):
    """One field, and no other edit: checked, parsed, in the help, recorded, on the page of options, and typed."""
    (field,) = [text for text in EXAMPLES if "restarts" in text]
    for folder in ("cassi", "docs"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.safetensors", "*.png", "__pycache__")
        )
    source = tmp_path / "cassi" / "settings.py"
    before = "    device: str"
    source.write_text(source.read_text().replace(before, f"{field}{before}", 1))
    subprocess.run([sys.executable, "-c", TRIED], cwd=tmp_path, env={**os.environ, "PYTHONPATH": "."}, check=True)


def test_a_file_format(example, monkeypatch, capsys):
    """With its line in the table of formats, a measurement is read from it as from any other."""
    monkeypatch.setattr("cassi.files.opening.FORMATS", (*FORMATS, example("def open_raw")["RAW"]))
    m = read_measurement("a.raw", mask=np.eye(2, 2, dtype=np.float32), num_bands=2)
    assert m.y.shape == (2, 3) and m.shifts == (0, 1)
    assert capsys.readouterr().out == "measurement (2, 3) uint16\n"
