"""Many snapshots: every frame's cube is written whole or not at all, and a killed run continues where it was.

A frame is finished when its cube is on the disk beside the fingerprint of all it was made from: the input's hash and
every parameter. Nothing else is kept between runs; `index.jsonl` beside the cubes, made in the end, is to be read.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from filelock import Timeout
from torch import Tensor

from cassi.errors import InputError, OutputError, counted, one_line
from cassi.files.atomic import DISK_FULL, check_place, file_sha256, hold, remove_abandoned, write_text
from cassi.files.formats.hdf5 import open_file
from cassi.files.frames import find_files, frame_name, natural
from cassi.files.reading import read_measurement
from cassi.kernels.dispatch import pick_device
from cassi.kernels.machine import free_memory, num_cores
from cassi.running.arguments import load, open_files
from cassi.running.fingerprint import Frame, changed_since, fingerprints, named_files, stamps_of
from cassi.running.once import Once
from cassi.running.pipeline import (
    CUBES_AT_ONCE,
    MAX_BATCH,
    Listener,
    SolveFrames,
    frames_that_fit,
    reconstruct_measurement,
)
from cassi.running.progress import StepBar
from cassi.running.reconstruct import reconstruct
from cassi.running.result import Reconstruction, write_result
from cassi.running.turns import Turns
from cassi.running.white import Light
from cassi.settings import Settings
from cassi.solvers.loop import Monitor, Record
from cassi.types import PathLike

if TYPE_CHECKING:
    from cassi.optics.measurement import Measurement

UNKNOWN = float("nan")
RECORD = {  # of a finished frame
    "fingerprint": "", "residual": UNKNOWN, "seconds": UNKNOWN, "verdict": "", "ok": True, "against": "",
    "method": "", "defects": 0,
}  # fmt: skip


def by_name(frames: Iterable[Frame]) -> list[Frame]:
    """The frames; InputError for two whose results would have one name."""
    named: dict[str, Frame] = {}
    for frame in frames:
        if (other := named.setdefault(frame.name, frame)) is not frame:
            both = f"{frame.path} and {other.path}"
            raise InputError(f"{both} would have results of one name; rename one or leave it out")
    return list(named.values())


@dataclass(frozen=True)
class BatchReport:
    """The outcome of a run: frames computed now, found finished, and failed (name to reason); wall seconds.

    `misfits` and `doubts` are of every finished frame, of this run or an earlier one: the verdict on a mask that does
    not fit, and what else speaks against its cube; so are `methods`: the priors that made it.
    """

    computed: int
    found: int
    failed: Mapping[str, str]
    seconds: float
    misfits: Mapping[str, str] = dataclasses.field(default_factory=dict)
    doubts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    methods: Mapping[str, str] = dataclasses.field(default_factory=dict)


def find_frames(
    source: PathLike | Sequence[PathLike], *, count: int | None = None, leave_out: Sequence[PathLike] = ()
) -> list[Frame]:
    """The snapshots that a folder, a pattern, a list of files (see `cassi.files.frames.find_files`) or a stack hold.

    `count`: frames of one file with a stack, see `cassi.files.frame_count`. `leave_out`: files that are no snapshots.

    Raises:
        InputError: nothing found, or two files whose results would have one name.
    """
    if count is not None:
        path = Path(source if isinstance(source, str | os.PathLike) else source[0])
        return [Frame(frame_name(path.stem, k), str(path), k) for k in range(count)]
    return by_name(Frame(file.stem, str(file)) for file in sorted(find_files(source, leave_out), key=natural))


@dataclass(frozen=True)
class SolveWith:
    """Reconstructs a measurement with settings; what `cassi.reconstruct` warns of is among the notes of the result.

    Attributes:
        camera: what is recorded in place of the camera of the settings, if that was found for all frames.
    """

    settings: Settings
    camera: str | None = None

    def __post_init__(self) -> None:
        # of the white reference, and settings with their files read: no part of the value
        object.__setattr__(self, "_lights", Once[Light]())
        object.__setattr__(self, "_opened", Once[Settings]())

    def __call__(
        self, m: Measurement, monitor: Monitor | None = None, frames: SolveFrames | None = None
    ) -> Reconstruction:
        settings: Settings = self._opened.get("settings", partial(open_files, self.settings))  # type: ignore[attr-defined]
        lights = None if settings.searches else self._lights  # type: ignore[attr-defined]
        m, listener = load(m, None, settings), Listener(monitor=monitor)
        result = reconstruct_measurement(m, settings, listener, frames, lights)
        stated = {} if self.camera is None else {"camera": self.camera}
        return replace(result, parameters={**result.parameters, **stated})


def reconstruct_many(
    frames: Sequence[Frame], output: PathLike, *, read: Callable[..., Measurement] = read_measurement,
    solve: Callable[..., Reconstruction] = reconstruct, overwrite: bool = False, batch: int | None = None,
    executor: Executor | None = None, attributes: Mapping[str, object] | None = None,
    after: Callable[[Path], object] | None = None, progress: bool = False,
) -> BatchReport:  # fmt: skip
    """Reconstruct every frame that is not finished yet.

    Each frame is computed alone, with `batch` above 1 on one thread: its cube does not depend on the frames beside it,
    nor on how many there are. On a GPU, frames with one plan and one camera are solved together, which changes cubes by
    rounding alone. Each is compared with its mask; the verdict is among the notes of its cube.

    Args:
        frames: see `find_frames`.
        output: a folder, which gets `<name>_cube.h5` for each frame and `index.jsonl`.
        read: f(path, frames=index) -> Measurement; `cassi.files.read_measurement`, or a `functools.partial` of it with
            the parameters, or a dataclass that can be called. Files named in its keywords or fields (mask ...) count
            by their content.
        solve: f(measurement, monitor=...) -> Reconstruction; `cassi.reconstruct` or a partial of it.
        overwrite: replace cubes that were made with other parameters or from another input.
        batch: frames computed at a time; None: as many as cores and memory allow.
        executor: computes the frames in place of threads of this process: any `concurrent.futures.Executor`, of
            processes, of `mpi4py.futures`, or Dask's `Client.get_executor()`. Its workers read and write the files
            themselves; read and solve must be picklable. It is not shut down here.
        attributes: further provenance for every result.
        after: called with the file of each cube that was written, on its worker; picklable where these are processes.
        progress: show one progress bar for all.

    Returns:
        The `BatchReport`. A frame that fails is recorded and does not stop the others.

    Raises:
        InputError: no frames; finished cubes were made otherwise and `overwrite` is False.
        OutputError: the output cannot be written, or another run is writing there.
    """
    if not frames:
        raise InputError("no frames to reconstruct")
    if batch is not None and batch < 1:
        raise InputError(f"batch must be at least 1, got {batch}")
    start = time.perf_counter()
    if isinstance(solve, partial) and solve.func is reconstruct and not solve.args:
        solve = SolveWith(Settings(**solve.keywords))
    elif solve is reconstruct:
        solve = SolveWith(Settings())
    frames = [frame.absolute() for frame in frames]
    root = Path(os.path.abspath(output))
    with lock_folder(root):
        remove_abandoned(root, {f"{frame.name}{end}" for frame in frames for end in ("_cube.h5", "_report.html")})
        failed = _too_long(root, frames)
        named = [frame for frame in frames if frame.name not in failed]
        finished, todo = _plan(root, named, read, solve, overwrite)
        already = len(finished)
        if todo:
            count = batch or (1 if executor else _at_once(read, solve, [job.frame for job in todo]))
            work = partial(_solve_and_write, read=read, attributes=dict(attributes or {}), after=after)
            workers = _threads(solve, count) if executor is None else nullcontext((executor, {"solve": solve}))
            what = counted(len(todo), "snapshot")
            with workers as (pool, own), StepBar([what], shown=progress) as bar, ExitStack() as given_up:
                names: dict[Future[dict[str, Any]], str] = {}
                for job in todo:
                    names[future := pool.submit(work, job, **own)] = job.frame.name
                    given_up.callback(future.cancel)
                for number, future in enumerate(as_completed(names), start=1):
                    name, error = names[future], future.exception()
                    if isinstance(error, OutputError) and error.kind != "name":
                        raise error
                    if error is None:
                        finished[name] = future.result()
                    else:
                        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
                        failed[name] = kind + one_line(error)
                    bar(what, number / len(todo))
        done = {frame.name: finished[frame.name] for frame in frames if frame.name in finished}
        lines = [{"frame": name, "status": "done", **known} for name, known in done.items()]
        lines += [{"frame": name, "status": "failed", "reason": reason} for name, reason in failed.items()]
        write_text(root / "index.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    misfits = {name: known["verdict"] for name, known in done.items() if not known["ok"]}
    doubts = {name: known["against"] for name, known in done.items() if known["against"]}
    methods = {name: known["method"] for name, known in done.items()}
    return BatchReport(len(done) - already, already, failed, time.perf_counter() - start, misfits, doubts, methods)


# What is finished


@dataclass(frozen=True)
class Job:
    """A frame to compute, the file of its cube, its fingerprint, and the hashes of the files that this is made of."""

    frame: Frame
    cube: Path
    fingerprint: str
    hashes: Mapping[str, str]


def _plan(
    root: Path, frames: Sequence[Frame], read: object, solve: object, overwrite: bool
) -> tuple[dict[str, dict[str, Any]], list[Job]]:
    """Sort the frames into finished ones (with what is known of them) and those to compute."""
    fingerprint_of, common = fingerprints(read, solve), tuple(named_files(read, solve))
    finished: dict[str, dict[str, Any]] = {}
    todo: list[Job] = []
    changed: list[str] = []
    for frame in frames:
        cube = root / f"{frame.name}_cube.h5"
        record, fingerprint = read_record(cube), fingerprint_of(frame)
        if record is not None and record["fingerprint"] == fingerprint:
            finished[frame.name] = record
            continue
        if record is not None:
            changed.append(frame.name)
        hashes = {path: file_sha256(path) for path in stamps_of((*frame.paths, *common))}
        todo.append(Job(frame, cube, fingerprint, hashes))
    if changed and not overwrite:
        raise InputError(
            f"{root}: {len(changed)} of {len(frames)} results are not what this run would compute (first "
            f"{changed[0]}): other parameters, changed input files, or damage; choose another output or allow "
            "overwriting",
            cures=("overwrite",),
        )
    return finished, todo


def _too_long(root: Path, frames: Sequence[Frame]) -> dict[str, str]:
    """The frames whose cubes have names that the drive cannot hold, and why."""
    reasons: dict[str, str] = {}
    for frame in frames:
        try:
            check_place(root / f"{frame.name}_cube.h5", overwrite=True)
        except OutputError as error:
            if error.kind == "name":
                reasons[frame.name] = str(error)
    return reasons


def read_record(cube: Path) -> dict[str, Any] | None:
    """The `RECORD` in the file of a cube, None if there is none; a foreign or damaged file has an empty fingerprint."""
    if not os.path.exists(cube):
        return None
    try:
        with open_file(cube) as file:
            stated = {name: file.attrs.get(name, usual) for name, usual in RECORD.items()}
    except Exception:  # of h5py, undocumented
        return RECORD
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in stated.items()}
    return plain if all(type(plain[name]) is type(usual) for name, usual in RECORD.items()) else RECORD


@contextmanager
def lock_folder(root: Path) -> Iterator[Path]:
    """Make the folder and hold it against a second run; the lock goes with the process, however that ends.

    Raises:
        OutputError: it cannot be made or written to, or another run holds it.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = hold(root / ".lock")
    except Timeout as error:
        left = f" (if none is, delete {Path(error.lock_file).name})" if error.lock_file != str(root / ".lock") else ""
        text = f"{root}: another run is writing there{left}; wait for it or choose another output"
        raise OutputError(text, kind="locked") from error
    except OSError as error:
        raise OutputError(f"{root}: cannot be written: {one_line(error)}") from error
    try:
        yield root
    except OSError as error:  # errors of a snapshot's own files are recorded for that snapshot
        full = error.errno in DISK_FULL
        cure = "the disk is full; free some space and start again" if full else one_line(error)
        raise OutputError(f"{root}: cannot be written: {cure}") from error
    finally:
        lock.release()


# The work


def _at_once(read: Callable[..., Measurement], solve: object, frames: Sequence[Frame]) -> int:
    """How many frames of the first one's size to compute: one a core (of a GPU four, or a batch), as memory allows."""
    device = pick_device(getattr(solve, "settings", Settings()).device)
    values = 1
    for frame in frames:
        with suppress(Exception):  # its worker will say what is wrong with it
            first = frame.read_by(read)
            values = len(first.shifts) * int(np.prod(first.mask.shape[-2:]))
            break
    if device.type == "cuda":
        fit = frames_that_fit(device, values)  # of turns, half of the memory is for those that are read and written
        return max(1, min(MAX_BATCH, fit // 2)) if _in_turns(solve) else min(4, fit)
    return int(max(1, min(num_cores(), free_memory() // (CUBES_AT_ONCE * values * torch.float32.itemsize))))


def _in_turns(solve: object) -> bool:
    """Whether frames may be solved together (`cassi.running.turns`): on a GPU, with a plan."""
    if not isinstance(solve, SolveWith) or solve.settings.plan is None:
        return False
    return pick_device(solve.settings.device).type == "cuda"


@contextmanager
def _threads(solve: Callable[..., Reconstruction], count: int) -> Iterator[tuple[Executor, dict[str, Any]]]:
    """`count` threads, each on one thread of torch where they are several, and what the work there is given; on leaving
    it is given up. Where frames are solved together, twice as many: half of them read and write.
    """
    before, ended = torch.get_num_threads(), threading.Event()
    if count > 1 and _in_turns(solve):
        solve, count = partial(solve, frames=Turns(count, ended.is_set)), 2 * count
    each = 1 if count > 1 else before
    executor = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(each,))
    try:
        yield executor, {"solve": solve, "is_over": ended.is_set}
    finally:
        ended.set()
        executor.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


def _solve_and_write(
    job: Job, *, read: Callable[..., Measurement], solve: Callable[..., Reconstruction],
    attributes: Mapping[str, object], after: Callable[[Path], object] | None, is_over: Callable[[], bool] = bool,
) -> dict[str, Any]:  # fmt: skip
    """One frame, on a worker: the cube goes to the disk, only a few values go back."""
    stamps = stamps_of(job.hashes)
    for path in stamps:
        if file_sha256(path) != job.hashes[path]:
            raise InputError(f"{path}: has changed since the run began; run again")
    m = job.frame.read_by(read)

    def stop(record: Record, cube: Tensor) -> bool:
        return is_over()

    result = solve(m, monitor=stop)
    if is_over():
        raise CancelledError("the run was interrupted")
    if changed := changed_since(stamps):
        raise InputError(changed)
    check = result.check
    known = {
        "fingerprint": job.fingerprint,
        "residual": result.residual,
        "seconds": result.seconds,
        "verdict": "" if check is None else check.verdict,
        "ok": check is None or check.matches,
        "against": "; ".join(result.concerns),
        "method": result.method,
        "defects": 0 if result.camera is None else result.camera.defects,
    }
    write_result(job.cube, result, attributes={**attributes, **known}, overwrite=True)
    if after is not None:
        after(job.cube)
    return known
