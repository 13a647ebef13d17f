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
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from cassi.errors import InputError, OutputError, one_line
from cassi.running.result import Reconstruction, write_result

if TYPE_CHECKING:
    from cassi.optics.measurement import Measurement

__all__ = ["Folder", "Frame", "Log", "Store", "ZarrStore", "locked", "replace_text"]


@dataclass(frozen=True)
class Frame:
    """One snapshot among many: the name of its result, the file it is in, and which of a stack it is (None: all)."""

    name: str
    path: str
    index: int | None = None


class Store(Protocol):
    """Where cubes go: what is known of a frame's cube, make ready for the first, write one."""

    @property
    def root(self) -> str: ...

    def known(self, frames: Sequence[Frame]) -> list[dict[str, Any] | None]: ...
    def prepare(self, first: Measurement) -> None: ...
    def write(
        self, number: int, frame: Frame, m: Measurement, result: Reconstruction, attributes: dict[str, object]
    ) -> None: ...


@dataclass(frozen=True)
class Folder:
    """One HDF5 file per frame."""

    root: str

    def path(self, frame: Frame) -> Path:
        return Path(self.root) / f"{frame.name}_cube.h5"

    def known(self, frames: Sequence[Frame]) -> list[dict[str, Any] | None]:
        """What each frame's file says of itself, None if there is none; a foreign file has an empty fingerprint."""
        return [self._stated(self.path(frame)) for frame in frames]

    def _stated(self, path: Path) -> dict[str, Any] | None:
        import h5py

        if not path.exists():
            return None
        try:
            with h5py.File(path) as file:
                stated = {name: file.attrs.get(name, "") for name in ("fingerprint", "residual", "seconds")}
        except OSError:
            return {"fingerprint": ""}
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in stated.items()}

    def prepare(self, first: Measurement) -> None:
        """Remove what a killed run left of a file it was writing."""
        for left in Path(self.root).glob(".*.part"):
            shutil.rmtree(left, ignore_errors=True)

    def write(
        self, number: int, frame: Frame, m: Measurement, result: Reconstruction, attributes: dict[str, object]
    ) -> None:
        write_result(self.path(frame), m, result, attributes=attributes, overwrite=True)


@dataclass(frozen=True)
class ZarrStore:
    """One Zarr store, a chunk per frame; a frame's fingerprint is written after its cube."""

    root: str
    names: tuple[str, ...]

    def known(self, frames: Sequence[Frame]) -> list[dict[str, Any] | None]:
        """What the store knows of each frame, None where its cube is not finished.

        Raises:
            InputError: it was made for other frames.
        """
        group = self._open()
        if group is None:
            return [None] * len(frames)
        if tuple(group.attrs["names"]) != self.names:
            raise InputError(f"{self.root}: the store was made for other frames; choose another output")
        marks = group["fingerprint"][:]
        stated = {name: group[name][:] for name in ("residual", "seconds")}
        return [
            {"fingerprint": bytes(mark).hex()} | {name: float(values[k]) for name, values in stated.items()}
            if mark.any()
            else None
            for k, mark in enumerate(marks)
        ]

    def prepare(self, first: Measurement) -> None:
        """Make the store, or remove what a killed run left of a chunk it was writing."""
        import zarr

        for left in Path(self.root).rglob("*.partial"):
            left.unlink(missing_ok=True)
        if self._open() is not None:
            return
        n, cube = len(self.names), (len(first.shifts), *first.mask.shape[-2:])
        group = zarr.open_group(self.root, mode="a")
        group.create_array(
            "cube",
            shape=(n, *cube),
            chunks=(1, *cube),
            dtype="float32",
            fill_value=np.nan,
            dimension_names=("frame", "band" if first.wavelengths is None else "wavelength", "y", "x"),
        )
        group.create_array("fingerprint", shape=(n, 32), chunks=(1, 32), dtype="uint8", fill_value=0)
        for name in ("residual", "seconds"):
            group.create_array(name, shape=(n,), chunks=(1,), dtype="float64", fill_value=np.nan)
        if first.wavelengths is not None:
            group.create_array("wavelength", data=first.wavelengths, dimension_names=("wavelength",))
        group.attrs.update({"unit": first.unit, "names": list(self.names)})

    def write(
        self, number: int, frame: Frame, m: Measurement, result: Reconstruction, attributes: dict[str, object]
    ) -> None:
        group = self._open()
        if group is None:
            raise OutputError(f"{self.root}: the store is gone")
        cube = result.cube.cpu().numpy()
        if cube.shape != group["cube"].shape[1:]:
            raise InputError(
                f"{frame.path}: a cube {cube.shape}, the store holds {group['cube'].shape[1:]}; use a folder"
            )
        try:
            group["cube"][number] = cube
            group["residual"][number] = result.residual
            group["seconds"][number] = result.seconds
            # the cube reaches the disk before the mark that says so
            chunk = Path(self.root, "cube", "c", str(number), "0", "0", "0")
            with chunk.open("rb") as file:
                os.fsync(file.fileno())
            group["fingerprint"][number] = np.frombuffer(bytes.fromhex(str(attributes["fingerprint"])), np.uint8)
        except OSError as error:
            raise OutputError(f"{self.root}: cannot be written: {one_line(error)}") from error

    def _open(self) -> Any:
        """The group, or None where it was not made, or not whole."""
        try:
            import zarr
        except ImportError as error:
            raise InputError(f'{self.root}: needs zarr: python -m pip install -e ".[batch]" ({error})') from error
        if not Path(self.root, "zarr.json").exists():
            return None
        group = zarr.open_group(self.root, mode="r+")
        return group if "names" in group.attrs else None


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
        replace_text(self._path, "\n".join(lines) + "\n")


@contextmanager
def locked(root: Path) -> Iterator[Path]:
    """Make the folder and hold it against a second run; the lock goes with the process, however that ends.

    Raises:
        OutputError: it cannot be made, or another run holds it.
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
        yield root


def replace_text(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)
