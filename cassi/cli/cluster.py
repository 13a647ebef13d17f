"""Workers on a cluster, by Dask: what `--cluster` names."""

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from importlib import import_module
from multiprocessing import resource_tracker
from pathlib import Path
from types import ModuleType

from cassi.errors import InputError, one_line, parse_json
from cassi.files.atomic import check_readable
from cassi.kernels.machine import num_cores

SLOWER = (
    "on one machine the same command without --cluster is faster, because a worker takes some 10 s to start; a cluster "
    "pays on two or more machines"
)
MAX_DEATHS = 2  # of workers at one snapshot, before it counts as failed
MAX_WAIT = 15.0  # [s] for the answer of a scheduler
MAX_LOCAL = 1024  # processes of this machine
LOOPBACK = "127.0.0.1"


@contextmanager
def executor_at(address: str | None, inform: Callable[[str], None]) -> Iterator[Executor | None]:
    """The workers at an address; None for no address: threads of this process.

    Processes of this machine talk by TLS with a certificate of this run, on the loopback alone.

    Args:
        address: of a Dask scheduler (tcp://host:8786), its scheduler file, or "local:4": processes of this machine,
            as many as it has cores if no number is given.
        inform: called with the address of the dashboard.

    Raises:
        InputError: Dask is not installed, or there is no scheduler.
    """
    if address is None:
        yield None
        return
    name, _, count = address.partition(":")
    number = num_cores() if name != "local" or not count else int(count) if count.isdecimal() else 0
    if not 1 <= number <= MAX_LOCAL:
        raise InputError(f"{address}: expected local:N with N from 1 to {MAX_LOCAL} processes, or local")
    try:
        dask, distributed = import_module("dask"), import_module("distributed")
        if name == "local":
            import_module("cryptography")
    except ImportError as error:
        raise InputError("--cluster needs Dask: python -m pip install 'cassi[cluster]'", kind="extra") from error
    with ExitStack() as stack:
        # Dask has the memory of every tensor given back at once: a frame then takes 1.4 times as long
        spawn = {"distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None}
        settings = {"distributed.worker.daemon": False, "distributed.scheduler.allowed-failures": MAX_DEATHS, **spawn}
        stack.enter_context(dask.config.set(settings))
        try:
            if name == "local":
                with signals_blocked():
                    # what a snapshot fails of is said once, by the run: no traceback
                    processes = distributed.LocalCluster(
                        n_workers=number, threads_per_worker=1, processes=True, silence_logs=logging.CRITICAL,
                        host=LOOPBACK, dashboard_address=f"{LOOPBACK}:0", protocol="tls://",
                        security=distributed.Security.temporary(),
                    )  # fmt: skip
                    cluster = stack.enter_context(processes)
                    client = stack.enter_context(distributed.Client(cluster))
            else:
                place = scheduler_of(address)
                asyncio.run(identify(distributed, place))
                client = stack.enter_context(distributed.Client(place))
        except (OSError, ValueError, TypeError, MemoryError) as error:  # no answer, address, certificate or protocol
            what = f"no scheduler at {address} ({one_line(error)})"
            raise InputError(f"{what}; expected tcp://host:port, a scheduler file, or local:4") from error
        inform(f"{len(client.scheduler_info()['workers'])} workers, dashboard {client.dashboard_link}")
        yield client.get_executor()


async def identify(distributed: ModuleType, address: str) -> None:
    """Ask a scheduler who it is, as `distributed.Client` waits forever for a server of another kind.

    Raises:
        OSError: there is none, or no answer.
        ValueError: no address.
    """
    secure = distributed.Security().get_connection_args("client")
    async with distributed.rpc(address, connection_args=secure) as scheduler:
        try:
            await asyncio.wait_for(scheduler.identity(), MAX_WAIT)
        except TimeoutError as error:
            raise OSError(f"no answer of Dask within {MAX_WAIT:g} s") from error


def scheduler_of(address: str) -> str:
    """The address itself, or that in a scheduler file; ValueError for another file."""
    if not Path(address).is_file():
        return address
    try:
        stated = parse_json(check_readable(address).read_text(encoding="utf-8"))["address"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("the file is no scheduler file") from error
    if not isinstance(stated, str):
        raise ValueError(f"the file states the address {one_line(stated, 40)}")
    return stated


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Threads and processes that are started within never see an interrupt from the keyboard: this one ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    signals = {signal.SIGINT, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        resource_tracker.ensure_running()  # as it starts it lets interrupts through again
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
