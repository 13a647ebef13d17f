"""What workers of `test_running_many.py` are given to do: in a file of its own, as they import it and little else."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from cassi import Reconstruction, reconstruct
from cassi.optics.measurement import Measurement
from cassi.solvers.loop import Monitor

FORKS = get_context("fork")  # processes that need not import torch first, which takes seconds
SOLVE = partial(reconstruct, solver="gap-tv", num_iters=6)


def die_once(measurement: Measurement, monitor: Monitor, folder: Path) -> Reconstruction:
    """Kill the process that reconstructs frame 2, the first time."""
    if measurement.source == "frame2.h5" and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return SOLVE(measurement, monitor=monitor)


def linger(measurement: Measurement, monitor: Monitor) -> Reconstruction:
    """Take longer than anyone waits for all frames but the first."""
    if measurement.source != "frame0.h5":
        time.sleep(3600)
    return SOLVE(measurement, monitor=monitor)


def command(argv: list[str]) -> None:
    """The command `cassi reconstruct`, as a process."""
    from cassi.cli.main import main

    sys.exit(main(["reconstruct", *argv]))
