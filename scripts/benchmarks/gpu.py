"""A GPU against the CPU: what a run is made of, and the run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.timing import time_in_turns
from cassi import reconstruct
from cassi.optics.single_disperser import CASSI
from cassi.priors.learned import shipped_prior
from cassi.priors.nonlocal_lowrank import NonlocalDenoiser
from cassi.priors.spectral_basis import coefficient_weights, smooth_basis
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene
from cassi.solvers.subspace_tv import subspace_tv
from cassi.solvers.unrolled import unrolled

COMPONENTS, SPAN = 10, 16  # spectra of the scene; iterations that are timed together


def gpu(device: torch.device, *, side: int = 256, bands: int = 28, seconds: float = 4.0) -> str:
    """Milliseconds of each step of a run on the device and on the CPU, as Markdown.

    Args:
        device: a GPU; the CPU itself only shows that all of this runs.
        side, bands: of the scene.
        seconds: of each timing, the whole default apart.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU; not measured on a GPU"
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.get_num_threads()} threads of the CPU"
    generator = torch.Generator().manual_seed(0)
    x = procedural_scene(side, side, torch.linspace(450, 650, bands), generator=generator)
    mask, cpu = random_mask(side, side, generator=generator), torch.device("cpu")
    y = CASSI.from_step(mask, 2, bands).forward(x)
    here, there = _steps(mask, y, x, device), _steps(mask, y, x, cpu)
    lines = [f"| {side} x {side} x {bands} | GPU, ms | CPU, ms | CPU / GPU |", "|---|---|---|---|"]
    for step in here:
        on_gpu = 1e3 * time_in_turns({"": here[step]}, device=device, seconds=seconds)[""]
        on_cpu = 1e3 * time_in_turns({"": there[step]}, device=cpu, seconds=seconds / 4)[""]
        lines.append(f"| {step} | {on_gpu:.3g} | {on_cpu:.3g} | {on_cpu / on_gpu:.3g} |")
    return f"{name}; {versions}; float32.\n\n" + "\n".join(lines)


def _steps(mask: torch.Tensor, y: torch.Tensor, x: torch.Tensor, on: torch.device) -> dict[str, Callable[[], object]]:
    """What a run is made of, by name, on a device."""
    A, y, x = CASSI.from_step(mask, 2, len(x)).to(on), y.to(on), x.to(on)
    basis = smooth_basis(len(x), min(COMPONENTS, len(x))).to(x)
    _, state = subspace_tv(A, y, basis, num_iters=SPAN)
    sigma = 0.5 * coefficient_weights(len(basis)).float() * float(x.mean())
    denoise = NonlocalDenoiser(sigma, refresh=2)
    denoise(state.z.clone(), 0)
    steps: dict[str, Callable[[], object]] = {
        "forward": partial(A.forward, x),
        "adjoint": partial(A.adjoint, y),
        "pseudo-inverse": partial(A.pinv, y),
        f"total variation, {SPAN} iterations": partial(subspace_tv, A, y, basis, num_iters=SPAN, state=state),
        "non-local, with its matching": lambda: denoise(state.z.clone(), 0),
        "non-local, kept filters": lambda: denoise(state.z.clone(), 1),
    }
    if (shipped := shipped_prior()) is not None:
        prior = shipped.on(on)
        B = smooth_basis(len(x), prior.size.components).to(x)
        start, variance = torch.einsum("kc,chw->khw", B, x), torch.full_like(y, 1e-4)

        def network() -> None:
            with torch.no_grad():
                unrolled(A, y, B, prior, start, variance=variance, level=float(x.mean()))

        steps["network"] = network
    options = {"num_bands": len(x), "step": 2, "camera": "as-given", "device": on}
    steps["default"] = partial(reconstruct, y.cpu(), mask, **options)
    return steps
