"""The tests themselves are tested: a list of deliberate faults must turn them red."""

import faults
import pytest


@pytest.mark.slow
def test_deliberate_faults_turn_the_tests_red_which_are_green_without():
    assert faults.main([]) == 0


def test_no_fault_is_stale():
    """Its place is there, once, and so are the tests that must see it. See `faults.py --stale`."""
    found = [line for line in map(faults.stale, faults.FAULTS) if line]
    assert not found, "\n".join(found)
    assert len({fault.name for fault in faults.FAULTS}) == len(faults.FAULTS)


def test_a_fault_is_found_whatever_the_layout_and_only_once(tmp_path, monkeypatch):
    (tmp_path / "cassi").mkdir()
    text = "def f(x):\n    if (x\n        > 1):  # a comment\n        y = 'a'\n        return  2*x\n\n\n"
    text += "def g(x):\n    return 2 * x + 1\n"
    (tmp_path / "cassi" / "a.py").write_text(text)
    monkeypatch.setattr(faults, "ROOT", tmp_path)

    def made(place: str, old: str, new: str) -> str:
        return faults.faulty(faults.Fault("", place, old, new, ""))

    assert "return 3 * x" in made("a.py::f", "2 * x", "3 * x")
    assert "if True:\n        y = 'a'" in made("a.py::f", "if x > 1:", "if True:")
    assert "\n    y = x\n" in made("a.py::g", "return 2 * x + 1", "y = x; return y")
    for place, old in (("a.py", "2 * x"), ("a.py::g", "3 * x"), ("a.py::h", "x"), ("b.py", "x")):
        with pytest.raises(faults.StaleError):
            made(place, old, "0")
