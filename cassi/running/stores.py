"""Where the cubes of many frames lie: a folder of files, or one Zarr store; and what is known of each without a memory.

A frame is finished when its cube is on the disk beside the fingerprint of all it was made from. The fingerprint comes
last, or in the same file, which is moved into place whole: a run killed at any moment leaves no half frame.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cassi.errors import InputError, OutputError, one_line
from cassi.files.atomic import DISK_FULL, write_text
from cassi.running.result import Reconstruction, write_result
from cassi.version import PROGRAM

if TYPE_CHECKING:
    from cassi.optics.measurement import Measurement

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
    """One scene among many: the name of its result, the file it is in, and which of a stack it is (None: all).

    `others` are the files of its further shots, where each has its own.
    """

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


@dataclass(frozen=True)
class Folder:
    """One HDF5 file per frame."""

    root: str

    def _path(self, frame: Frame) -> Path:
        return Path(self.root) / f"{frame.name}_cube.h5"

    def known(self, frames: Sequence[Frame]) -> list[dict[str, Any] | None]:
        """What each frame's file says of itself, None if there is none; a foreign file has an empty fingerprint."""
        return [_stated(path) if (path := self._path(frame)).exists() else None for frame in frames]

    def prepare(self, first: Measurement) -> None:
        """Remove what a killed run left of a file it was writing."""
        _clear(self.root)

    def write(
        self, number: int, frame: Frame, m: Measurement, result: Reconstruction, attributes: dict[str, object]
    ) -> None:
        write_result(self._path(frame), m, result, attributes=attributes, overwrite=True)


def _clear(root: str) -> None:
    for left in Path(root).rglob(".*.part"):
        shutil.rmtree(left, ignore_errors=True)
    for left in Path(root).rglob("*.partial"):
        left.unlink(missing_ok=True)


def _stated(path: Path) -> dict[str, Any]:
    import h5py

    try:
        with h5py.File(path) as file:
            stated = {name: file.attrs.get(name, usual) for name, usual in KNOWN.items()}
    except OSError:
        return KNOWN
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in stated.items()}


@dataclass(frozen=True)
class ZarrStore:
    """One Zarr store, a chunk per frame; what is known of a finished one is in a file, written after its cube."""

    root: str
    names: tuple[str, ...]

    def _mark(self, number: int) -> Path:
        return Path(self.root, "finished", f"{number}.json")

    def known(self, frames: Sequence[Frame]) -> list[dict[str, Any] | None]:
        """What the store knows of each frame, None where its cube is not finished.

        Raises:
            InputError: it was made for other frames.
        """
        group = self._open()
        if group is None:
            return [None] * len(frames)
        if tuple(group.attrs["names"]) != self.names or "fingerprint" in group:
            raise InputError(
                f"{self.root}: the store was made for other frames, or by an earlier version; choose another output"
            )
        marks = [self._mark(number) for number in range(len(frames))]
        return [json.loads(mark.read_text()) if mark.exists() else None for mark in marks]

    def prepare(self, first: Measurement) -> None:
        """Make the store, or remove what a killed run left of what it was writing."""
        import zarr

        _clear(self.root)
        if self._open() is not None:
            return
        # with its first byte the group says whose it is: what a run killed while making it left is made over
        group = zarr.open_group(self.root, mode="a", attributes={"made_by": PROGRAM})
        ours = "made_by" in group.attrs
        band = "band" if first.wavelengths is None else "wavelength"
        cube = (len(first.shifts), *first.mask.shape[-2:])
        group.create_array(
            "cube", shape=(len(self.names), *cube), chunks=(1, *cube), dtype="float32", fill_value=np.nan,
            dimension_names=("frame", band, "y", "x"), overwrite=ours,
        )  # fmt: skip
        if first.wavelengths is not None:
            group.create_array("wavelength", data=first.wavelengths, dimension_names=("wavelength",), overwrite=ours)
        self._mark(0).parent.mkdir(exist_ok=True)
        group.attrs.update({"unit": first.unit, "names": list(self.names)})

    def write(
        self, number: int, frame: Frame, m: Measurement, result: Reconstruction, attributes: dict[str, object]
    ) -> None:
        group = self._open()
        if group is None:
            raise OutputError(f"{self.root}: the store is gone")
        cube, mark = result.cube.cpu().numpy(), self._mark(number)
        if cube.shape != group["cube"].shape[1:]:
            raise InputError(
                f"{frame.path}: a cube {cube.shape}, the store holds {group['cube'].shape[1:]}; use a folder"
            )
        try:
            mark.unlink(missing_ok=True)  # of a cube that goes: with the new one beside it, it would lie
            group["cube"][number] = cube
            if not np.array_equal(group["cube"][number], cube, equal_nan=True):
                raise OutputError(f"{self.root}: the cube of {frame.name} reads back other than it was written")
            # the cube reaches the disk before the mark that says so
            with Path(self.root, "cube", "c", str(number), "0", "0", "0").open("rb") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise OutputError(f"{self.root}: cannot be written: {one_line(error)}") from error
        write_text(mark, json.dumps({name: attributes.get(name, usual) for name, usual in KNOWN.items()}))

    def _open(self) -> Any:
        """The group, or None where it was not made, or not whole."""
        try:
            import zarr
        except ImportError as error:
            raise InputError(f'{self.root}: needs zarr: python -m pip install "cassi[batch]" ({error})') from error
        if not Path(self.root, "zarr.json").exists():
            return None
        group = zarr.open_group(self.root, mode="r+")
        return group if "names" in group.attrs else None


Store = Folder | ZarrStore


class Log:
    """`index.jsonl`: a line for each frame begun, done or failed; in the end one line per frame, in order."""

    def __init__(self, path: Path, finished: Mapping[str, dict[str, Any]]) -> None:
        self._path = path
        self._last = {name: {"frame": name, "status": "done", **known} for name, known in finished.items()}

    def add(self, name: str, status: str, what: Mapping[str, Any]) -> None:
        line = {"frame": name, "status": status, **what}
        self._last[name] = line
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def close(self, order: Sequence[str]) -> None:
        lines = [json.dumps(self._last[name]) for name in order if name in self._last]
        write_text(self._path, "\n".join(lines) + "\n")


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
