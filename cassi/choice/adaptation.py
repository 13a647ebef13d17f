"""The network trained further for one scene and camera: what quality "best" adds."""

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from cassi.choice.mirrors import VIEWS, Views, run_stage
from cassi.choice.stages import (
    TV_ITERS,
    Learned,
    NonLocal,
    Problem,
    Stage,
    State,
    Tv,
    Watch,
    alternating_stages,
    check_count,
    check_positive,
)
from cassi.errors import InputError
from cassi.optics.cropping import crop, croppable
from cassi.optics.protocol import Camera
from cassi.priors.learned import MULTIPLE
from cassi.priors.spectral_basis import analyse, synthesise
from cassi.solvers.loop import Record, Result
from cassi.solvers.unrolled import error, unrolled

NUM_SNAPSHOTS = 3
# Greatest learning rate of Adam, and steps until it is reached; 2e-4 needs twice the steps for as much. Muon at 1e-4
# gains 0.1 dB less. Twice the pixels an example gain nothing in twice the time.
RATE, WARMUP_STEPS = 5e-4, 10
PIXELS = 1 << 13  # of an example


class Example(NamedTuple):
    """A simulated snapshot (H, W') of a known cube, its variance, the coefficients a network starts from in which turn,
    and the truth."""

    y: Tensor
    variance: Tensor
    start: Tensor
    truth: Tensor
    turn: int = 0


@dataclass(frozen=True)
class Adapt(Stage):
    """The network trained further for one scene and camera, with the cube so far as a scene whose truth is known.

        y_s = Phi T_s x + n_s,    w <- w - rate grad error(net_w(before(y_s)), T_s x),    s = 0, 1, 2
        x <- (x + sum_M after_w,M(x)) / (1 + views)

    T_s shifts the rows of the scene over the mask, n_s is noise as strong as the snapshot's, and `before` are the
    stages before a network in the default solver of one shot. Then network and non-local prior alternate once more,
    with the trained network, for the problem and its views M (`cassi.choice.mirrors`). The cube lacks the
    finest texture, and the network learns to omit it: hence the mean with the cube so far, without which feathers lose
    0.2 dB. To learn from the mean of `Views` would take a third more time and gain nothing. A second round, from the
    mean of x and the first new cube, gains 0.06 dB more on nine windows and loses 2.2 dB on a tenth, which neither
    held-out pixels nor simulated snapshots show.

    Attributes:
        sigma: strength of the first non-local prior of the chain.
        num_steps: of training.
        views: of the stages that follow.
    """

    sigma: float
    num_steps: int
    views: int = VIEWS[-1]

    name, words = "adaptation of the network", "its adaptation to the scene"
    needs_network = of_one_scene = True
    STEP = 50.0  # cost

    def __post_init__(self) -> None:
        check_positive("sigma", self.sigma)
        check_count("num_steps", self.num_steps)
        check_count("views", self.views)

    @property
    def cost(self) -> float:
        first, after = sum(s.cost for s in self.before), sum(s.cost for s in self.after(1.0))
        return self.STEP * self.num_steps + NUM_SNAPSHOTS * first + self.views * after

    @property
    def before(self) -> tuple[Stage, ...]:
        """The stages of the default solver up to its second network."""
        return Tv(TV_ITERS), *alternating_stages(self.sigma)[:3]

    def after(self, noise: float | None) -> tuple[Stage, ...]:
        """The stages that follow with the trained network; noise counts as it did in the cube it was trained on."""
        return alternating_stages(self.sigma, noise, turn=2)[1:]

    def run(self, A: Camera, y: Tensor, problem: Problem, state: State | None, watch: Watch) -> State:
        if problem.learned is None or state is None:
            raise ValueError("there is no network to train, or no cube to train it on")
        if torch.is_inference_mode_enabled():
            raise InputError("quality best trains a network, which torch.inference_mode forbids; use torch.no_grad")
        start, last = time.perf_counter(), state.history[-1]
        should_stop = partial(watch.ask, last, state.x if state.run is None else state.run.z)
        examples = list(_simulate_snapshots(A, y, problem, state.x.clamp(min=0), self.before, watch, should_stop))
        if watch.over:
            return state
        generator, B, level = torch.Generator().manual_seed(0), problem.smooth.to(y), problem.level(A, y)
        prior = copy.deepcopy(problem.learned.on(y.device)).requires_grad_(True)
        adam = Adam(list(prior.parameters()))
        with torch.enable_grad():
            for step in range(self.num_steps):
                a, e = _random_strip(A, examples[step % len(examples)], generator)
                _, z = unrolled(
                    a, e.y[None], B, prior, e.start[None], variance=e.variance[None], level=level, turn=e.turn
                )
                error(synthesise(z, B), e.truth[None]).backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(prior.parameters(), 1.0)
                adam.step(RATE * min(1, (step + 1) / WARMUP_STEPS) * (1 - step / self.num_steps))
                if watch.spend(self.STEP) or should_stop():
                    return state
        problem = replace(problem, learned=prior.requires_grad_(False))
        training = Record(1, time.perf_counter() - start, last.residual, 0.0)
        new = state.followed_by(Result(state.x, (training,), "finished"), state.run, self)
        noise = next((stage.noise for stage in reversed(state.stages) if isinstance(stage, NonLocal)), 1.0)
        views = (Views(self.views), Views(1)) if self.views > 1 else ()
        for stage in (*views[:1], *self.after(noise), *views[1:]):
            new = run_stage(stage, A, y, problem, new, watch)
            if watch.over:
                return state
        return replace(new, x=(state.x + self.views * new.x) / (1 + self.views), stages=(*state.stages, self))


class Adam:
    """Kingma & Ba (2015). `torch.optim` would load a compiler, which takes six seconds.

    m <- a m + (1 - a) g,   v <- b v + (1 - b) g^2,   w <- w - rate m / (1 - a^t) / (sqrt(v / (1 - b^t)) + 1e-8)
    """

    BETAS = 0.9, 0.99  # a, b

    def __init__(self, weights: list[torch.nn.Parameter]) -> None:
        self.weights, self.t = [(w, torch.zeros_like(w), torch.zeros_like(w)) for w in weights], 0

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step along the gradients, which are None after it."""
        self.t += 1
        a, b = self.BETAS
        for w, m, v in self.weights:
            if w.grad is not None:
                m.lerp_(w.grad, 1 - a)
                v.lerp_(w.grad.square(), 1 - b)
                w.addcdiv_(m, (v / (1 - b**self.t)).sqrt_().add_(1e-8), value=-rate / (1 - a**self.t))
                w.grad = None


def shift_over_mask(t: Tensor, s: int, *, back: bool = False) -> Tensor:
    """T_s: rows turned upside down, rolled by a third, or both, as light moves along rows only; `back`: its inverse."""
    axes, turn = ([-2] if s % 2 == 0 else []), s * t.shape[-2] // NUM_SNAPSHOTS
    return t.roll(-turn, -2).flip(axes) if back else t.flip(axes).roll(turn, -2)


def _simulate_snapshots(
    A: Camera, y: Tensor, problem: Problem, x: Tensor, stages: Sequence[Stage], watch: Watch,
    should_stop: Callable[[], bool],
) -> Iterator[Example]:  # fmt: skip
    """Simulate snapshots of a cube, each with two examples: where the two networks of the default solver start."""
    B = problem.smooth.to(y)
    variance = torch.as_tensor(problem.variance, dtype=y.dtype, device=y.device).expand(y.shape)
    generator = torch.Generator().manual_seed(0)
    for s in range(NUM_SNAPSHOTS):
        truth, shifted = shift_over_mask(x, s), shift_over_mask(variance, s)
        noise = shifted.sqrt() * torch.randn(y.shape, dtype=torch.float32, generator=generator).to(y)
        light = A.forward(truth)
        snapshot = torch.where(A.majorizer() > 0, light + noise, 0)
        here = replace(problem, variance=shifted)
        inner = Watch(lambda record, z: should_stop(), deadline=watch.deadline)
        state: State | None = None
        for stage, following in zip(stages, (*stages[1:], Learned(turn=1)), strict=True):
            state = stage.run(A, snapshot, here, state, inner)
            if watch.spend(stage.cost) or watch.over:
                return
            if isinstance(following, Learned):
                start = analyse(state.x, B)
                rest = state.x - synthesise(start, B)  # which a network leaves unchanged
                yield Example(snapshot - A.forward(rest), shifted, start, truth - rest, following.turn)


def _random_strip(A: Camera, e: Example, generator: torch.Generator) -> tuple[Camera, Example]:
    """Draw rows of an example that are lit, about `PIXELS` pixels: a camera of their own, as rows do not mix."""
    height, width = A.cube_shape[-2:]
    count = min(height, max(1, math.ceil(PIXELS / width / MULTIPLE)) * MULTIPLE)
    lit = (e.y.abs().reshape(-1, *e.y.shape[-2:]).amax((0, -1)) > 0) & (e.truth.amax((0, -1)) > 0)
    if count == height or not croppable(A) or not lit.any():
        return A, e
    rows = slice(0, 0)
    while not lit[rows].any():
        first = int(torch.randint(height - count + 1, (1,), generator=generator))
        rows = slice(first, first + count)
    a, y = crop(A, e.y, rows, slice(0, width))
    return a, Example(y, e.variance[..., rows, :], e.start[..., rows, :], e.truth[..., rows, :], e.turn)
