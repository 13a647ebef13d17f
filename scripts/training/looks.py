"""One look: start, network, how far each of its stages is from the truth, and the gradient of that."""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from cassi.choice.stages import PATCH, STRIDE
from cassi.optics.detector import object_levels
from cassi.optics.single_disperser import CASSI
from cassi.priors.learned import LearnedPrior
from cassi.priors.nonlocal_lowrank import NonlocalDenoiser
from cassi.priors.spectral_basis import analyse, coefficient_weights, synthesise
from cassi.solvers.quick_start import quick_start
from cassi.solvers.subspace_tv import MAX_MOMENTUM, SubspaceState, subspace_tv
from cassi.solvers.unrolled import corrections, error
from training.examples import Examples

EARLIER = 0.5  # weight of the error after the last but one of the stages; the one of the final cube is 1


def stage_errors(prior: LearnedPrior, camera: CASSI, e: Examples, start_iters: int) -> Tensor:
    """The error [dB] of the start, of each stage and of the final cube, (T + 2,)."""
    with torch.no_grad():
        nan = torch.full_like(e.variance, torch.nan)
        given = torch.where(e.known > 0, e.variance, nan)
        z, variance = quick_start(camera, e.y, e.basis, e.seen, num_iters=start_iters, variance=given)
        train, level = camera.leave_out(e.seen > 0), object_levels(camera, e.y).view(-1, 1, 1, 1)
        if e.non_local is None:
            z = torch.lerp(z, analyse(e.truth, e.basis), e.better)
        else:
            z = continued(train, e.y * e.seen, e.basis, z, variance, level, *e.non_local)
        first = error(synthesise(z, e.basis), e.truth)
    found = corrections(train, e.y * e.seen, e.basis, prior, z, variance, level)
    return torch.stack([first, *(error(synthesise(z, e.basis), e.truth) for z in found)])


def continued(
    A: CASSI, y: Tensor, B: Tensor, z: Tensor, variance: Tensor, level: Tensor, strength: float, num_iters: int
) -> Tensor:
    """z after some iterations with a non-local prior, as in the default solver; snapshots in units of their levels."""
    unit, z = level[..., 0], (z / level).contiguous()
    y, variance = y / unit, variance / unit.square()
    state = SubspaceState(z, torch.zeros_like(y), None, z.new_zeros((2, *z.shape)))
    denoise = NonlocalDenoiser(strength * coefficient_weights(len(B), z.device), patch=PATCH, stride=STRIDE)
    _, state = subspace_tv(
        A, y, B, variance=variance, tv_weight=1.0, num_iters=num_iters, state=state, denoise=denoise,
        momentum=MAX_MOMENTUM, records=False,
    )  # fmt: skip
    return state.z * level


def loss(errors: Tensor, *, all_stages: bool = True) -> Tensor:
    """The mean of `stage_errors` after the start, later stages weighted more, by the squares of their numbers."""
    if not all_stages:
        return errors[-1]
    count = len(errors) - 2
    weights = torch.arange(1, count + 1, device=errors.device, dtype=errors.dtype)
    weights = EARLIER * (weights / count).square()
    return ((weights * errors[1:-1]).sum() + errors[-1]) / (weights.sum() + 1)


def add_gradient(prior: LearnedPrior, camera: CASSI, e: Examples, share: float, start_iters: int) -> Tensor:
    """Add `share` of the gradient of `loss` to that of the prior; returns `stage_errors`."""
    errors = stage_errors(prior, camera, e, start_iters)
    parameters = list(prior.parameters())
    grads = [p.grad for p in parameters if p.grad is not None]
    torch._foreach_add_(grads, torch.autograd.grad(loss(errors), parameters), alpha=share)
    return errors.detach()


class Looks:
    """`add_gradient` of examples.

    On a GPU it is thousands of launches, which take several times as long as what they compute: for each layout of
    examples (shifts and sizes) they are recorded once, as a CUDA graph, and played again with others copied into its
    tensors. Where that fails, eager torch goes on.

    Args:
        prior: whose gradient is added to; that stays where it is.
        share: of each gradient.
        start_iters: of `quick_start`.

    Attributes:
        operations: of the network and the data steps in a look at a layout, counted as it is first seen.
    """

    def __init__(self, prior: LearnedPrior, share: float, start_iters: int) -> None:
        self.prior, self.share, self.start_iters = prior, share, start_iters
        for p in prior.parameters():
            p.grad = torch.zeros_like(p)
        self.recorded: dict[object, Recorded | None] = {}
        self.operations: dict[object, int] = {}
        on_gpu = prior.log_tau.is_cuda
        self.memory = torch.cuda.graph_pool_handle() if on_gpu else None  # of all graphs: one plays at a time

    def __call__(self, e: Examples) -> Tensor:
        """The errors of `add_gradient`."""
        layout = e.shifts, e.y.shape
        if layout not in self.operations:
            with FlopCounterMode(display=False) as counter:
                add_gradient(self.prior, e.camera, e, 0.0, self.start_iters)
            self.operations[layout] = counter.get_total_flops()
        recordable = e.non_local is None  # that prior chooses its filters on the host
        if self.memory is not None and recordable and layout not in self.recorded:
            self.recorded[layout] = self._record(e, self.memory)
        graph = self.recorded.get(layout) if recordable else None
        if graph is None:
            return add_gradient(self.prior, e.camera, e, self.share, self.start_iters)
        return graph.play(e)

    def _record(self, e: Examples, memory: tuple[int, int]) -> Recorded | None:
        try:
            return Recorded(self.prior, e, self.share, self.start_iters, memory)
        except RuntimeError as error:
            warnings.warn(f"no CUDA graph of {len(e.shifts)} bands, eager torch goes on: {error}", stacklevel=3)
            return None


class Recorded:
    """`add_gradient` of one layout of examples as a CUDA graph.

    Args:
        e: the first of this layout.
        memory: handle of what the graph computes in.
    """

    def __init__(
        self, prior: LearnedPrior, e: Examples, share: float, start_iters: int, memory: tuple[int, int]
    ) -> None:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            add_gradient(prior, e.camera, e, 0.0, start_iters)  # kernels are compiled and chosen before recording
        torch.cuda.current_stream().wait_stream(aside)
        camera = e.camera  # what was derived of the other one is to be recorded,
        camera.absolute()  # but whether a mask is negative, for which the host waits
        mine = e.with_tensors([t.clone(memory_format=torch.contiguous_format) for t in e.tensors])
        self.e = replace(mine, mask=camera.mask)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=memory):
            self.errors = add_gradient(prior, camera, self.e, share, start_iters)

    def play(self, e: Examples) -> Tensor:
        """Of other examples of the layout."""
        for mine, new in zip(self.e.tensors, e.tensors, strict=True):
            mine.copy_(new)
        self.graph.replay()
        return self.errors.clone()
