"""What the program refuses, in its words, kept in `messages.txt`, so that no other test depends on the wording.

    with refuses():              an InputError (or what is named) is raised, and reads as the file has it
    refused(call, ...)           the same for a call
    check_refusal(capsys, code)  the same for a command
    check_words(text)            the same for lines of output that say what is refused

Each test has an entry of its own there: another error than the expected one is as red as another wording. After a
change of the wording `pytest --update-golden` writes the entries of the tests that ran anew; read the diff as a user
would.

Absolute paths lose their folders, and numbers with a point, which are computed, are not compared. Whatever else the
program says is tested where it is said, by the fact in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cassi import InputError

GOLDEN = Path(__file__).with_name("messages.txt")
NUMBER = re.compile(r"[-+]?\d+\.\d+(?:e[-+]?\d+)?")
REFUSAL = re.compile(r"error: |Error\b")
STEP = re.compile(r"step \d+ of \d+: |.*: \d+%, .* so far, about")  # progress, no message
Errors = type[Exception] | tuple[type[Exception], ...]
Entries = dict[str, dict[str, list[str]]]  # of a test function, of its parameters "[...]" or "": messages in order

update = False  # set by conftest.py
recorded: Entries = {}  # in this process


@contextmanager
def refuses(error: Errors = InputError, *, hide: str = "") -> Iterator[pytest.ExceptionInfo]:
    """What is done within must end in that error; what the pattern `hide` finds in its message does not count."""
    with pytest.raises(error) as caught:
        yield caught
    kind = getattr(caught.value, "kind", "")
    message = str(caught.value).partition("\n")[0]
    message = re.sub(hide, "...", message) if hide else message
    check_words(f"{type(caught.value).__name__}{f' ({kind})' if kind else ''}: {message}")


def refused(call: Callable[..., object], *given: Any, error: Errors = InputError, **more: Any) -> None:
    """`call` with what is given must end in that error."""
    with refuses(error):
        call(*given, **more)


@contextmanager
def warns(words: str) -> Iterator[pytest.WarningsRecorder]:
    """What is done within must warn the user, in words that this pattern is found in."""
    with pytest.warns(UserWarning, match=".") as caught:
        yield caught
    said = [str(one.message) for one in caught if one.category is UserWarning]
    assert said and all(re.search(words, text) for text in said), said


def check_words(*texts: object) -> None:
    """Compare what was said, line by line, with the entry of this test; what has been compared before comes first."""
    test, parameters = current()
    mine = recorded.setdefault(test, {}).setdefault(parameters, [])
    lines = [tidy(line) for text in texts for line in str(text).splitlines() if line.strip() and not STEP.match(line)]
    assert lines and all(map(REFUSAL.search, lines)), f"no refusals: {lines}"
    mine += lines
    if not update:
        golden = entries().get(test, {})
        expected = golden.get(parameters, golden.get("", []))[len(mine) - len(lines) : len(mine)]
        same = len(expected) == len(lines) and all(map(alike, lines, expected))
        assert same, f"{GOLDEN.name} has {expected}, said was {lines}; if that is better: pytest --update-golden"


def check_refusal(capsys: pytest.CaptureFixture[str], code: int) -> None:
    """A command ended with 2, and said why in one line, which reads as the file has it."""
    said = [line for line in capsys.readouterr().err.splitlines() if not STEP.match(line)]
    assert (code, len(said)) == (2, 1), said
    check_words(*said)


def last_line(capsys: pytest.CaptureFixture[str], code: int) -> str:
    """The last line of what a command printed, which ended with 0."""
    assert code == 0
    return capsys.readouterr().out.splitlines()[-1]


def current() -> tuple[str, str]:
    """The running test: file and function, and its parameters."""
    test, bracket, parameters = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0].partition("[")
    return test.rpartition("/")[2], bracket + parameters


def tidy(line: str) -> str:
    """Without what differs from run to run."""
    line = re.sub(r"(?<![\w.*])/(?:[^\s/:,;'\"]+/)+", "", line.strip())
    return re.sub(r"0x[0-9a-f]{6,}|\b[0-9a-f]{64}\b", "0x...", line).strip()


def alike(a: str, b: str) -> bool:
    """Up to numbers with a point."""
    return NUMBER.sub("#", a) == NUMBER.sub("#", b)


@cache
def entries() -> Entries:
    """What the file holds."""
    found: Entries = {}
    test, of = "", [""]
    for line in GOLDEN.read_text(encoding="utf-8").splitlines() if GOLDEN.exists() else []:
        if line.startswith("        "):
            for parameters in of:
                found[test].setdefault(parameters, []).append(line.strip())
        elif line.startswith("    "):
            of = re.findall(r"\[.*?\](?= \[|$)", line.strip())
        else:
            test, of = line, [""]
            found[test] = {}
    return found


def write(parts: Iterable[Entries]) -> None:
    """Put what was recorded, by this process and others, in the place of what the file had."""
    found = {test: dict(of) for test, of in entries().items() if exists(test)}
    for part in parts:
        for test, of in part.items():
            old = found.get(test, {})
            for parameters, lines in of.items():
                before = old.get(parameters, old.get("", []))
                if len(before) != len(lines) or not all(map(alike, before, lines)):
                    before = lines
                part[test][parameters] = before
            found[test] = dict(of) if "" in of else {key: value for key, value in old.items() if key} | of
    text = []
    for test, of in sorted(found.items()):
        text.append(test)
        groups: dict[tuple[str, ...], list[str]] = {}
        for parameters, lines in sorted(of.items()):
            groups.setdefault(tuple(lines), []).append(parameters)
        for lines, keys in groups.items():
            text += [f"    {' '.join(keys)}"] if len(groups) > 1 else []
            text += [f"        {line}" for line in lines]
    GOLDEN.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")


def exists(test: str) -> bool:
    file, _, function = test.partition("::")
    path = GOLDEN.with_name(file)
    return path.exists() and f"def {function}(" in path.read_text(encoding="utf-8")
