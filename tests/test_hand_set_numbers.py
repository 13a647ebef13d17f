"""Numbers set by hand, in the rooms that decide: a new one is measured, and takes the place of another."""

import ast
from pathlib import Path

import cassi

ROOMS = "evidence", "choice", "calibration", "self_calibration", "running"
MAX_NUMBERS = 245  # constants of formulas among them


def is_set_by_hand(node: ast.expr, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether a constant may carry a decision: no 0, 1 or 2, index, exponent, part of a text, or size of an array."""
    if not isinstance(node, ast.Constant) or type(node.value) not in (int, float) or node.value in (0, 1, 2):
        return False
    while node in parents and not isinstance(node, ast.stmt):
        child, node = node, parents[node]
        if (isinstance(node, ast.Subscript) and child is node.slice) or isinstance(node, ast.JoinedStr):
            return False
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and child is node.right:
            return False
        if isinstance(node, ast.Compare) and any(word in ast.unparse(node) for word in ("ndim", "shape", "len(")):
            return False
        if isinstance(node, ast.keyword) and node.arg in ("dim", "axis", "order", "total", "maxsize"):
            return False
    return True


def test_there_are_no_more_than_there_were():
    count = 0
    for file in (file for room in ROOMS for file in (Path(cassi.__file__).parent / room).glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        count += sum(is_set_by_hand(node, parents) for node in ast.walk(tree))
    assert count <= MAX_NUMBERS, "what is a new one worth, and which other does it replace?"
