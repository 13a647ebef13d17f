"""The notebooks of the documentation: every cell runs, in order, from the folder they lie in; no outputs are kept."""

import ast
import json
from pathlib import Path

import pytest

from cassi.choice import automatic
from cassi.choice.stages import NonLocal, Tv

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, monkeypatch):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    monkeypatch.chdir(path.parent)
    # that the cells run is what is tested
    monkeypatch.setattr(automatic, "default_stages", lambda A, method: (Tv(6), ((NonLocal(0.5, 2),),)))
    names: dict[str, object] = {"__name__": "__main__"}
    shown = []
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == [] and cell["execution_count"] is None, f"cell {number} keeps its output: strip it"
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{path.name}, cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):  # what a notebook shows
            value = eval(compile(ast.Expression(last.value), f"{path.name}, cell {number}", "eval"), names)
            shown.append(getattr(value, "_repr_html_", value.__repr__)())
    assert any("<img" in text for text in shown), "no picture of a result was shown"


def test_there_are_two():
    assert len(NOTEBOOKS) == 2
