"""A GPU in under six minutes: its speed against the CPU, profiles, and its tests.

What counts most comes first. When the time is up the row that is being measured is given up, and it and all that
follow say so.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from training.cameras import AnyCamera
from training.chance import Chance
from training.examples import draw_examples
from training.looks import Looks, add_gradient, quick
from training.scenes import Pictures, Scenes

from benchmarks.throughput import frames_a_minute, make_frames
from benchmarks.timing import time_in_turns
from cassi import reconstruct
from cassi.errors import one_line
from cassi.optics.imprint import imprint_on
from cassi.optics.measurement import Measurement
from cassi.optics.single_disperser import CASSI
from cassi.priors.learned import LearnedPrior, Size, shipped_prior
from cassi.priors.nonlocal_lowrank import NonlocalDenoiser
from cassi.priors.spectral_basis import coefficient_weights, smooth_basis
from cassi.running.many import find_frames, reconstruct_many
from cassi.running.pipeline import MAX_BATCH
from cassi.self_calibration.search import find_camera
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene
from cassi.solvers.subspace_tv import subspace_tv
from cassi.solvers.unrolled import unrolled

TESTS = Path(__file__).parents[2] / "tests"
COMPONENTS, SPAN = 10, 16  # spectra of the scene; iterations that are timed together
ROWS = 15  # of a profile
LARGE = 660 / 256, 714 / 256  # sides of a large frame, in those of the usual one
CPU = torch.device("cpu")


class OutOfTimeError(BaseException):
    """The time is up; nothing that is measured takes it for an error of its own."""


@dataclass
class Clock:
    """What is measured within a time, and reported as it is found.

    Attributes:
        end: by `time.monotonic`.
        report: called with each line.
    """

    end: float
    report: Callable[[str], None]
    lines: list[str] = field(default_factory=list)

    def say(self, *lines: str) -> None:
        for line in lines:
            self.lines.append(line)
            self.report(line)

    def row(self, name: str, measure: Callable[[], str], cell: str = "| {} | {} |") -> None:
        """A line with what is measured."""
        try:
            with self.running():
                found = measure()
        except OutOfTimeError:
            found = "not measured, out of time"
        except Exception as error:  # the others are wanted all the same
            found = f"failed, {type(error).__name__}: {one_line(error)}"
        self.say(cell.format(name, found))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within it OutOfTimeError is raised when the time is up, on Linux in the middle of what is running."""
        if (left := self.end - time.monotonic()) <= 0:
            raise OutOfTimeError
        before = signal.signal(signal.SIGALRM, _ring)
        signal.setitimer(signal.ITIMER_REAL, left)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _ring(*_: object) -> None:
    raise OutOfTimeError


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def gpu(
    device: torch.device,
    *,
    size: int = 256,
    bands: int = 28,
    seconds: float = 1.0,
    budget: float = 340.0,
    tests: bool = True,
    report: Callable[[str], None] = _tell,
) -> str:
    """Frames alone and together, steps on the device and the CPU, two profiles and tests as Markdown.

    Args:
        device: a GPU, which is compared with the CPU; the CPU itself only shows that all of this runs.
        size, bands: of the scene.
        seconds: of each timing, or three calls where that takes longer.
        budget: seconds of all of it.
        tests: whether the tests on CUDA are run.
        report: called with each line; by default it is printed beside the output.
    """
    clock = Clock(time.monotonic() + budget, report)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU; not measured on a GPU"
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.get_num_threads()} threads of the CPU"
    clock.say(f"{name}; {versions}; float32; {size} x {size} x {bands}.")
    options = {"num_bands": bands, "step": 2, "camera": "as-given"}
    scene = _snapshot(size, size, bands)
    _frames(clock, device, scene, options, seconds)
    _steps(clock, device, scene, options, seconds)
    mask, y, _ = scene
    _profile(clock, "The default", lambda: partial(reconstruct, y, mask, device=device, **options), device)
    _training(clock, device, (80, 160) if size > 160 else (16, 24), seconds)
    if tests:
        clock.row("`pytest -k 'cuda or device'`", _tests, "\n{}: {}")
    return "\n".join(clock.lines)


Scene = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _snapshot(height: int, width: int, bands: int) -> Scene:
    """Mask, snapshot, and cube of a painted scene."""
    generator = torch.Generator().manual_seed(0)
    wavelengths = torch.linspace(450, 650, bands, dtype=torch.float64)
    x = procedural_scene(height, width, wavelengths, generator=generator).float()
    mask = random_mask(height, width, generator=generator).float()
    return mask, CASSI.from_step(mask, 2, bands).forward(x), x


def _timed(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Milliseconds, of a call that compiles nothing."""
    call()
    return 1e3 * time_in_turns({"": call}, device=device, seconds=seconds)[""]


def _frames(clock: Clock, device: torch.device, scene: Scene, options: dict[str, Any], seconds: float) -> None:
    """Milliseconds a frame, alone and of a stack, of a folder with reading and writing, and of a large frame; how far
    cubes of a stack are from those of its frames alone."""
    mask, y, x = scene
    A = CASSI.from_step(mask, options["step"], len(x))
    stack = torch.stack([A.forward(x.roll(k, -1)) for k in range(MAX_BATCH)])
    plans: list[Any] = []

    def plan() -> Any:
        if not plans:
            plans.append(reconstruct(y, mask, device=device, **options).plan)
        return plans[0]

    def frame(frames: torch.Tensor, *, planned: bool) -> str:
        more = {**options, "device": device, "plan": plan() if planned else None}
        count = len(frames) if frames.ndim > y.ndim else 1
        return f"{_timed(lambda: reconstruct(frames, mask, **more), device, seconds) / count:.3g}"

    def folder() -> str:
        with tempfile.TemporaryDirectory() as root:
            make_frames(Path(root, "in"), 2 * MAX_BATCH, len(mask), len(x))
            solve = partial(reconstruct, camera="as-given", plan=plan(), device=device)
            done = reconstruct_many(find_frames(Path(root, "in")), Path(root, "out"), solve=solve)
            if done.failed:
                raise RuntimeError(str(done.failed))
            return f"{6e4 / frames_a_minute(Path(root, 'out')):.3g}"

    def large() -> str:
        mask, y, _ = _snapshot(*(round(len(scene[0]) * share) for share in LARGE), len(x))
        return f"{_timed(lambda: reconstruct(y, mask, device=device, **options), device, seconds):.3g}"

    def alone() -> str:
        more = {**options, "device": device, "plan": plan()}
        together = reconstruct(stack, mask, **more).cube[:2]
        apart = torch.stack([reconstruct(one, mask, **more).cube for one in stack[:2]]) - together
        return f"{float(apart.abs().max() / together.max()):.1e}"

    clock.say("", "| frames | ms |", "|---|---|")
    clock.row("a frame", partial(frame, y, planned=False))
    clock.row("a frame with a plan", partial(frame, y, planned=True))
    clock.row(f"{MAX_BATCH} frames with a plan, each", partial(frame, stack, planned=True))
    clock.row(f"{2 * MAX_BATCH} files with a plan, each, read and written", folder)
    clock.row(" x ".join(str(round(len(mask) * share)) for share in LARGE), large)
    clock.row("Largest difference between cubes of a stack and of its frames alone", alone, "\n{}: {}.")


def _steps(clock: Clock, device: torch.device, scene: Scene, options: dict[str, Any], seconds: float) -> None:
    """Milliseconds of what a run is made of, on the device and on the CPU."""
    mask, y, x = scene
    m = Measurement(y.numpy(), mask.numpy(), CASSI.from_step(mask, 2, len(x)).shifts)

    def solver(on: torch.device) -> tuple[CASSI, torch.Tensor, torch.Tensor, Any]:
        A, b = CASSI.from_step(mask, 2, len(x)).to(on), y.to(on)
        basis = smooth_basis(len(x), min(COMPONENTS, len(x))).to(b)
        return A, b, basis, subspace_tv(A, b, basis, num_iters=SPAN)[1]

    def variation(on: torch.device) -> Callable[[], object]:
        A, b, basis, state = solver(on)
        return partial(subspace_tv, A, b, basis, num_iters=SPAN, state=state)

    def non_local(on: torch.device, *, kept: bool) -> Callable[[], object]:
        _, _, basis, state = solver(on)
        sigma = 0.5 * coefficient_weights(len(basis)).float() * float(x.mean())
        denoise = NonlocalDenoiser(sigma)
        denoise(state.z.clone(), 0)
        return lambda: denoise(state.z.clone(), 1) if kept else NonlocalDenoiser(sigma)(state.z.clone(), 0)

    def network(on: torch.device) -> Callable[[], object]:
        A, prior = CASSI.from_step(mask, 2, len(x)).to(on), shipped_prior().on(on)
        B = smooth_basis(len(x), prior.size.components).to(x).to(on)
        start, b, variance = torch.einsum("kc,chw->khw", B, x.to(on)), y.to(on), torch.full_like(y, 1e-4).to(on)
        solve = partial(unrolled, A, b, B, prior, start, variance=variance, level=float(x.mean()))
        return torch.no_grad()(solve)

    def of_camera(name: str, on: torch.device) -> Callable[[], object]:
        A = CASSI.from_step(mask, 2, len(x)).to(on)
        return partial(getattr(A, name), (x if name == "forward" else y).to(on))

    steps: dict[str, Callable[[torch.device], Callable[[], object]]] = {
        "default": lambda on: partial(reconstruct, y, mask, device=on, **options),
        "search for the camera": lambda on: partial(find_camera, m, device=on),
        "imprint of the mask": lambda on: partial(imprint_on, x.to(on), CASSI.from_step(mask, 2, len(x)).to(on)),
        f"total variation, {SPAN} iterations": variation,
        "non-local, with its matching": partial(non_local, kept=False),
        "non-local, kept filters": partial(non_local, kept=True),
        "network": network,
        "forward": partial(of_camera, "forward"),
        "adjoint": partial(of_camera, "adjoint"),
        "pseudo-inverse": partial(of_camera, "pinv"),
    }

    def ratio(step: Callable[[torch.device], Callable[[], object]]) -> str:
        here, there = _timed(step(device), device, seconds), _timed(step(CPU), CPU, seconds / 4)
        return f"{here:.3g} | {there:.3g} | {there / here:.3g}"

    clock.say("", "| step | GPU, ms | CPU, ms | CPU / GPU |", "|---|---|---|---|")
    for name, step in steps.items():
        clock.row(name, partial(ratio, step))


def _training(clock: Clock, device: torch.device, size: tuple[int, int], seconds: float) -> None:
    """Milliseconds of a step, start, loss and gradient of a new network for sixteen scenes through one camera: as a
    CUDA graph, and eager; and its profile."""
    ways: list[Callable[[], object]] = []

    def step(k: int) -> Callable[[], object]:
        if not ways:
            cube = (255 * _snapshot(max(size), max(size), 31)[2].clamp(0, 1).sqrt()).byte().numpy()
            painted, spectra = Pictures([cube], device), torch.ones(1, 31, device=device)
            scenes = Scenes(Pictures([cube[::12]], device), spectra, spectra, painted)
            prior = LearnedPrior(Size(stages=6, light=1)).to(device).train()
            e = draw_examples(Chance(0, device), scenes, AnyCamera([]), 16, size, prior.size.components)
            looks = Looks(prior, 1.0, 40)

            def eager() -> object:
                quick(e.camera, e, looks.start_iters)
                return add_gradient(prior, e.camera, look, 1.0)

            look = looks.first(e)
            ways.extend([lambda: looks(looks.first(e)), eager])
        return ways[k]

    clock.say("", "| a training step | ms |", "|---|---|")
    for k, name in enumerate(("as a CUDA graph", "eager")):
        clock.row(name, lambda k=k: f"{_timed(step(k), device, seconds):.3g}")  # type: ignore[misc]
    _profile(clock, "A training step", lambda: step(0), device)


def _profile(clock: Clock, title: str, make: Callable[[], Callable[[], object]], device: torch.device) -> None:
    """The operations that take the most time of a call, after one that is not counted."""
    on_gpu = device.type == "cuda"

    def table() -> str:
        call = make()
        call()
        with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as record:
            call()
            if on_gpu:
                torch.cuda.synchronize(device)
        return (
            record.key_averages()
            .table(sort_by=f"self_{device.type}_time_total", row_limit=ROWS, max_name_column_width=48)
            .strip()
        )

    clock.row(title, table, "\n{}, by torch.profiler:\n\n```text\n{}\n```")


def _tests() -> str:
    """The tests that compute on CUDA where there is a device, in a few words; of failures what they say."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", "cuda or device", TESTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"failed: the times above may be those of wrong results.\n\n{done.stdout[-4000:]}"
    return re.sub(r" in .*", "", done.stdout.strip().splitlines()[-1])
