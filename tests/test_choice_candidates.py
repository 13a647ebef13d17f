"""The order in which candidates are tried, on errors that are made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from cassi.choice.candidates import choose
from cassi.choice.plan import Plan

SHARES = (0.4, 1.0, 0.2, 0.1)


class MadeUp:
    """In place of `Trial`: the held-out error of each (share, level) is told."""

    def __init__(self, errors):
        self.errors, self.tried = errors, []
        self.bases = {"smooth-2": torch.eye(2)}
        self.split = SimpleNamespace(y=torch.zeros(4, 4))

    def run(self, plan: Plan, margin: float = 0.0) -> bool:
        self.tried.append((plan.noise_share, plan.level))
        error = self.errors[self.tried[-1]]
        better = len(self.tried) == 1 or error < (1 - margin) * self.lowest
        if better:
            self.best, self.lowest = SimpleNamespace(plan=plan), error
        return better

    def learn_basis(self):
        pass


@pytest.mark.parametrize(
    ("errors", "order", "chosen"),
    [
        ({(0.4, 1): 3, (1.0, 1): 4, (0.2, 1): 3.1}, [(0.4, 1), (1.0, 1), (0.2, 1)], (0.4, 1)),
        ({(0.4, 1): 3, (1.0, 1): 2}, [(0.4, 1), (1.0, 1)], (1.0, 1)),
        (
            {(0.4, 1): 5, (1.0, 1): 7, (0.2, 1): 4, (0.4, 3): 3, (0.4, 9): 2.5, (0.2, 9): 2.4, (0.1, 9): 2.39},
            [(0.4, 1), (1.0, 1), (0.2, 1), (0.4, 3), (0.4, 9), (0.2, 9), (0.1, 9)],
            (0.2, 9),
        ),
        (
            {(0.4, 1): 5, (1.0, 1): 7, (0.2, 1): 4, (0.4, 3): 4.5, (0.1, 1): 4.1},
            [(0.4, 1), (1.0, 1), (0.2, 1), (0.4, 3), (0.1, 1)],
            (0.2, 1),
        ),
    ],
    ids=["the usual share", "more noise", "bright objects in the dark", "little noise"],
)
def test_shares_first_then_the_level_of_bright_objects(errors, order, chosen):
    trial = MadeUp(errors)
    choose(trial, SHARES, lambda: True)
    assert trial.tried == order
    assert (trial.best.plan.noise_share, trial.best.plan.level) == chosen


def test_no_candidate_but_the_first_without_time():
    trial = MadeUp({(0.4, 1): 3})
    choose(trial, SHARES, lambda: False)
    assert trial.tried == [(0.4, 1)]
