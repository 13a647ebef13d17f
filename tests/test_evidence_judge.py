"""The judge: which cube passes, which is better, by hand and against SciPy."""

import math

import pytest
import torch
from scipy import stats

from cassi import CASSI
from cassi.evidence.held_out import Split
from cassi.evidence.judge import Verdict, accepts, is_better, z


def verdict(error: float, imprint: float | None = None, seed: int = 0) -> Verdict:
    misfit = error * torch.randn(400, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Verdict(error, misfit.square(), imprint)


@pytest.mark.parametrize(
    ("new", "old", "accepted"),
    [
        (verdict(0.02), verdict(0.02), True), (verdict(0.0219), verdict(0.02), True),
        (verdict(0.0221), verdict(0.02), False), (verdict(math.nan), verdict(0.02), False),
        (verdict(0.02, 0.05), verdict(0.02, 0.01), True), (verdict(0.02, 0.07), verdict(0.02, 0.01), False),
        (verdict(0.02, 0.21), verdict(0.02, 0.2), True),
        (verdict(0.0215, seed=1), verdict(0.02), True), (verdict(0.0225, seed=1), verdict(0.02), False),  # chance
    ],
)  # fmt: skip
def test_a_cube_passes_that_harms_little(new, old, accepted):
    assert accepts(new, old) == accepted


def test_better_means_by_more_than_chance():
    better = [is_better(verdict(error), verdict(0.02, seed=1)) for error in (0.01, 0.0199, 0.03)]
    assert better == [True, False, False]


def test_z_is_the_paired_t_statistic():
    old, new = (verdict(error, seed=seed).squared for error, seed in ((0.02, 0), (0.019, 1)))
    assert z(new, old) == pytest.approx(stats.ttest_rel(old, new).statistic)
    assert z(new, old, allowance=0.1) == pytest.approx(stats.ttest_rel(1.21 * old, new).statistic)
    assert z(old, old) == 0 and z(2 * old[:1], old[:1]) == -math.inf and z(old[:1], 2 * old[:1]) == math.inf
    assert math.isnan(z(math.nan * new, old))
    weight = torch.tensor([1.0, 3.0]).repeat(200)
    w = (weight / weight.sum()).double()
    mean = (w * (old - new)).sum()
    assert z(new, old, weight=weight) == pytest.approx(float(mean / (w * (old - new - mean)).norm()))


def test_a_verdict_by_hand():
    A, y = CASSI(torch.ones(1, 3), (0,)), torch.tensor([[3.0, 4.0, 9.0]])
    found = Split(A, y, torch.tensor([[True, True, False]]), A, y).verdict(torch.tensor([[[3.0, 1.0, 0.0]]]))
    assert found.error == pytest.approx(0.6) and found.squared.tolist() == [0.0, 9.0]  # |(0, 3)| / |(3, 4)|
