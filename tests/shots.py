"""A small snapshot, a network that was not trained, and what the stages of the default solver make of them."""

import math
from dataclasses import replace

import pytest
import torch
from test_priors_learned import stirred

from cassi import CASSI
from cassi.choice.automatic import reconstruct_auto
from cassi.choice.chain import Chain, ChainTrial, Judged, run_chains
from cassi.choice.stages import Problem, State, Tv, Watch
from cassi.evidence.held_out import Split
from cassi.optics.detector import brightness
from cassi.priors.learned import LearnedPrior, Size
from cassi.priors.spectral_basis import analyse, smooth_basis
from cassi.settings import Settings

SIZE = Size(components=4, stages=1, memory=1, width=8, blocks=1, deep_width=8, deep_blocks=2, far_width=8, far_blocks=1)


class Shot:
    """A camera, a snapshot with some noise, and its scene of squares, or of smooth blobs."""

    def __init__(self, size: int = 24, bands: int = 6, parts: int = 5, mode: str = "nearest") -> None:
        generator = torch.Generator().manual_seed(0)
        self.A = CASSI.from_step(torch.rand(size, size, generator=generator), 1, bands)
        low = torch.rand(1, bands, parts, parts, generator=generator)
        self.x = torch.nn.functional.interpolate(low, (size, size), mode=mode)[0]
        y = self.A.forward(self.x)
        self.y = y + 0.02 * y.mean() * torch.randn(y.shape, generator=generator)
        self.split = Split.of(self.A, self.y, 0)
        self.problem = Problem(smooth_basis(bands, 5).float(), torch.full_like(y, 1e-4))

    def error(self, x: torch.Tensor) -> float:
        return float((x - self.x).square().mean())


def gone_on(
    split: Split, problem: Problem, first: Tv, chains: list[Chain], watch: Watch | None = None, judged: bool = True
) -> tuple[Judged, tuple[ChainTrial, ...]]:
    """Total variation and what follows it."""
    watch = watch or Watch()
    state = first.run(split.A_train, split.y_train, problem, None, watch)
    verdict = split.verdict(state.x) if judged else None
    return run_chains(split, problem, state, () if watch.over else chains, watch, verdict)


class Oracle(LearnedPrior):
    """Knows the scene."""

    def __init__(self, shot: Shot) -> None:
        super().__init__(SIZE)
        A = shot.A
        s = brightness(A, shot.y) * math.sqrt(A.num_bands) * self.spread().view(-1, 1, 1)
        self.truth = analyse(shot.x, smooth_basis(A.num_bands, SIZE.components)) / s

    def forward(self, z, d, seen, noise, memory, stage, light):
        return self.truth - z, torch.zeros_like(z), seen


def auto(shot, **choices):
    return reconstruct_auto(shot.A, shot.y, settings=Settings(**choices))


def run(stage, shot, state=None, problem=None, watch=None) -> State:
    return stage.run(shot.A, shot.y, problem or shot.problem, state, watch or Watch())


def with_network(shot) -> Problem:
    return replace(shot.problem, learned=stirred(SIZE))


@pytest.fixture(scope="module", name="shot")
def small_shot() -> Shot:
    return Shot()
