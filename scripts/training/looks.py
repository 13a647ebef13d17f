"""One look: what the network makes of examples, how far that is from their truth, and the gradient."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cassi.choice.adaptation import error
from cassi.optics.single_disperser import CASSI
from cassi.priors.learned import LearnedPrior
from cassi.priors.spectral_basis import synthesise
from cassi.solvers.unrolled import corrected
from training.examples import Examples


def add_gradient(prior: LearnedPrior, camera: CASSI, e: Examples, share: float) -> tuple[Tensor, Tensor]:
    """Add `share` of the gradient of `error` to that of the prior.

    Returns:
        The error of the cube that the network ends with, and how much less that is than the start's [dB]: (2,); and the
        coefficient images of that cube.
    """
    z = corrected(camera, e.y, e.basis, prior, e.start, e.variance)
    loss = error(synthesise(z, e.basis), e.truth)
    parameters = list(prior.parameters())
    grads = [p.grad for p in parameters if p.grad is not None]
    torch._foreach_add_(grads, torch.autograd.grad(loss, parameters), alpha=share)
    loss = loss.detach()
    return torch.stack([loss, error(synthesise(e.start, e.basis), e.truth) - loss]), z.detach()


class Looks:
    """`add_gradient` of examples, and what becomes of them, as new examples.

    On a GPU it is 2,500 launches, which take five times as long as what they compute: for each layout of examples
    (bands, steps and sizes) they are recorded once, as a CUDA graph, and played again with others copied into its
    tensors.

    Args:
        prior: whose gradient is added to; that stays where it is.
        share: of each gradient.
    """

    def __init__(self, prior: LearnedPrior, share: float) -> None:
        self.prior, self.share = prior, share
        for p in prior.parameters():
            p.grad = torch.zeros_like(p)
        self.recorded: dict[object, Recorded] = {}
        on_gpu = prior.log_tau.is_cuda
        self.memory = torch.cuda.graph_pool_handle() if on_gpu else None  # of all graphs: one plays at a time

    def __call__(self, e: Examples) -> tuple[Tensor, Examples]:
        """The two numbers of `add_gradient`, and what the network has made of the examples."""
        if self.memory is not None:
            ordered = e.in_order()
            layout = ordered.shifts, ordered.start.shape
            if layout not in self.recorded:
                self.recorded[layout] = Recorded(self.prior, ordered, self.share, self.memory)
            numbers, z = self.recorded[layout].play(ordered)
        else:
            numbers, z = add_gradient(self.prior, e.camera, e, self.share)
        return numbers, replace(e, start=z, turns=e.turns + 1)


class Recorded:
    """`add_gradient` of one layout of examples as a CUDA graph.

    Args:
        e: the first of this layout, `in_order`.
        memory: handle of what the graph computes in.
    """

    def __init__(self, prior: LearnedPrior, e: Examples, share: float, memory: tuple[int, int]) -> None:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            add_gradient(prior, e.camera, e, 0.0)  # kernels are compiled and chosen before they are recorded
        torch.cuda.current_stream().wait_stream(aside)
        camera = e.camera  # what was derived of the other one is to be recorded,
        camera.absolute()  # but whether a mask is negative, for which the host waits
        mine = e.with_tensors(t.clone(memory_format=torch.contiguous_format) for t in e.tensors)
        self.e = replace(mine, mask=camera.mask, weights=camera.weights)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=memory):
            self.numbers, self.z = add_gradient(prior, camera, self.e, share)

    def play(self, e: Examples) -> tuple[Tensor, Tensor]:
        """Of other examples of the layout."""
        for mine, new in zip(self.e.tensors, e.tensors, strict=True):
            mine.copy_(new)
        self.graph.replay()
        return self.numbers.clone(), self.z.clone()
