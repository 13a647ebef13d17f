"""The order in which candidates are tried, on errors that are made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from cassi.choice.candidates import SCENE, choose
from cassi.choice.plan import Plan


class MadeUp:
    """In place of `Trial`: the held-out error of each (basis, level) is told."""

    def __init__(self, errors, bases=("smooth-2",)):
        self.errors, self.tried = errors, []
        self.bases = dict.fromkeys(bases, torch.eye(2))

    def run(self, plan: Plan, margin: float = 0.0) -> bool:
        self.tried.append((plan.basis, plan.level))
        error = self.errors[self.tried[-1]]
        better = len(self.tried) == 1 or error < (1 - margin) * self.lowest
        if better:
            evidence = SimpleNamespace(held_out_error=error)
            self.best, self.lowest = SimpleNamespace(plan=plan, evidence=evidence), error
        return better

    def learn_basis(self):
        self.bases[SCENE] = torch.eye(2)


S = "smooth-2"


@pytest.mark.parametrize(
    ("errors", "order", "chosen"),
    [
        ({(S, 1): 3, (S, 3): 3, (SCENE, 1): 4}, [(S, 1), (S, 3), (SCENE, 1)], (SCENE, 1)),
        ({(S, 1): 3, (S, 3): 3, (SCENE, 1): 5}, [(S, 1), (S, 3), (SCENE, 1)], (S, 1)),
        (
            {(S, 1): 5, (S, 3): 3, (S, 9): 2.5, (SCENE, 9): 2.6},
            [(S, 1), (S, 3), (S, 9), (SCENE, 9)],
            (SCENE, 9),
        ),
        ({(S, 1): 5, (S, 3): 4, (S, 9): 4.1, (SCENE, 3): 4}, [(S, 1), (S, 3), (S, 9), (SCENE, 3)], (SCENE, 3)),
    ],
    ids=["the scene's own spectra", "too few of them", "bright objects in the dark", "not so bright"],
)
def test_the_level_of_bright_objects_first_then_the_spectra_of_the_scene(errors, order, chosen):
    trial = MadeUp(errors)
    choose(trial, 0.2, lambda: True)
    assert trial.tried == order
    assert (trial.best.plan.basis, trial.best.plan.level) == chosen
    assert trial.best.plan.noise_share == 0.2


@pytest.mark.parametrize(("noisy", "share"), [(2.9, 0.4), (3.1, 0.2)])
def test_more_of_the_noise_is_believed_where_the_first_candidate_gains_nothing(noisy, share):
    trial = MadeUp({(S, 1): 3, (S, 3): 3.5, (SCENE, 1): 3})
    choose(trial, 0.2, lambda: True, noisy=noisy)
    assert (trial.best.plan.basis, trial.best.plan.noise_share) == (SCENE, share)


def test_a_library_that_predicts_better_is_taken_in_place_of_the_scene():
    trial = MadeUp({(S, 1): 3, (S, 3): 4, ("library-4", 1): 2}, (S, "library-4"))
    choose(trial, 0.2, lambda: True)
    assert trial.tried == [(S, 1), (S, 3), ("library-4", 1)] and trial.best.plan.basis == "library-4"


def test_a_basis_that_is_named_is_followed_by_no_other():
    trial = MadeUp({("narrow-2", 1): 3, ("narrow-2", 3): 4, (S, 1): 5}, (S, "narrow-2"))
    choose(trial, 0.2, lambda: True, first="narrow-2")
    assert trial.best.plan.basis == "narrow-2" and SCENE not in trial.bases


def test_no_candidate_but_the_first_without_time():
    trial = MadeUp({(S, 1): 3})
    choose(trial, 0.2, lambda: False)
    assert trial.tried == [(S, 1)]
