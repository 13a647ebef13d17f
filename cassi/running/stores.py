"""The folder where the cubes of many frames lie, a file each, and what is known of each without a memory.

A frame is finished when its cube is on the disk with the fingerprint of all it was made from in the same file, which is
moved into place whole: a run killed at any moment leaves no half frame.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cassi.errors import OutputError, one_line
from cassi.files.atomic import DISK_FULL

KNOWN = {
    "fingerprint": "",
    "residual": float("nan"),
    "seconds": float("nan"),
    "verdict": "",
    "ok": True,
    "against": "",
}  # of a finished frame


@dataclass(frozen=True)
class Frame:
    """One scene among many: the name of its result, its file, which of a stack it is (None: all), and the files of its
    further shots."""

    name: str
    path: str
    index: int | None = None
    others: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """All its files."""
        return (self.path, *self.others)

    @property
    def where(self) -> str | tuple[str, ...]:
        """What is read: the file, or all of several."""
        return self.paths if self.others else self.path


def what_is_known(cube: Path) -> dict[str, Any] | None:
    """What the file of a cube says of itself, None if there is none; a foreign file has an empty fingerprint."""
    import h5py

    if not cube.exists():
        return None
    try:
        with h5py.File(cube) as file:
            stated = {name: file.attrs.get(name, usual) for name, usual in KNOWN.items()}
    except OSError:
        return KNOWN
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in stated.items()}


def remove_unfinished(root: Path) -> None:
    """Remove what a killed run left of a file it was writing."""
    for left in root.glob(".*.part"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def locked(root: Path) -> Iterator[Path]:
    """Make the folder and hold it against a second run; the lock goes with the process, however that ends.

    Raises:
        OutputError: it cannot be made or written to, or another run holds it.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = (root / ".lock").open("a")
    except OSError as error:
        raise OutputError(f"{root}: cannot be written: {one_line(error)}") from error
    with lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # no such locks on this system
        except OSError as error:
            raise OutputError(f"{root}: another run is writing there; wait for it or choose another output") from error
        try:
            yield root
        except OSError as error:  # what goes wrong with a snapshot's own files is told of that snapshot
            full = error.errno in DISK_FULL
            cure = "the disk is full; free some space and start again" if full else one_line(error)
            raise OutputError(f"{root}: cannot be written: {cure}") from error
