"""Names, comments, docstrings and messages in plain English: the worst of a foreign one does not come back."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

CASSI = Path(__file__).resolve().parents[1] / "cassi"
FILES = sorted(CASSI.rglob("*.py"))
FORBIDDEN = {
    r"\btold\b": "options are given, progress is reported",
    r"\btells\b": "a file states, a number shows",
    r"\banew\b": "again",
    r"\bhardly\b": "almost no, rarely",
    r"\bstands? out of\b": "is above",
    r"\btaken for\b": "treated as",
    r"\bwhat lies\b": "values",
    r"\bgone on\b": "continued",
    r"\bso many\b": "that number of",
    r"\bat the least\b": "at least",
}
LIMIT = re.compile(r"_?(FEWEST|MOST|LEAST|ENOUGH|LARGEST|SMALLEST|SHORTEST)(_|$)")


def words_of(path: Path) -> list[tuple[int, str]]:
    """Line and text of each comment, string and name."""
    source = path.read_text(encoding="utf-8")
    kinds = (tokenize.COMMENT, tokenize.STRING, tokenize.NAME, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [(t.start[0], t.string.replace("_", " ")) for t in tokens if t.type in kinds]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CASSI)))
def test_words(path: Path) -> None:
    found = [
        f"{path.name}:{line}: {match.group()!r}; say: {instead}"
        for line, text in words_of(path)
        for pattern, instead in FORBIDDEN.items()
        for match in re.finditer(pattern, text)
    ]
    assert not found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CASSI)))
def test_limits_are_min_or_max(path: Path) -> None:
    names = [
        target.id
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for one in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for target in ast.walk(one)
        if isinstance(target, ast.Name)
    ]
    assert not [name for name in names if LIMIT.match(name)]
