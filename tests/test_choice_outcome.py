"""The choice in words."""

from __future__ import annotations

import pytest
import torch

from cassi.choice.candidates import CANDIDATE_ITERS, CandidateError
from cassi.choice.outcome import Evidence, Outcome
from cassi.choice.plan import TV, Plan
from cassi.solvers.loop import Result


def told(runner_up: float, components: int = 8, error: float = 0.1) -> str:
    """Of a choice whose held-out error is 10 %, or another, and that of the runner-up."""
    tried = [CandidateError("smooth-8", share, error, CANDIDATE_ITERS) for share, error in ((0.4, 0.1), (1, runner_up))]
    evidence = Evidence(tuple(tried), (), error, 100, 0, None, None)
    plan = Plan("smooth-8", 0.4, prior=TV, vectors=torch.ones(components, 12))
    return Outcome(
        Result(torch.zeros(12, 4, 4), (), "max_iters"), "subspace-tv", plan=plan, evidence=evidence
    ).explain()


@pytest.mark.parametrize(
    ("runner_up", "words"),
    [
        (0.11, "; the runner-up predicted 10.0% worse."),
        (0.0995, "; the runner-up predicted 0.5% better, too little to count."),
        (0.09999, "; the runner-up predicted as well."),
        (0.10001, "; the runner-up predicted as well."),
    ],
)
def test_the_runner_up(runner_up, words):
    assert told(runner_up).endswith(words)


def test_one_spectrum_is_one():
    assert "Built from 1 smooth spectrum with" in told(0.11, components=1)
    assert "Built from 8 smooth spectra with" in told(0.11)


@pytest.mark.parametrize(
    ("error", "words"),
    [(0.03, "predicted this well, which is good."), (0.2, "which is fair: there is much"), (1.0, "which is bad: the")],
)
def test_whether_the_error_is_good(error, words):
    assert told(0.11, error=error).startswith(f"Held-out error {error:.1%}: detector pixels that took no part are")
    assert words in told(0.11, error=error)
