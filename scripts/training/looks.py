"""One look: a start, the network, how far each of its stages is from the truth, and the gradient of that."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from cassi.choice.stages import PATCH, STRIDE
from cassi.optics.detector import object_levels
from cassi.optics.single_disperser import CASSI
from cassi.priors.learned import LearnedPrior
from cassi.priors.nonlocal_lowrank import NonlocalDenoiser
from cassi.priors.spectral_basis import coefficient_weights
from cassi.solvers.subspace_tv import MAX_MOMENTUM, SubspaceState, subspace_tv
from cassi.solvers.unrolled import corrections
from training.examples import Examples
from training.quick_start import quick_start

EARLIER = 0.5  # weight of the error after the last but one of the stages; the one of the final cube is 1
STOCK = 32  # looks that are kept for others at the same examples
MIN_STOCK = 4  # fewer are not looked at again
REUSE = 6  # looks at new examples, on average: their start costs more than a gradient
AGAIN = 0.07  # share of looks after which the non-local prior continues the cube of the network for another
TURNS = 3  # that a network can tell apart; later ones are like the last
ITERS_AGAIN, LEAST_STRENGTH = 8, 0.25  # of that prior, which is half as strong as before


@dataclass(frozen=True, eq=False)
class Look:
    """Examples and what the network is given of them.

    Attributes:
        examples: N scenes through one camera.
        z: coefficient images of a first cube (N, K, H, W).
        variance: of the snapshots, as it is given or was estimated, like y.
        turn: how many networks z comes from, (1,).
        strength: of the non-local prior that z comes from; 0 for none.
    """

    examples: Examples
    z: Tensor
    variance: Tensor
    turn: Tensor
    strength: float = 0.0

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.examples.tensors, self.z, self.variance, self.turn]

    def with_tensors(self, tensors: list[Tensor]) -> Look:
        """The same layout of other `tensors`."""
        return Look(self.examples.with_tensors(tensors[:-3]), *tensors[-3:], self.strength)

    @property
    def camera(self) -> CASSI:
        """A new one each time."""
        return self.examples.camera

    def continued(self, strength: float, num_iters: int) -> Look:
        """The same after some iterations with a non-local prior, as in the default solver."""
        e, A = self.examples, self.camera
        level = object_levels(A, e.y).view(-1, 1, 1, 1)
        z = continued(A.leave_out(e.seen > 0), e.y * e.seen, e.basis, self.z, self.variance, level, strength, num_iters)
        return replace(self, z=z, strength=strength)

    def again(self, z: Tensor) -> Look:
        """The next turn of a chain, from z of the cube that a network made of this one."""
        weaker = max(self.strength / 2, LEAST_STRENGTH)
        z = torch.where(z.isfinite(), z, self.z)
        return replace(self, z=z, turn=self.turn + 1).continued(weaker, ITERS_AGAIN)


G = TypeVar("G", Examples, Look)
Pair = tuple[Tensor, Tensor]


def quick(camera: CASSI, e: Examples, start_iters: int) -> Pair:
    """`quick_start`, with the variance where the solver is given it."""
    with torch.no_grad():
        given = torch.where(e.known > 0, e.variance, torch.full_like(e.variance, torch.nan))
        return quick_start(camera, e.y, e.basis, e.seen, num_iters=start_iters, variance=given)


def stage_errors(prior: LearnedPrior, camera: CASSI, look: Look) -> Pair:
    """The error [dB] of the start, of each stage and of the final cube, (T + 2,), and z of that cube."""
    e = look.examples
    with torch.no_grad():
        train, level = camera.leave_out(e.seen > 0), object_levels(camera, e.y).view(-1, 1, 1, 1)
    found = corrections(train, e.y * e.seen, e.basis, prior, look.z, look.variance, level, turn=look.turn)
    images, error = [look.z, *found], error_of_images(e.truth, e.basis)
    return torch.stack([error(z) for z in images]), images[-1].detach()


def error_of_images(truth: Tensor, B: Tensor) -> Callable[[Tensor], Tensor]:
    """`error` of cubes B^T z as a function of z, without the cubes: of what B leaves of truth, r = x - B^T B x, once.

    mean (B^T z - x)_c^2 = b_c^T (d d^T / P) b_c - 2 b_c^T (d r_c^T / P) + mean r_c^2,    d = z - B x
    """
    own = (B @ truth.flatten(2)).view(len(truth), len(B), *truth.shape[2:])
    left = truth - (B.mT @ own.flatten(2)).view_as(truth)
    rest, r = left.square().mean((2, 3)), left.flatten(2).mT / truth[0, 0].numel()
    unit = truth.mean((1, 2, 3)).clamp(min=torch.finfo(truth.dtype).tiny).square()[:, None]

    def error(z: Tensor) -> Tensor:
        d = (z - own).flatten(2)
        squares = (B * ((d @ d.mT / d.shape[2]) @ B)).sum(1) - 2 * (B * (d @ r)).sum(1) + rest
        return 10 * ((squares / unit).clamp(min=0) + 1e-5).log10().mean()

    return error


def continued(
    A: CASSI, y: Tensor, B: Tensor, z: Tensor, variance: Tensor, level: Tensor, strength: float, num_iters: int
) -> Tensor:
    """z after some iterations with a non-local prior, as in the default solver; snapshots in units of their levels."""
    unit, z = level[..., 0], (z / level).contiguous()
    y, variance = y / unit, variance / unit.square()
    state = SubspaceState(z, torch.zeros_like(y), None, z.new_zeros((2, *z.shape)))
    sigma = strength * coefficient_weights(len(B), z.device)
    with torch.no_grad():
        _, state = subspace_tv(
            A, y, B, variance=variance, tv_weight=1.0, num_iters=num_iters, state=state,
            denoise=SideBySide(NonlocalDenoiser(sigma, patch=PATCH, stride=STRIDE)), momentum=MAX_MOMENTUM,
            records=False,
        )  # fmt: skip
    return state.z * level


class SideBySide:
    """A denoiser of stacks (K, H, W) for a batch (N, K, H, W) of them, side by side in one large stack.

    For a GPU that is one task instead of N. A patch may be matched across a border between two.
    """

    def __init__(self, denoise: NonlocalDenoiser) -> None:
        self.denoise = denoise

    def __call__(self, z: Tensor, k: int) -> Tensor:
        N, K, H, W = z.shape
        rows = next(n for n in range(math.isqrt(N), 0, -1) if N % n == 0)
        large = z.view(rows, -1, K, H, W).permute(2, 0, 3, 1, 4).reshape(K, rows * H, -1)
        return self.denoise(large, k).view(K, rows, H, -1, W).permute(1, 3, 0, 2, 4).reshape(z.shape)


def loss(errors: Tensor, *, all_stages: bool = True) -> Tensor:
    """The mean of `stage_errors` after the start, later stages weighted more, by the squares of their numbers."""
    if not all_stages:
        return errors[-1]
    count = len(errors) - 2
    weights = torch.arange(1, count + 1, device=errors.device, dtype=errors.dtype)
    weights = EARLIER * (weights / count).square()
    return ((weights * errors[1:-1]).sum() + errors[-1]) / (weights.sum() + 1)


def add_gradient(prior: LearnedPrior, camera: CASSI, look: Look, share: float) -> Pair:
    """Add `share` of the gradient of `loss` to that of the prior; returns what `stage_errors` does."""
    errors, z = stage_errors(prior, camera, look)
    parameters = list(prior.parameters())
    grads = [p.grad for p in parameters if p.grad is not None]
    found = torch.autograd.grad(loss(errors), parameters)
    if not share:  # of a rehearsal, which leaves nothing behind: 0 times infinity would
        found = tuple(grad.nan_to_num(0.0, 0.0, 0.0) for grad in found)
    torch._foreach_add_(grads, found, alpha=share)
    return errors.detach(), z


class Looks:
    """Looks at examples, and `add_gradient` of them.

    On a GPU starts and gradients are thousands of launches, which take several times as long as what they compute: for
    each layout of examples (shifts and sizes) they are recorded once, as CUDA graphs, and played again with others
    copied into their tensors. Where that fails, eager torch goes on. Starts in a thread, on a stream of its own, were
    slower on an H100: 391 looks per second instead of 446.

    Args:
        prior: whose gradient is added to; that stays where it is.
        share: of each gradient.
        start_iters: of `quick_start`.
        seed: of what is looked at again.

    Attributes:
        operations: of the network and the data steps in a look at a layout, counted as it is first seen.
        stock: looks that can be taken again.
        drawn, taken: examples and looks so far.
    """

    def __init__(self, prior: LearnedPrior, share: float, start_iters: int, seed: Sequence[int] = (0,)) -> None:
        self.prior, self.share, self.start_iters = prior, share, start_iters
        self.rng = np.random.default_rng(seed)
        for p in prior.parameters():
            p.grad = torch.zeros_like(p)
        self.recorded: dict[object, Recorded | None] = {}
        self.operations: dict[object, int] = {}
        on_gpu = prior.log_tau.is_cuda
        # of the graphs of starts and of gradients: one of each plays at a time
        self.memories = [torch.cuda.graph_pool_handle() for _ in range(2)] if on_gpu else None
        self.stock: list[Look] = []
        self.taken = self.drawn = 0

    def next(self, draw: Callable[[], Examples]) -> tuple[Examples, Tensor]:
        """Look at some examples, `REUSE` times at each on average, and return them and their errors.

        After some looks the next one at the same examples begins with what the network made of them, continued by the
        non-local prior, as in later turns of the default solver: a network that never saw so good a start makes it
        worse. A start that cannot be made is left out.
        """
        if len(self.stock) < MIN_STOCK or self.taken >= REUSE * self.drawn:
            self.drawn += 1
            self._keep(len(self.stock), lambda: self.first(draw()))
        place = int(self.rng.integers(len(self.stock)))
        look = self.stock[place]
        errors, z = self(look)
        self.taken += 1
        if self.rng.random() < AGAIN:
            self._keep(place, lambda: look.again(z))
        return look.examples, errors

    def _keep(self, place: int, make: Callable[[], Look]) -> None:
        """Put a start at a place of the stock, at any where that is full."""
        try:
            look = make()
        except ArithmeticError as error:
            if not self.stock:
                raise
            warnings.warn(f"a start is left out: {error}", stacklevel=3)
            return
        if place == len(self.stock) < STOCK:
            self.stock.append(look)
        else:
            self.stock[place if place < len(self.stock) else int(self.rng.integers(STOCK))] = look

    def first(self, e: Examples) -> Look:
        """At new examples: from a quick start, which the non-local prior may continue."""
        compute = partial(quick, start_iters=self.start_iters)
        none = torch.zeros(1, dtype=torch.long, device=e.y.device)
        look = Look(e, *self._found(0, _layout(e), e, compute, compute), none)
        return look if e.non_local is None else look.continued(*e.non_local)

    def __call__(self, look: Look) -> Pair:
        """What `add_gradient` returns."""
        layout = _layout(look.examples)
        rehearsed = partial(add_gradient, self.prior, share=0.0)
        if layout not in self.operations:
            with FlopCounterMode(display=False) as counter:
                rehearsed(look.camera, look)
            self.operations[layout] = counter.get_total_flops()
        return self._found(1, layout, look, partial(add_gradient, self.prior, share=self.share), rehearsed)

    def _found(
        self, kind: int, layout: object, given: G, compute: Callable[[CASSI, G], Pair],
        rehearsal: Callable[[CASSI, G], Pair],
    ) -> Pair:  # fmt: skip
        """`compute` of the camera and what is given, recorded where there is a GPU; `kind` 0 is a start."""
        key = kind, layout
        if self.memories is not None and key not in self.recorded:
            try:
                self.recorded[key] = Recorded(given, compute, rehearsal, self.memories[kind])
            except RuntimeError as error:
                warnings.warn(f"no CUDA graph of {key}, eager torch goes on: {error}", stacklevel=4)
                self.recorded[key] = None
        graph = self.recorded.get(key)
        return compute(given.camera, given) if graph is None else graph.play(given.tensors)


class Recorded:
    """A function of a camera and of examples, or of a look at some, of one layout as a CUDA graph.

    Args:
        given: the first of this layout.
        compute: what is recorded.
        rehearsal: the same, computed before, so that kernels are compiled and chosen.
        memory: handle of what the graph computes in.
    """

    def __init__(
        self, given: G, compute: Callable[[CASSI, G], Pair], rehearsal: Callable[[CASSI, G], Pair],
        memory: tuple[int, int],
    ) -> None:  # fmt: skip
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            rehearsal(given.camera, given)
        torch.cuda.current_stream().wait_stream(aside)
        camera = given.camera  # what was derived of the other one is to be recorded,
        camera.absolute()  # but whether a mask is negative, for which the host waits
        _, *others = given.tensors
        self.tensors = [camera.mask, *(t.clone(memory_format=torch.contiguous_format) for t in others)]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=memory, capture_error_mode="thread_local"):
            self.found = compute(camera, given.with_tensors(self.tensors))

    def play(self, tensors: list[Tensor]) -> Pair:
        """Of others of the layout."""
        torch._foreach_copy_(self.tensors, tensors)
        self.graph.replay()
        first, second = self.found
        return first.clone(), second.clone()


def _layout(e: Examples) -> tuple[object, ...]:
    return e.shifts, e.y.shape
