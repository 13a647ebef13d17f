"""Views of one snapshot: its problem solved with priors that look at it turned around, and the mean of the cubes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from cassi.choice.stages import Problem, Stage, State, Watch
from cassi.optics.protocol import Camera
from cassi.priors.learned import LearnedPrior
from cassi.priors.spectral_basis import analyse

Axes = tuple[int, ...]
MIRRORS: tuple[Axes, ...] = (), (-2, -1), (-2,), (-1,)  # axes turned around; the first two differ most
VIEWS = 1, 2, len(MIRRORS)  # how many there may be


@dataclass(frozen=True)
class Views(Stage):
    """From here on the problem is solved as several views; of 1 view, their mean.

        x_M = solve(y, Phi, M^-1 P M),    x <- mean_M x_M,    M: none, half a turn, upside down, left to right

    A camera has no preferred side, but patches are cut from one corner on, and a network was trained with chance: what
    differs is error, and shrinks in the mean. On four CAVE windows (128 x 128 px, none, 10,000 and 1,000 e) two views
    gain 0.21 dB, least -0.04, in 1.6 times the time of one core, 0.26 dB a second; four 0.26, least -0.02, the last
    two 0.03 dB a second. The priors P are turned instead of camera and snapshot, M^-1 solve(M y, M Phi M^-1,
    P), which is the same for every camera: so views are a batch, which a GPU solves at once.
    """

    count: int

    words, cost = "the mean of several views", 0.0

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count not in VIEWS:
            raise ValueError(f"count of views must be one of {VIEWS}, got {self.count!r}")

    @property
    def name(self) -> str:
        return "their mean" if self.count == 1 else f"{self.count} views"

    def run(self, A: Camera, y: Tensor, problem: Problem, state: State | None, watch: Watch) -> State:
        if state is None or (self.count == 1) != bool(state.views):
            raise ValueError(
                "views begin with a cube, and end with their mean; put total variation before, and 1 after"
            )
        run, stages = state.run, (*state.stages, self)
        if self.count > 1:
            run = None if run is None else run.repeated(self.count)
            x = state.x.expand(self.count, *state.x.shape)
            return replace(state, x=x, run=run, stages=stages, views=MIRRORS[: self.count])
        x = state.x.mean(0)
        if run is not None:
            u = None if run.u is None else run.u.mean(0)
            run = replace(run, z=analyse(x, problem.basis.to(y)), e=run.e.mean(0), u=u, q=run.q[:, 0])
        return replace(state, x=x, run=run, stages=stages, views=())


def run_stage(stage: Stage, A: Camera, y: Tensor, problem: Problem, state: State | None, watch: Watch) -> State:
    """Run a stage, for each view of a state."""
    return stage.run(A, *in_views(y, problem, state), state, watch)


def end_views(A: Camera, y: Tensor, problem: Problem, state: State, watch: Watch) -> State:
    """The state with the mean of its views, if a run was stopped among them."""
    return Views(1).run(A, y, problem, state, watch) if state.views else state


def in_views(y: Tensor, problem: Problem, state: State | None) -> tuple[Tensor, Problem]:
    """The snapshot once for each view of a state, (N, ...), and the problem with priors that see them turned."""
    if state is None or not state.views:
        return y, problem
    turn, learned = _Turning(state.views), problem.learned
    learned = None if learned is None else _TurnedPrior(learned, state.views)
    return y.expand(len(state.views), *y.shape), replace(problem, learned=learned, turn=turn)


class _TurnedPrior(LearnedPrior):
    """A learned prior that sees its images turned."""

    def __init__(self, prior: LearnedPrior, mirrors: tuple[Axes, ...]) -> None:
        nn.Module.__init__(self)  # the weights are those of `prior`
        self.prior, self.turn, self.size = prior, _Turning(mirrors), prior.size
        self.of_turn, self.spread = prior.of_turn, prior.spread  # type: ignore[method-assign]

    def on(self, device: torch.device) -> LearnedPrior:
        return _TurnedPrior(self.prior.on(device), self.turn.mirrors)

    def forward(
        self, z: Tensor, d: Tensor, seen: Tensor, noise: Tensor, memory: Tensor | None, stage: int | Tensor,
        light: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        K, turned = z.shape[1], self.turn(torch.cat([z, d, seen, noise], 1))
        f, g, memory = self.prior(*turned.tensor_split((K, 2 * K, 2 * K + 1), 1), memory, stage, light)
        f, g = self.turn(torch.cat([f, g], 1)).chunk(2, 1)
        return f, g, memory


class _Turning:
    """The map that turns around images (N, ..., H, W), equally many of each view; its own inverse."""

    def __init__(self, mirrors: tuple[Axes, ...]) -> None:
        self.mirrors, self.order = mirrors, torch.zeros(0)

    def __call__(self, images: Tensor) -> Tensor:
        H, W = images.shape[-2:]
        if self.order.shape[-1] != H * W:  # of pixels, found once: then a turn is one launch on a GPU
            place = torch.arange(H * W, device=images.device).view(H, W)
            self.order = torch.stack([place.flip(axes) for axes in self.mirrors]).view(-1, 1, H * W)
        views = images.reshape(len(self.mirrors), -1, H * W)
        return views.gather(2, self.order.expand_as(views)).view_as(images)
