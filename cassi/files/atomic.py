"""Whole or not at all: what is written appears under its name only when it is complete."""

import errno
import hashlib
import io
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from cassi.errors import OutputError, one_line

PathLike = str | os.PathLike[str]
DISK_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}


def file_sha256(path: PathLike) -> str:
    """The SHA-256 of a file, hexadecimal."""
    status = os.stat(path)
    return _file_sha256(os.path.abspath(path), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _file_sha256(path: str, size: int, modified: int) -> str:
    """The hash of a file that has this size and time: a stack is hashed once, not once a frame."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_place(path: PathLike, overwrite: bool = False) -> Path:
    """Return the path after checking that a file can be put there.

    Raises:
        OutputError: no such folder, no right to write, a folder of that name, or the file exists and `overwrite` is
            False.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise OutputError(f"{path}: the folder {path.parent} does not exist; make it first")
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"{path}: the folder {path.parent} may not be written to")
    if path.is_dir():
        raise OutputError(f"{path}: is a folder, expected the name of a file")
    if path.exists() and not overwrite:
        raise OutputError(f"{path}: exists already; choose another name or allow overwriting", cures=("overwrite",))
    return path


@contextmanager
def replacing(path: PathLike, overwrite: bool = False) -> Iterator[Path]:
    """Yield a path of the same name in a new hidden folder beside `path`; what is made there is moved into place.

    A file, with others beside it (the data of a header), or a folder. It reaches the disk (fsync) before it is moved.
    On any exception, an interrupt from the keyboard among them, nothing is left behind.

    Raises:
        OutputError: see `check_place`; or the disk is full.
    """
    path = check_place(path, overwrite)
    folder = path.parent / f".{path.name}.{secrets.token_hex(4)}.part"
    try:
        folder.mkdir()
        yield folder / path.name
        parts = sorted(folder.iterdir(), key=lambda part: part.name == path.name)  # last the one that is asked for
        for part in parts:
            _flush(part)
        with signals_held():
            for part in parts:
                check_place(path.with_name(part.name), overwrite)
            for part in parts:
                os.replace(part, path.with_name(part.name))
            _flush(path.parent)
            shutil.rmtree(folder, ignore_errors=True)  # here no interrupt can come before it
    except OSError as error:
        # numpy says only "... requested and ... written".
        full = error.errno in DISK_FULL or (error.errno is None and "written" in str(error))
        cure = "the disk is full; free some space" if full else one_line(error)
        raise OutputError(f"{path}: cannot be written, nothing was left behind: {cure}") from error
    finally:
        _remove(folder)


def write_text(path: PathLike, text: str, overwrite: bool = True) -> None:
    """Write a text file, whole or not at all; see `replacing`."""
    with replacing(path, overwrite) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _remove(folder: Path) -> None:
    """Remove it, also where an interrupt comes before it can be held back."""
    try:
        with signals_held():
            shutil.rmtree(folder, ignore_errors=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _flush(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows opens no folder
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):  # some file systems cannot flush folders
            raise
    finally:
        os.close(handle)


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back within the block and deliver them at its end.

    A library that calls back into Python may swallow the exception of an interrupt and go on without what it was
    writing. Signals reach the main thread only; in others this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)

    # SIGINT is the first to be held and the last to be let go, so that it never leaves the other one held.
    known = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in known.items() if handler is not None}  # None: not Python's
    try:
        for number in handlers:
            signal.signal(number, hold)
        yield
    finally:
        for number in reversed(handlers):
            signal.signal(number, handlers[number])
        for number in dict.fromkeys(came):
            signal.raise_signal(number)


class _FirstError(io.FileIO):
    """A file that keeps its first write error and takes everything after it in silence.

    HDF5 cannot close a file that it cannot flush, and crashes the process when it ends; so it is not told.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        if self.error is None:
            try:
                view = memoryview(data).cast("B")
                while view:  # a write may be taken in part
                    view = view[super().write(view) :]
            except OSError as error:
                self.error = error
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        if self.error is None:
            try:
                return super().truncate(size)
            except OSError as error:
                self.error = error
        return size or 0


@contextmanager
def hdf5_target(path: Path) -> Iterator[_FirstError]:
    """Yield a file for HDF5 to write to; raise its write error once HDF5 has let go of it."""
    with _FirstError(path, "w+") as file:
        try:
            yield file
        finally:
            if file.error is not None:
                raise file.error
