"""The file of messages: what it holds belongs to a test, another wording is red, and no test goes round it."""

import re
from pathlib import Path

import messages
import pytest

HERE = Path(__file__).parent


def test_every_entry_belongs_to_a_test():
    assert not [test for test in messages.entries() if not messages.exists(test)]


@pytest.mark.parametrize("case", ["a", "b"])
def test_another_wording_or_another_error_is_red(monkeypatch, case):
    test, parameters = messages.current()
    assert (test, parameters) == ("test_messages.py::test_another_wording_or_another_error_is_red", f"[{case}]")
    kept = {"": ["ValueError: 3 of 4 in x.h5"]} if case == "a" else {"[b]": ["ValueError: 3 of 4 in x.h5"]}
    monkeypatch.setattr(messages, "entries", lambda: {test: kept})
    monkeypatch.setattr(messages, "recorded", {})
    monkeypatch.setattr(messages, "update", False)
    with messages.refuses(ValueError):
        raise ValueError("3 of 4 in /tmp/run-1/x.h5")
    for other in (ValueError("3 of 5 in x.h5"), ValueError("3 out of 4 in x.h5"), KeyError("3 of 4 in x.h5")):
        messages.recorded.clear()
        with pytest.raises(AssertionError), messages.refuses((ValueError, KeyError)):
            raise other
    messages.recorded.clear()
    for no_refusal in ("step 2 of 3: write", "3 snapshots in x.h5"):
        with pytest.raises(AssertionError):
            messages.check_words(no_refusal)


def test_no_other_test_depends_on_the_wording():
    """Errors that tests or other libraries raise are no messages of the program: they may be matched."""
    pattern = re.compile(r"(raises|warns)\([^)]*(InputError|OutputError|UserWarning)[^)]*match=")
    assert not [path.name for path in HERE.glob("test_*.py") if pattern.search(path.read_text(encoding="utf-8"))]


def test_what_is_written_is_read_again(tmp_path, monkeypatch, request):
    """Entries of tests that did not run stay, what parameters share is written once."""
    request.addfinalizer(messages.entries.cache_clear)
    monkeypatch.setattr(messages, "GOLDEN", tmp_path / "messages.txt")
    for name, of in (("test_a.py", ("one", "two")), ("test_b.py", ("three",))):
        (tmp_path / name).write_text("".join(f"def test_{each}():\n    pass\n" for each in of))
    first = {
        "test_a.py::test_one": {"[x]": ["m 1.5"], "[y]": ["n"], "[z]": ["n"]},
        "test_b.py::test_three": {"": ["o"]},
    }
    for parts in ([first], [{"test_a.py::test_two": {"": ["p", "q"]}}, {"test_a.py::test_one": {"[x]": ["m 1.7"]}}]):
        messages.entries.cache_clear()
        messages.write(parts)
    messages.entries.cache_clear()
    assert messages.entries() == first | {"test_a.py::test_two": {"": ["p", "q"]}}, (
        "a number with a point counts as equal"
    )
    assert (tmp_path / "messages.txt").read_text().count("n\n") == 1
