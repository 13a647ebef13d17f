"""Names, comments, docstrings and messages in plain English: the worst of a foreign one does not come back."""

import ast
import io
import re
import tokenize
from pathlib import Path

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
    r"\b(go|goes|went|gone|going) on\b": "continue",
    r"\bbrings?\b.{0,40}\balong\b": "have, state",
    r"\bhave unlike\b": "differ in",
    r"\bso many\b": "that number of",
    r"\bat the least\b": "at least",
}
ANY = re.compile("|".join(FORBIDDEN))
LIMIT = re.compile(r"_?(FEWEST|MOST|LEAST|ENOUGH|LARGEST|SMALLEST|SHORTEST)(_|$)")


def words_of(path: Path) -> list[tuple[int, str]]:
    """Line and text of each comment, string and name."""
    source = path.read_text(encoding="utf-8")
    kinds = (tokenize.COMMENT, tokenize.STRING, tokenize.NAME, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [(t.start[0], t.string.replace("_", " ")) for t in tokens if t.type in kinds]


def test_words() -> None:
    found = [
        f"{path.relative_to(CASSI)}:{line}: {match.group()!r}; say: {instead}"
        for path in FILES
        for line, text in words_of(path)
        if ANY.search(text)
        for pattern, instead in FORBIDDEN.items()
        for match in re.finditer(pattern, text)
    ]
    assert not found


def test_limits_are_min_or_max() -> None:
    names = [
        (str(path.relative_to(CASSI)), target.id)
        for path in FILES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for one in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for target in ast.walk(one)
        if isinstance(target, ast.Name)
    ]
    assert not [found for found in names if LIMIT.match(found[1])]
