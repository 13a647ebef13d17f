"""What a number set by hand is worth is measured with another value of it, wherever it is imported."""

import ast
import csv
import re

import benchmark as script
import pytest
from benchmarks.ablate import Change, ablate

SOURCE = "A, B = 1, (2, 3)\nC: float = 4.0\n\nclass K:\n    D, E = 5, 6\n    F = 7\n"


@pytest.mark.parametrize(
    ("names", "changed"),
    [
        (["B"], "A, B = (1, 9)"), (["C"], "C: float = 9"), (["K", "E"], "D, E = (5, 9)"), (["K", "F"], "F = 9"),
    ],
)  # fmt: skip
def test_the_constant_alone_gets_the_value(monkeypatch, names, changed):
    monkeypatch.setattr(Change, "place", ("m", "m.py", names))
    old, new = (set(text.splitlines()) for text in (ast.unparse(ast.parse(SOURCE)), ""))
    new = set(ast.unparse(Change("m", "9").replaced(SOURCE)).splitlines())
    assert [line.strip() for line in new - old] == [changed] and len(old - new) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("choice.stages.STRIDE", "not of the form NAME=VALUE"),
        ("choice.stages.STRIDE=f()", "no plain value"),
        ("choice.stages.NOWHERE=1", "no constant 'cassi.choice.stages.NOWHERE'"),
        ("choice.nowhere.STRIDE=1", "no constant|no module"),
    ],
)
def test_what_is_no_constant_is_refused(text, said, capsys):
    assert script.main(["ablate", text]) == 2
    assert re.search(said, capsys.readouterr().err)


def test_pairs_differ_where_the_constant_counts(tmp_path):
    """The stride is imported by no other module, the level of a judge by several; its own value changes nothing."""
    output, lines = tmp_path / "worth.csv", []
    changes = ["choice.stages.STRIDE=5", "evidence.judge.NOT_WORSE=1e9"]
    one = {"size": 24, "scenes": 1, "noises": ("clean",), "quality": "fast"}
    text = ablate(changes=changes, output=output, report=lines.append, **one)
    rows = list(csv.DictReader(output.open()))
    assert [row["constant"] for row in rows] == ["choice.stages.STRIDE", "evidence.judge.NOT_WORSE"]
    assert float(rows[0]["gain_db"]) == 0 and abs(float(rows[1]["gain_db"])) > 0.01, "no prior is accepted"
    assert len(lines) == 2 and text.count("| choice.") == text.count("| evidence.") == 1
