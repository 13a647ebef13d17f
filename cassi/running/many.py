"""Many snapshots: every frame's cube is written whole or not at all, and a run that was killed goes on where it was.

A frame is finished when its cube is on the disk beside the fingerprint of all it was made from: the input's hash and
every parameter. Nothing else is kept between runs; `index.jsonl` beside the cubes is a log to read, not to trust.
The work itself is done by Dask (dask.distributed), in this process, in others, or on other machines.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from cassi.errors import InputError, OutputError, one_line
from cassi.kernels.dispatch import pick_device
from cassi.running.front_door import reconstruct
from cassi.running.result import Reconstruction
from cassi.running.stores import Folder, Frame, Log, Store, ZarrStore, locked, replace_text
from cassi.solvers.loop import Record
from cassi.version import PROGRAM

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

    from cassi.optics.measurement import Measurement

__all__ = ["BatchReport", "Frame", "find_frames", "frames_at_once", "reconstruct_many"]

PathLike = str | os.PathLike[str]
CUBES_AT_ONCE = 24  # working memory of a reconstruction, in cubes, generously
CONNECT_SECONDS = 10
DASK = {
    "distributed.admin.tick.limit": "1h",  # a kernel may hold the interpreter for a while: no reason to complain
    # what Dask would keep of the past, so that memory stays flat
    "distributed.admin.log-length": 100,
    "distributed.admin.low-level-log-length": 100,
    "distributed.admin.system-monitor.log-length": 100,
    "distributed.worker.profile.enabled": False,
}


@dataclass(frozen=True)
class BatchReport:
    """What a run did: frames computed now, found finished, and failed (name to reason); wall seconds."""

    computed: int
    found: int
    failed: Mapping[str, str]
    seconds: float


def find_frames(source: PathLike, *, count: int | None = None, leave_out: Sequence[PathLike] = ()) -> list[Frame]:
    """The snapshots that a folder, a pattern or a stack stands for, in order of name.

    Args:
        source: a folder (every file of a known format in it), a pattern such as "run7/*.mat", or one file.
        count: frames in that one file, see `cassi.files.frame_count`; None for a single snapshot.
        leave_out: files that are not snapshots, such as the mask's.

    Returns:
        The frames; results (`*_cube.*`) and hidden files are no snapshots.

    Raises:
        InputError: nothing found, or two files whose results would have one name.

    Example:
        >>> [frame.name for frame in find_frames("run.h5", count=2)]
        ['run_000000', 'run_000001']
    """
    from cassi.files.frames import SUFFIXES

    path = Path(source)
    if path.is_dir():
        files = [file for file in path.iterdir() if file.suffix.lower() in SUFFIXES]
    elif glob.has_magic(str(source)) and not path.exists():
        files = [Path(name) for name in glob.glob(str(source))]
    elif count is not None:
        return [Frame(f"{path.stem}_{k:06d}", str(path), k) for k in range(count)]
    else:
        files = [path]
    others = {Path(name).resolve() for name in leave_out}
    files = sorted(
        file
        for file in files
        if file.resolve() not in others and not file.name.startswith(".") and not file.stem.endswith("_cube")
    )
    if not files:
        raise InputError(f"{source}: no snapshots there, expected files ending in {', '.join(sorted(SUFFIXES))}")
    frames: dict[str, Frame] = {}
    for file in files:
        if file.stem in frames:
            raise InputError(
                f"{file} and {frames[file.stem].path} would have results of one name; rename one or leave it out"
            )
        frames[file.stem] = Frame(file.stem, str(file))
    return list(frames.values())


def reconstruct_many(
    frames: Sequence[Frame],
    output: PathLike,
    *,
    read: Callable[..., Measurement] | None = None,
    solve: Callable[..., Reconstruction] = reconstruct,
    overwrite: bool = False,
    batch: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    attributes: Mapping[str, object] | None = None,
    progress: bool = False,
) -> BatchReport:
    """Reconstruct every frame that is not finished yet.

    Each frame is computed alone, so that its cube does not depend on the frames beside it; with `batch` above 1 each
    on one thread, so that it does not depend on how many there are either.

    Args:
        frames: see `find_frames`.
        output: a folder, which gets `<name>_cube.h5` for each frame and `index.jsonl`; or a name ending in .zarr, one
            store with `cube` (N, C, H, W), a chunk per frame.
        read: f(path, frames=index) -> Measurement; `cassi.files.read_measurement`, or a `functools.partial` of it with
            the parameters. Files named in its keywords (mask ...) count by their content.
        solve: f(measurement, monitor=...) -> Reconstruction; `cassi.reconstruct` or a partial of it.
        overwrite: replace cubes that were made with other parameters or from another input.
        batch: frames computed at a time in this process; None: as many as cores and memory allow.
        workers: compute in this many processes of one thread each instead.
        scheduler: address of a running Dask scheduler ("tcp://host:port") instead; its workers must see the same files.
        attributes: further provenance for every result.
        progress: show one progress bar for all.

    Returns:
        The `BatchReport`. A frame that fails is recorded and does not stop the others.

    Raises:
        InputError: no frames; finished cubes were made with other parameters or from other inputs (the message says
            which) and `overwrite` is False; Dask is missing; no scheduler at that address.
        OutputError: the output cannot be written, or another run is writing there.
    """
    read = _reader() if read is None else read
    if not frames:
        raise InputError("no frames to reconstruct")
    if any(count is not None and count < 1 for count in (batch, workers)):
        raise InputError(f"batch and workers must be at least 1, got {batch} and {workers}")
    start = time.perf_counter()
    # other processes and machines have their own working folder
    frames = [replace(frame, path=os.path.abspath(frame.path)) for frame in frames]
    root = os.path.abspath(output)
    common = {"version": PROGRAM, "read": _described(read), "solve": _described(solve)}
    store: Store = ZarrStore(root, tuple(f.name for f in frames)) if _is_zarr(output) else Folder(root)
    with locked(Path(root)):
        finished, todo = _plan(store, frames, common, overwrite)
        log = Log(Path(root, "index.jsonl"), finished)
        failed: dict[str, str] = {}
        if todo:
            first = _first_readable(read, [frame for _, frame, _ in todo])
            replace_text(Path(root, "run.json"), json.dumps(common, indent=1))
            if first is not None:
                store.prepare(first)
            with (
                _dask(first, batch, workers, scheduler, solve) as engine,
                tqdm(total=len(frames), initial=len(finished), desc="frames", disable=not progress) as bar,
            ):
                for frame, outcome in _compute(engine, store, todo, read, solve, dict(attributes or {}), log):
                    if isinstance(outcome, OutputError):
                        raise outcome
                    if isinstance(outcome, BaseException):
                        kind = "" if isinstance(outcome, InputError) else f"{type(outcome).__name__}: "
                        failed[frame.name] = kind + one_line(outcome)
                        log.add(frame.name, "failed", {"reason": failed[frame.name]})
                    else:
                        log.add(frame.name, "done", outcome)
                        bar.set_postfix_str(f"residual {outcome['residual']:.2e}", refresh=False)
                    bar.update()
        log.close([frame.name for frame in frames])
    return BatchReport(len(todo) - len(failed), len(finished), failed, time.perf_counter() - start)


# What is finished


Job = tuple[int, Frame, str]
"""A frame to compute: its number, the frame, its fingerprint."""


def _plan(
    store: Store, frames: Sequence[Frame], common: Mapping[str, Any], overwrite: bool
) -> tuple[dict[str, dict[str, Any]], list[Job]]:
    """Sort the frames into finished ones (with what is known of them) and those to compute.

    Raises:
        InputError: cubes made otherwise are in the way.
    """
    finished: dict[str, dict[str, Any]] = {}
    todo: list[Job] = []
    changed: list[str] = []
    for number, (frame, known) in enumerate(zip(frames, store.known(frames), strict=True)):
        fingerprint = _fingerprint(common, frame)
        if known is not None and known["fingerprint"] == fingerprint:
            finished[frame.name] = known
            continue
        if known is not None:
            changed.append(frame.name)
        todo.append((number, frame, fingerprint))
    if changed and not overwrite:
        reasons = _differences(_read_json(Path(store.root) / "run.json"), common) or "their input files have changed"
        raise InputError(
            f"{store.root}: {len(changed)} of {len(frames)} results were made otherwise (first {changed[0]}): "
            f"{reasons}; choose another output or allow overwriting (--overwrite)"
        )
    return finished, todo


def _fingerprint(common: Mapping[str, Any], frame: Frame) -> str:
    """SHA-256 over everything a frame's cube depends on; a file that cannot be read counts as its name."""
    from cassi.files import file_sha256

    try:
        content = file_sha256(frame.path)
    except OSError:
        content = frame.path
    made_from = json.dumps([common, content, frame.index], sort_keys=True)
    return hashlib.sha256(made_from.encode()).hexdigest()


def _described(function: Callable[..., Any]) -> dict[str, Any]:
    """A function or partial as plain values: its name and keywords, files as hash of their content."""
    keywords = function.keywords if isinstance(function, partial) else {}
    inner = function.func if isinstance(function, partial) else function
    name = f"{inner.__module__}.{getattr(inner, '__qualname__', type(inner).__name__)}"
    return {"function": name} | {key: _content(value) for key, value in sorted(keywords.items()) if value is not None}


def _content(value: object) -> object:
    from cassi.files import file_sha256

    if isinstance(value, str | os.PathLike) and Path(value).is_file():
        return {"sha256": file_sha256(value)}
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return {"sha256": hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest(), "shape": value.shape}
    return value if isinstance(value, str | int | float | bool) else str(value)


def _differences(before: object, now: Mapping[str, Any]) -> str:
    """What changed between two runs, in words; empty if nothing did."""
    old, new = _flat(before), _flat(now)
    names = [name for name in sorted(old | new) if old.get(name) != new.get(name)]
    return ", ".join(f"{name} was {_short(old.get(name))}, is {_short(new.get(name))}" for name in names[:4])


def _flat(value: object, name: str = "") -> dict[str, object]:
    if not isinstance(value, Mapping):
        return {name: value}
    return {k: v for key, part in value.items() for k, v in _flat(part, key if not name else f"{name}.{key}").items()}


def _short(value: object) -> str:
    return "not given" if value is None else str(value)[:16]


def _is_zarr(output: PathLike) -> bool:
    return Path(output).suffix.lower() == ".zarr"


def _write_json(path: Path, content: object) -> None:
    replace_text(path, json.dumps(content, indent=1))


def _read_json(path: Path) -> object:
    return json.loads(path.read_text()) if path.exists() else {}


# The work


class _Engine(NamedTuple):
    """A Dask client; what a computing task asks for; frames in flight; threads of torch a task (None: as they are)."""

    client: Client
    resources: dict[str, float] | None
    window: int
    threads: int | None


def frames_at_once(cube_shape: tuple[int, int, int], device: torch.device) -> int:
    """How many frames of this size to compute at a time: one a core (four on a GPU), as memory allows; at least 1.

    Example:
        >>> frames_at_once((28, 10**6, 10**6), torch.device("cpu"))
        1
    """
    if device.type == "cuda":
        free, most = torch.cuda.mem_get_info(device)[0], 4
    else:
        import psutil

        free, most = psutil.virtual_memory().available, _cores()
    one = CUBES_AT_ONCE * 4 * int(np.prod(cube_shape, dtype=np.int64))
    return int(max(1, min(most, free // one)))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _dask(
    first: Measurement | None,
    batch: int | None,
    workers: int | None,
    scheduler: str | None,
    solve: Callable[..., Any],
) -> Iterator[_Engine]:
    """A Dask cluster in this process, in others, or the one at an address; closed at the end, but for the last."""
    try:
        import dask
        import distributed
    except ImportError as error:
        raise InputError(f'many frames need Dask: python -m pip install -e ".[batch]" ({error})') from error
    # no dashboard, and the scheduler's web page for machines on the loopback only, at any free port
    page = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    quiet = {"dashboard_address": None, "scheduler_kwargs": page, "silence_logs": "CRITICAL", "memory_limit": 0}
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(DASK))
        if scheduler is not None:
            try:
                client = distributed.Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
            except (OSError, ValueError) as error:
                raise InputError(f"no Dask scheduler answers at {scheduler} ({one_line(error)})") from error
            stack.enter_context(client)
            threads = sum(client.nthreads().values())
            yield _Engine(client, None, 2 * max(1, threads), None)
        elif workers is not None:
            with _interrupts_for_this_process_alone():
                processes = distributed.LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, **quiet)
            stack.enter_context(processes)
            stack.enter_context(_replacing_lost(processes, workers))
            client = stack.enter_context(distributed.Client(processes, set_as_default=False))
            yield _Engine(client, None, 2 * workers, 1)
        else:
            if batch is None:
                keywords = solve.keywords if isinstance(solve, partial) else {}
                shape = (1, 1, 1) if first is None else (len(first.shifts), *first.mask.shape[-2:])
                batch = frames_at_once(shape, pick_device(keywords.get("device", "auto")))
            before = torch.get_num_threads()
            stack.callback(torch.set_num_threads, before)
            # one thread more than frames computed at a time: it reads ahead
            inside = {"protocol": "inproc://", **page}
            worker = {"nthreads": batch + 1, "resources": {"frame": batch}, "memory_limit": 0, **inside}
            cluster = distributed.SpecCluster(
                scheduler={"cls": distributed.Scheduler, "options": inside},
                workers={0: {"cls": distributed.Worker, "options": worker}},
                silence_logs="CRITICAL",
            )
            client = stack.enter_context(distributed.Client(stack.enter_context(cluster), set_as_default=False))
            yield _Engine(client, {"frame": 1}, batch + 1, 1 if batch > 1 else before)


@contextmanager
def _replacing_lost(cluster: LocalCluster, workers: int) -> Iterator[None]:
    """Start worker processes anew that Dask gives up: one that dies while it is being started again stays dead."""
    from distributed import Status

    def replace_lost() -> None:
        for name, nanny in list(cluster.workers.items()):
            if nanny.status in (Status.closed, Status.failed):
                del cluster.workers[name]
        cluster.scale(workers)

    def watch() -> None:
        while not over.wait(1.0):
            if cluster.loop is not None:
                cluster.loop.add_callback(replace_lost)

    over = threading.Event()
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _interrupts_for_this_process_alone() -> Iterator[None]:
    """Processes started in here ignore Ctrl-C, which a terminal sends to all: this one ends them in good order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _compute(
    engine: _Engine,
    store: Store,
    todo: Sequence[Job],
    read: Callable[..., Measurement],
    solve: Callable[..., Reconstruction],
    attributes: dict[str, object],
    log: Log,
) -> Iterator[tuple[Frame, dict[str, Any] | BaseException]]:
    """Keep the engine busy; yields each frame with what is known of its cube, or with the reason it has none."""
    from distributed import as_completed

    client, resources, window, threads = engine
    jobs = iter(todo)
    running: dict[Any, Job] = {}

    def submit(job: Job) -> Any:
        number, frame, fingerprint = job
        snapshot = client.submit(_read, read, frame, pure=False)
        stated = attributes | {"fingerprint": fingerprint}
        future = client.submit(
            _solve_and_write, snapshot, number, frame, store, solve, threads, stated, pure=False, resources=resources
        )
        log.add(frame.name, "begun", {})
        running[future] = job
        return future

    queue = as_completed([submit(job) for job in islice(jobs, window)], loop=client.loop)
    for future in queue:
        _, frame, fingerprint = running.pop(future)
        error = CancelledError("its worker was lost") if future.cancelled() else future.exception()
        outcome = {"fingerprint": fingerprint, **future.result()} if error is None else error
        del future
        yield frame, outcome
        for job in islice(jobs, 1):
            queue.add(submit(job))


def _read(read: Callable[..., Measurement], frame: Frame) -> Measurement:
    return read(frame.path) if frame.index is None else read(frame.path, frames=frame.index)


def _reader() -> Callable[..., Measurement]:
    from cassi.files import read_measurement

    return read_measurement


def _first_readable(read: Callable[..., Measurement], frames: Sequence[Frame]) -> Measurement | None:
    """The first frame that can be read, which tells the size of all."""
    for frame in frames:
        with suppress(Exception):  # its worker will say what is wrong with it
            return _read(read, frame)
    return None


def _solve_and_write(
    measurement: Measurement,
    number: int,
    frame: Frame,
    store: Store,
    solve: Callable[..., Reconstruction],
    threads: int | None,
    attributes: dict[str, object],
) -> dict[str, Any]:
    """One frame, on a worker: the cube goes to the disk, only a few numbers go back."""
    from distributed import Status, get_worker

    worker = get_worker()
    if threads is not None:
        torch.set_num_threads(threads)

    def closing(record: Record, cube: Tensor) -> bool:
        return worker.status not in (Status.running, Status.paused)

    result = solve(measurement, monitor=closing)
    if worker.status not in (Status.running, Status.paused):
        raise CancelledError("the run was interrupted")
    store.write(number, frame, measurement, result, attributes)
    return {"residual": result.residual, "seconds": result.seconds}
