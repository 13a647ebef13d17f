"""Speed side by side: the usual ways to write a step against the package's, the solvers against a published loop.

Every figure is the median of turns (`benchmarks.timing`); every comparison is first checked for agreement.
"""

from __future__ import annotations

import math
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from benchmarks import textbook_shift_sum as usual
from benchmarks.quality import Scene, scikit_image_gap_tv, simulated_scenes
from benchmarks.siblings import siblings
from benchmarks.throughput import throughput
from benchmarks.timing import check_agreement, peak_memory, time_in_turns
from cassi.kernels.dispatch import eager
from cassi.optics.single_disperser import CASSI
from cassi.priors.spectral_basis import smooth_basis
from cassi.priors.tv import tv_steps
from cassi.solvers.admm import admm_tv
from cassi.solvers.gap import gap_tv
from cassi.solvers.loop import Record, Result
from cassi.solvers.subspace_tv import subspace_tv

T = TypeVar("T")
LOOP = {"weight": 0.1, "num_iters": 50, "tv_iters": 5}  # of the published loop
TV_WEIGHT = 0.15  # of our solvers, for scenes between 0 and 1
RHO = 0.001  # of ADMM, in units of the largest gram_diag: small, as the data are without noise
SCENES = ("KAIST 1", "CAVE cloth")


@dataclass(frozen=True)
class Size:
    """A batch of snapshots with shifts 0, step, 2 step, ..."""

    batch: int
    bands: int
    height: int
    width: int
    step: int = 2

    def __str__(self) -> str:
        return f"B={self.batch} C={self.bands} {self.height}x{self.width} S={self.step}"

    def camera(self, device: torch.device) -> CASSI:
        generator = torch.Generator().manual_seed(0)
        mask = torch.rand(self.height, self.width, generator=generator) + 0.1
        return CASSI.from_step(mask.to(device), step=self.step, num_bands=self.bands)

    def cube(self, device: torch.device) -> Tensor:
        generator = torch.Generator(device).manual_seed(1)
        return torch.rand(self.batch, self.bands, self.height, self.width, generator=generator, device=device)


SIZES = (Size(16, 28, 256, 256), Size(1, 28, 256, 256), Size(1, 28, 1024, 1024), Size(1, 512, 256, 256))
QUICK_SIZES = (Size(2, 28, 128, 128), Size(1, 64, 64, 64))


@dataclass(frozen=True)
class Comparison:
    """Seconds a call of each way to do one task; the first way is what the others are measured against."""

    task: str
    size: str
    seconds: dict[str, float]
    bandwidth: dict[str, float]
    """Of the memory traffic the task cannot avoid, as a fraction of the bandwidth measured in the same turns."""

    def speedup(self, way: str) -> float:
        return next(iter(self.seconds.values())) / self.seconds[way]

    def markdown(self) -> str:
        baseline = next(iter(self.seconds))
        lines = [f"| {self.task}, {self.size} | ms | speed against {baseline} | of bandwidth |", "|---|---|---|---|"]
        for way, seconds in self.seconds.items():
            fraction = f"{self.bandwidth[way]:.2f}" if way in self.bandwidth else ""
            lines.append(f"| {way} | {1e3 * seconds:.3g} | {self.speedup(way):.2f} | {fraction} |")
        return "\n".join(lines)


def speed(
    device: torch.device, *, data: Path | None = None, quick: bool = False, report: Callable[[str], None] = print
) -> str:
    """Run the whole comparison and return it as Markdown.

    Args:
        device: CPU or CUDA.
        data: folder with kaist/*.h5 and cave/*.mat; without it the solvers run on the project's procedural scene.
        quick: small sizes, for a look within a minute.
        report: called with each finished part.
    """
    parts: list[str] = []

    def add(text: str) -> None:
        parts.append(text)
        report(text + "\n")

    add(environment(device))
    seconds = 0.4 if quick else 3.0
    for size in QUICK_SIZES if quick else SIZES:
        for compare in (compare_forward, compare_inverse, compare_gradient, compare_data_step):
            add(compare(size, device, seconds).markdown())
    for size in (QUICK_SIZES if quick else SIZES)[:2]:
        add(compare_total_variation(size, device, seconds).markdown())
        add(compare_default_solver(size, device, seconds).markdown())
    scenes = list(simulated_scenes(data, size=96 if quick else 256))
    add(time_to_quality([s for s in scenes if s.name in SCENES] or scenes[:1], device))
    add(growth(device, smallest=32 if quick else 64, seconds=seconds / 3))
    add(memory(QUICK_SIZES[-1] if quick else SIZES[1], device))
    for part in siblings(device, quick=quick):
        add(part)
    if not quick:  # each way starts processes
        add(throughput())
    return "\n\n".join(parts)


def environment(device: torch.device) -> str:
    """What the figures depend on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    return (
        f"{name}, {torch.get_num_threads()} threads; Python {platform.python_version()}, torch {torch.__version__}; "
        f"commit {commit}; float32, the scikit-image loop float64"
    )


def compare_forward(size: Size, device: torch.device, seconds: float) -> Comparison:
    """y = Phi x, masks included."""
    A, x = size.camera(device), size.cube(device)
    y = A.forward(x)
    ways: dict[str, Callable[[], Tensor]] = {
        "Method 1, loop": lambda: usual.sum_by_slices(A.mask * x, A.shifts),
        "Method 2, conv2d": lambda: usual.sum_by_convolution(A.mask * x, A.shifts),
        "Method 3, scatter_add_": lambda: usual.sum_by_scatter(A.mask * x, A.shifts),
        "cassi, eager": _eagerly(lambda: A.forward(x)),
        "cassi": lambda: A.forward(x),
    }
    if size.bands > 100:
        del ways["Method 2, conv2d"]  # minutes a call
    check_agreement(ways)
    times = time_in_turns({**ways, "read": x.sum}, device=device, seconds=seconds)
    limit = times.pop("read") / x.numel()
    return Comparison("forward", str(size), times, {w: limit * (x.numel() + y.numel()) / t for w, t in times.items()})


def compare_inverse(size: Size, device: torch.device, seconds: float) -> Comparison:
    """A cube that explains y: the thread's right inverse (not the smallest such cube) against the pseudo-inverse."""
    A, out = size.camera(device), size.cube(device)
    y = A.forward(out)
    alpha, copy = usual.overlap_count(A.mask, A.shifts), torch.empty_like(out)
    ways: dict[str, Callable[[], Tensor]] = {
        "shift_back(y / alpha) / mask": lambda: usual.inverse_by_division(y, A.mask, A.shifts, alpha),
        "cassi, eager": _eagerly(lambda: A.pinv(y)),
        "cassi": lambda: A.pinv(y),
    }
    check_agreement({name: lambda way=way: A.forward(way()) for name, way in ways.items()})  # type: ignore[misc]
    times = time_in_turns({**ways, "copy": lambda: copy.copy_(out)}, device=device, seconds=seconds)
    limit = times.pop("copy") / (2 * out.numel())
    fractions = {w: limit * (out.numel() + y.numel()) / t for w, t in times.items()}
    return Comparison("pseudo-inverse", str(size), times, fractions)


def compare_gradient(size: Size, device: torch.device, seconds: float) -> Comparison:
    """Forward and backward: the gradient of <g, Phi x> with respect to x."""
    A, x = size.camera(device), size.cube(device).requires_grad_()
    g = torch.ones_like(A.forward(x.detach()))

    def gradient(forward: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return lambda: torch.autograd.grad(forward(), x, g)[0]

    ways = {
        "Method 1, loop": gradient(lambda: usual.sum_by_slices(A.mask * x, A.shifts)),
        "Method 2, conv2d": gradient(lambda: usual.sum_by_convolution(A.mask * x, A.shifts)),
        "Method 3, scatter_add_": gradient(lambda: usual.sum_by_scatter(A.mask * x, A.shifts)),
        "cassi, eager": _eagerly(gradient(lambda: A.forward(x))),
        "cassi": gradient(lambda: A.forward(x)),
    }
    if size.bands > 100:
        del ways["Method 2, conv2d"]
    check_agreement(ways)
    times = time_in_turns(ways, device=device, seconds=seconds)
    return Comparison("forward and backward", str(size), times, {})


def compare_data_step(size: Size, device: torch.device, seconds: float) -> Comparison:
    """x + Phi^T [(y - Phi x) / gram]: new tensors throughout, against one pass in place."""
    A, x = size.camera(device), size.cube(device)
    y = A.forward(x) + 0.01
    gram, out, y_x, y_v = A.gram_diag(), torch.empty_like(x), y.clone(), torch.empty_like(y)

    def fused(target: Tensor) -> Tensor:
        if not A.data_step_(x, target, y, y_x, y_v, accelerate=False):  # eager
            torch.add(x, A.pinv(y - A.forward(x)), out=target)
        return target

    ways: dict[str, Callable[[], Tensor]] = {
        "naive": lambda: usual.data_step_naive(x, y, A.mask, A.shifts, gram),
        "cassi, eager, into another cube": _eagerly(lambda: fused(out)),
        "cassi, into another cube": lambda: fused(out),
    }
    check_agreement(ways)
    ways["cassi, eager, in place"] = _eagerly(lambda: fused(x))
    ways["cassi, in place"] = lambda: fused(x)
    copy = torch.empty_like(x)
    times = time_in_turns({**ways, "copy": lambda: copy.copy_(x)}, device=device, seconds=seconds)
    limit = times.pop("copy") / (2 * x.numel())
    fractions = {w: limit * (2 * x.numel() + 3 * y.numel()) / t for w, t in times.items()}
    return Comparison("GAP data step", str(size), times, fractions)


def compare_total_variation(size: Size, device: torch.device, seconds: float) -> Comparison:
    """The denoising of a GAP-TV iteration: three dual steps."""
    u = size.cube(device)
    weight, q = torch.tensor(TV_WEIGHT), u.new_zeros((2, *u.shape))
    spare = torch.empty_like(q)

    def denoise() -> None:
        tv_steps(u, weight, q, spare, num_iters=3)

    ways = {"cassi, eager": _eagerly(denoise), "cassi": denoise}
    return Comparison("TV, three dual steps", str(size), time_in_turns(ways, device=device, seconds=seconds), {})


def compare_default_solver(size: Size, device: torch.device, seconds: float) -> Comparison:
    """Ten iterations of the default solver with its data step, total variation and residuals."""
    A, x = size.camera(device), size.cube(device)
    y, basis = A.forward(x), smooth_basis(size.bands, min(8, size.bands))

    def solve() -> Tensor:
        return subspace_tv(A, y, basis, num_iters=10)[0].x

    ways = {"cassi, eager": _eagerly(solve), "cassi": solve}
    check_agreement(ways, tolerance=1e-2)  # rounding grows over iterations
    times = time_in_turns(ways, device=device, seconds=seconds)
    return Comparison("default solver, ten iterations", str(size), times, {})


def time_to_quality(scenes: list[Scene], device: torch.device) -> str:
    """Seconds that our solvers need to come as close to the truth as a scikit-image GAP-TV loop ends."""
    lines = ["| scene | solver | PSNR [dB] | iterations | s | speed against the loop |", "|---|---|---|---|---|---|"]
    for scene in scenes:
        start = time.perf_counter()
        x = scikit_image_gap_tv(scene, **LOOP)  # type: ignore[arg-type]
        loop = time.perf_counter() - start
        target = scene.psnr(x)
        lines.append(f"| {scene.name} | scikit-image loop | {target:.2f} | {LOOP['num_iters']} | {loop:.2f} | 1 |")
        for name, solve in tv_solvers(scene.A.to(device), scene.y.to(device)).items():
            found = iterations_to(solve, scene, target)
            if found is None:
                lines.append(f"| {scene.name} | {name} | not reached in 200 iterations | | | |")
                continue
            again = partial(solve, num_iters=found)
            seconds = time_in_turns({name: again}, device=device, seconds=3.0, max_turns=5)[name]
            reached = scene.psnr(again().x)
            lines.append(f"| {scene.name} | {name} | {reached:.2f} | {found} | {seconds:.3f} | {loop / seconds:.1f} |")
    caption = (
        f"Time to the PSNR at which the scikit-image loop ends (Chambolle TV, weight {LOOP['weight']}, "
        f"{LOOP['tv_iters']} steps, {LOOP['num_iters']} iterations). KAIST: mean over bands only"
    )
    return caption + "\n\n" + "\n".join(lines)


def tv_solvers(A: CASSI, y: Tensor) -> dict[str, Callable[..., Result]]:
    """GAP-TV and ADMM-TV with the settings of the comparison, as functions of num_iters and monitor."""
    rho = RHO * A.norm() ** 2
    return {
        "GAP-TV": partial(gap_tv, A, y, tv_weight=TV_WEIGHT),
        "ADMM-TV": partial(admm_tv, A, y, tv_weight=TV_WEIGHT * rho, rho=rho, tv_iters=5, memory=0.5),
    }


def iterations_to(solve: Callable[..., Result], scene: Scene, target: float) -> int | None:
    """The first iteration whose cube is at least as good as `target`, or None within 200."""
    found: list[int] = []

    def close_enough(record: Record, x: Tensor) -> bool:
        if scene.psnr(x) >= target:
            found.append(record.iteration)
        return bool(found)

    solve(num_iters=200, monitor=close_enough)
    return found[0] if found else None


def growth(device: torch.device, *, smallest: int, seconds: float) -> str:
    """How the time of a GAP-TV iteration grows: the exponent of each factor, fitted over four doublings or fewer."""
    n = smallest
    series = {
        "H W": [Size(1, 28, n * k, n * k) for k in (1, 2, 4, 8)],
        "C": [Size(1, c, 2 * n, 2 * n, 1) for c in (8, 16, 32, 64)],
        "B": [Size(b, 28, n, n) for b in (1, 2, 4, 8)],
    }
    lines = ["| factor | sizes | ns a voxel | exponent of time | exponent of memory |", "|---|---|---|---|---|"]
    for factor, sizes in series.items():
        each, peaks = [], []
        for size in sizes:
            A, x = size.camera(device), size.cube(device)
            y = A.forward(x)
            run = partial(gap_tv, A, y, tv_weight=TV_WEIGHT)
            ways = {"3": partial(run, num_iters=3), "9": partial(run, num_iters=9)}
            times = time_in_turns(ways, device=device, seconds=seconds)
            each.append((times["9"] - times["3"]) / 6)
            peaks.append(peak_memory(ways["3"], device))
        voxels = [s.batch * s.bands * s.height * s.width for s in sizes]
        per_voxel = ", ".join(f"{1e9 * t / v:.2f}" for t, v in zip(each, voxels, strict=True))
        slopes = f"{_slope(voxels, each):.2f} | {_slope(voxels, peaks):.2f}"
        lines.append(f"| {factor} | {sizes[0]} to {sizes[-1]} | {per_voxel} | {slopes} |")
    return "Growth of a GAP-TV iteration with 5 dual steps (exponent 1: in proportion)\n\n" + "\n".join(lines)


def memory(size: Size, device: torch.device) -> str:
    """Peak memory of the solvers, the cube they return included, and snapshots a minute."""
    A, x = size.camera(device), size.cube(device)
    y = A.forward(x)
    cube = x.numel() * x.element_size()
    solvers = tv_solvers(A, y)
    times = time_in_turns(solvers, device=device, seconds=3.0, max_turns=5)
    lines = [
        "| solver, 60 iterations | peak memory [cubes] | eager [cubes] | snapshots a minute |",
        "|---|---|---|---|",
    ]
    for name, solve in solvers.items():
        held, held_eagerly = (peak_memory(f, device) / cube for f in (solve, _eagerly(solve)))
        lines.append(f"| {name} | {held:.2f} | {held_eagerly:.2f} | {60 * size.batch / times[name]:.0f} |")
    return f"Memory and throughput, {size} (a cube: {cube / 1e6:.1f} MB)\n\n" + "\n".join(lines)


def _eagerly(call: Callable[[], T]) -> Callable[[], T]:
    def run() -> T:
        with eager():
            return call()

    return run


def _slope(sizes: list[int], values: list[float] | list[int]) -> float:
    """Exponent of a power law, by least squares on the logarithms."""
    fit = statistics.linear_regression([math.log(s) for s in sizes], [math.log(max(v, 1e-12)) for v in values])
    return fit.slope


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
