"""Workers on a cluster, by Dask: what `--cluster` names."""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path

from cassi.errors import InputError, one_line
from cassi.kernels.machine import num_cores

MAX_DEATHS = 2  # of workers at one snapshot, before it counts as failed


@contextmanager
def executor_at(address: str | None, inform: Callable[[str], None]) -> Iterator[Executor | None]:
    """The workers at an address; None for no address: threads of this process.

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
    try:
        dask, distributed = import_module("dask"), import_module("distributed")
    except ImportError as error:
        raise InputError("--cluster needs Dask: python -m pip install 'cassi[cluster]'", kind="extra") from error
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({"distributed.scheduler.allowed-failures": MAX_DEATHS}))
        name, _, count = address.partition(":")
        try:
            if name == "local":
                number = int(count) if count else num_cores()
                # Dask has the memory of every tensor given back at once: a frame then takes 1.4 times as long
                spawn = {"distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None}
                stack.enter_context(dask.config.set({"distributed.worker.daemon": False, **spawn}))
                # what a snapshot fails of is said once, by the run: no traceback
                processes = distributed.LocalCluster(
                    n_workers=number, threads_per_worker=1, processes=True, silence_logs=logging.ERROR
                )
                cluster = stack.enter_context(processes)
                client = stack.enter_context(distributed.Client(cluster))
            elif Path(address).is_file():
                client = stack.enter_context(distributed.Client(scheduler_file=address))
            else:
                client = stack.enter_context(distributed.Client(address))
        except (OSError, ValueError) as error:
            what = (
                f"no scheduler at {address} ({one_line(error)}); expected tcp://host:port, a scheduler file, or local:4"
            )
            raise InputError(what) from error
        inform(f"{len(client.scheduler_info()['workers'])} workers, dashboard {client.dashboard_link}")
        yield client.get_executor()
