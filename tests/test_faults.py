"""The tests themselves are tested: a list of deliberate faults must turn them red."""

from __future__ import annotations

import re

import faults
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name)
def test_a_deliberate_fault_turns_the_tests_red(fault: faults.Fault):
    outcome, _ = faults.check(fault)
    assert outcome == "caught"


@pytest.mark.slow
def test_without_a_fault_they_are_green():
    assert faults.check_green(faults.FAULTS) == []


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name)
def test_no_fault_is_stale(fault: faults.Fault):
    """Its text is where it says, once, and the tests that must see it are there."""
    assert (faults.ROOT / fault.file).read_text(encoding="utf-8").count(fault.old) == 1
    assert fault.new != fault.old
    texts = [(faults.ROOT / "tests" / name).read_text(encoding="utf-8") for name in fault.tests.split()]
    for word in re.findall(r"[a-z_]{4,}", fault.select):  # else -k would leave no test, and none could be red
        assert any(word in text for text in texts), word


def test_there_are_enough_faults():
    names = [fault.name for fault in faults.FAULTS]
    assert len(set(names)) == len(names) >= 12
