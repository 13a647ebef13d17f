"""A GPU in under six minutes: its speed against the CPU, with CUDA graphs and without, profiles, and its tests."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile
from training.cameras import AnyCamera
from training.chance import Chance
from training.examples import draw_examples
from training.looks import Looks, add_gradient
from training.scenes import Pictures, Scenes

from benchmarks.timing import time_in_turns
from cassi import reconstruct
from cassi.kernels.graphs import Repeated
from cassi.optics.single_disperser import CASSI
from cassi.priors.learned import LearnedPrior, Size, shipped_prior
from cassi.priors.nonlocal_lowrank import NonlocalDenoiser
from cassi.priors.spectral_basis import coefficient_weights, smooth_basis
from cassi.running.pipeline import TOGETHER
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene
from cassi.solvers.subspace_tv import subspace_tv
from cassi.solvers.unrolled import Steps, unrolled

TESTS = Path(__file__).parents[2] / "tests"
COMPONENTS, SPAN = 10, 16  # spectra of the scene; iterations that are timed together
ROWS = 15  # of a profile
MAX_SECONDS = 200  # that the tests may take [s]


def gpu(device: torch.device, *, side: int = 256, bands: int = 28, seconds: float = 4.0, tests: bool = True) -> str:
    """Speed, frames alone and together, two profiles and tests as Markdown.

    Args:
        device: a GPU, which is compared with the CPU; the CPU itself only shows that all of this runs.
        side, bands: of the scene.
        seconds: of each timing, the whole default apart.
        tests: whether the tests on CUDA are run.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU; not measured on a GPU"
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.get_num_threads()} threads of the CPU"
    mask, y, x = _snapshot(side, bands)
    options = {"num_bands": bands, "step": 2, "camera": "as-given"}

    def default(on: torch.device) -> object:
        return reconstruct(y, mask, device=on, **options)

    parts = [f"{name}; {versions}; float32."]
    parts.append(_speed(device, mask, y, x, default, seconds))
    parts.append(_frames(device, mask, y, x, options, seconds))
    parts.append(_profile("The default", partial(default, device), device))
    size = (80, 160) if side > 160 else (16, 24)
    graph, eager = _training_step(device, size)
    parts.append(_training_speed(graph, eager, device, seconds))
    parts.append(_profile("A training step", graph, device))
    if tests:  # last, as they may take long
        parts.append(_tests())
    return "\n\n".join(parts)


def _snapshot(side: int, bands: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mask, snapshot, and cube of a painted scene."""
    generator = torch.Generator().manual_seed(0)
    wavelengths = torch.linspace(450, 650, bands, dtype=torch.float64)
    x = procedural_scene(side, side, wavelengths, generator=generator).float()
    mask = random_mask(side, side, generator=generator).float()
    return mask, CASSI.from_step(mask, 2, bands).forward(x), x


def _tests() -> str:
    """The tests that compute on CUDA where there is a device, in one sentence; of failures what they say."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", "cuda or device", TESTS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MAX_SECONDS)
    except subprocess.TimeoutExpired:
        return f"The tests on CUDA take longer than {MAX_SECONDS} s and were stopped."
    if done.returncode:
        return f"The tests on CUDA fail: the times above may be those of wrong results.\n\n{done.stdout[-4000:]}"
    last = re.sub(r" in .*", "", done.stdout.strip().splitlines()[-1])
    return f"`pytest -k 'cuda or device'`: {last}."


def _steps(mask: torch.Tensor, y: torch.Tensor, x: torch.Tensor, on: torch.device) -> dict[str, Callable[[], object]]:
    """What a run is made of, by name, on a device."""
    A, y, x = CASSI.from_step(mask, 2, len(x)).to(on), y.to(on), x.to(on)
    basis = smooth_basis(len(x), min(COMPONENTS, len(x))).to(x)
    _, state = subspace_tv(A, y, basis, num_iters=SPAN)
    sigma = 0.5 * coefficient_weights(len(basis)).float() * float(x.mean())
    denoise = NonlocalDenoiser(sigma)
    denoise(state.z.clone(), 0)
    steps: dict[str, Callable[[], object]] = {
        "forward": partial(A.forward, x),
        "adjoint": partial(A.adjoint, y),
        "pseudo-inverse": partial(A.pinv, y),
        f"total variation, {SPAN} iterations": partial(subspace_tv, A, y, basis, num_iters=SPAN, state=state),
        "non-local, with its matching": lambda: NonlocalDenoiser(sigma)(state.z.clone(), 0),
        "non-local, kept filters": lambda: denoise(state.z.clone(), 1),
    }
    prior = shipped_prior().on(on)
    B = smooth_basis(len(x), prior.size.components).to(x)
    start, variance = torch.einsum("kc,chw->khw", B, x), torch.full_like(y, 1e-4)
    given = Steps.of(A, B, prior).repeated()

    def network() -> None:
        with torch.no_grad():
            unrolled(A, y, B, prior, start, variance=variance, level=float(x.mean()), steps=given)

    steps["network"] = network
    return steps


def _speed(
    device: torch.device,
    mask: torch.Tensor,
    y: torch.Tensor,
    x: torch.Tensor,
    default: Callable[[torch.device], object],
    seconds: float,
) -> str:
    """Milliseconds of each step on the device and on the CPU."""
    cpu = torch.device("cpu")
    here, there = _steps(mask, y, x, device), _steps(mask, y, x, cpu)
    here["default"], there["default"] = partial(default, device), partial(default, cpu)
    size = " x ".join(str(n) for n in (*x.shape[1:], len(x)))
    lines = [f"| {size} | GPU, ms | CPU, ms | CPU / GPU |", "|---|---|---|---|"]
    for name, step in here.items():
        times = {
            "GPU": time_in_turns({name: step}, device=device, seconds=seconds)[name],
            "CPU": time_in_turns({name: there[name]}, device=cpu, seconds=seconds / 4)[name],
        }
        ratio = times["CPU"] / times["GPU"]
        lines.append(f"| {name} | {1e3 * times['GPU']:.3g} | {1e3 * times['CPU']:.3g} | {ratio:.3g} |")
    return "\n".join(lines)


def _frames(
    device: torch.device, mask: torch.Tensor, y: torch.Tensor, x: torch.Tensor, options: dict[str, Any], seconds: float
) -> str:
    """Milliseconds a frame with CUDA graphs and without, alone and of a stack; and how far their cubes are apart."""
    A = CASSI.from_step(mask, options["step"], len(x))
    stack = torch.stack([A.forward(x.roll(k, -1)) for k in range(TOGETHER)])
    plan = reconstruct(y, mask, device=device, **options).plan
    ways = {
        "a frame": (y, None),
        "a frame with a plan": (y, plan),
        f"{TOGETHER} frames with a plan, each": (stack, plan),
    }

    def solve(name: str) -> torch.Tensor:
        frames, plan = ways[name]
        return reconstruct(frames, mask, device=device, plan=plan, **options).cube

    times, cubes = [], []
    for graphs in (True, False):
        with nullcontext() if graphs else patch.object(Repeated, "__call__", lambda self, *given: list(self.f(*given))):
            times.append(time_in_turns({name: partial(solve, name) for name in ways}, device=device, seconds=seconds))
            cubes.append([solve(name) for name in ways])
    lines = ["| frames | with CUDA graphs, ms | without, ms | difference of the cubes |", "|---|---|---|---|"]
    for name, one, other in zip(ways, *cubes, strict=True):
        count = len(one) if one.ndim > x.ndim else 1
        each = [f"{1e3 * some[name] / count:.3g}" for some in times]
        lines.append(f"| {name} | {each[0]} | {each[1]} | {float((one - other).abs().max() / other.max()):.1e} |")
    alone = torch.stack([reconstruct(one, mask, device=device, plan=plan, **options).cube for one in stack[:2]])
    apart = float((cubes[0][-1][:2] - alone).abs().max() / alone.max())
    return (
        "\n".join(lines) + f"\n\nCubes of a stack and of its frames alone differ by {apart:.1e} of the largest value."
    )


def _training_step(device: torch.device, size: tuple[int, int]) -> tuple[Callable[[], object], Callable[[], object]]:
    """Start, loss and gradient of a new network for sixteen scenes through one camera: as a CUDA graph, and eager."""
    cube = (255 * _snapshot(max(size), 31)[2].clamp(0, 1).sqrt()).byte().numpy()
    painted, spectra = Pictures([cube], device), torch.ones(1, 31, device=device)
    scenes = Scenes(Pictures([cube[::12]], device), spectra, spectra, painted)
    prior = LearnedPrior(Size(stages=6, light=1)).to(device).train()
    e = draw_examples(Chance(0, device), scenes, AnyCamera([]), 16, size, prior.size.components)
    looks = Looks(prior, 1.0, 40)
    return lambda: looks(e), lambda: add_gradient(prior, e.camera, e, 1.0, looks.start_iters)


def _training_speed(
    graph: Callable[[], object], eager: Callable[[], object], device: torch.device, seconds: float
) -> str:
    """Milliseconds of a training step in both ways."""
    times = time_in_turns({"as a CUDA graph": graph, "eager": eager}, device=device, seconds=seconds)
    rows = [f"| {name} | {1e3 * value:.3g} |" for name, value in times.items()]
    return "\n".join(["| a training step | ms |", "|---|---|", *rows])


def _profile(title: str, call: Callable[[], object], device: torch.device) -> str:
    """The operations that take the most time of a call, after one that is not counted."""
    on_gpu = device.type == "cuda"
    call()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as record:
        call()
        if on_gpu:
            torch.cuda.synchronize(device)
    table = record.key_averages().table(
        sort_by=f"self_{device.type}_time_total", row_limit=ROWS, max_name_column_width=48
    )
    return f"{title}, by torch.profiler:\n\n```text\n{table.strip()}\n```"
