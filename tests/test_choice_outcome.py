"""The choice in words."""

from dataclasses import replace

import pytest
import torch

from cassi.choice.adaptation import Adapt
from cassi.choice.bases import BasisError
from cassi.choice.chain import ChainTrial
from cassi.choice.outcome import Evidence, Outcome
from cassi.choice.plan import Plan
from cassi.choice.stages import Learned, NonLocal, Tv
from cassi.evidence.noise import CameraNoise, NoiseModel
from cassi.solvers.loop import Result


def outcome(components: int = 8, error: float = 0.1, stages=None) -> Outcome:
    bases = (BasisError("scene-8", 0.2), BasisError("narrow-10", 0.3))
    trials = (ChainTrial("total variation", 0.2, 0.01, True), ChainTrial("learned", 0.4, 0.2, False))
    plan = Plan("scene-8", torch.ones(components, 12), NoiseModel(0.1, 0.2, "a guess"), 1.0, stages or (Tv(5),))
    result = Result(torch.zeros(12, 4, 4), (), "finished")
    return Outcome(result, "subspace-tv", plan=plan, evidence=Evidence(bases, trials, error, 100, 0, None))


def test_what_it_was_built_from():
    assert "Built from 1 spectrum learned from the scene itself with total variation. " in outcome(1).explain()
    several = outcome(stages=(Tv(5), NonLocal(0.5, 2), Learned(), NonLocal(0.2, 2))).explain()
    assert "with total variation, a non-local prior and a learned prior." in several
    adapted = outcome(stages=(Tv(5), Learned(), Adapt(0.5, 1))).explain()
    assert adapted.endswith("with total variation, a learned prior and its adaptation to the scene.")


def test_whether_the_error_is_good():
    """A run that was stopped is called neither good nor bad."""
    for error, word in ((0.03, "(noise and errors"), (0.2, "(fair: "), (1.0, "(poor: ")):
        assert word in outcome(error=error).explain()
    whole = outcome(error=1.0)
    stopped = replace(whole, result=replace(whole.result, status="stopped"))
    assert "stopped after" in stopped.explain() and "(poor: " not in stopped.explain()
    assert "as the plan says" in replace(stopped, evidence=None, discrepancy=9.0).explain()


def test_the_evidence_names_all_that_was_compared():
    words = outcome().explain(verbose=True)
    assert "scene-8: 20.00%; narrow-10: 30.00%. Chosen: scene-8." in words
    assert "learned: 40.00%, imprint 0.20, rejected" in words and "total variation: 20.00%, imprint 0.01;" in words


@pytest.mark.parametrize(("discrepancy", "said"), [(1.2, "no more than the stated noise"), (111.0, "10.5 times what")])
def test_where_the_noise_is_stated_the_misfit_is_compared_with_it(discrepancy, said):
    plain = outcome(error=0.02)
    stated = replace(plain, plan=replace(plain.plan, noise=CameraNoise(gain=100.0).model()), discrepancy=discrepancy)
    assert said in stated.explain() and "good" not in stated.explain()
    assert said not in replace(plain, discrepancy=discrepancy).explain()
