"""Atomic writing: a file appears under its name only when it is complete."""

import errno
import hashlib
import io
import os
import re
import secrets
import shutil
import stat
import warnings
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from cassi.errors import InputError, OutputError, one_line
from cassi.signals import signals_held
from cassi.types import PathLike

DISK_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
LOCK = ".lock"  # in a temporary folder that is in use
MAX_LABEL = 48  # bytes of a name that its temporary folder bears too: every drive holds names so long
UNABLE = {  # what a drive says that cannot do something
    errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK, errno.ENODEV
}  # fmt: skip


def file_sha256(path: PathLike) -> str:
    """The SHA-256 of a file, hexadecimal."""
    return _file_sha256(os.path.abspath(check_readable(path)), stamp_of(path))


def stamp_of(path: PathLike) -> tuple[int, ...]:
    """Numbers of a file that differ once its content has changed: ctime, too, which nobody can set."""
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@lru_cache(maxsize=256)
def _file_sha256(path: str, stamp: tuple[int, ...]) -> str:
    """The hash of a file with this stamp: a stack is hashed once, not once per frame."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_readable(path: PathLike) -> Path:
    """Check that a path is that of a file which can be read more than once, and return it.

    Raises:
        InputError: there is none, or it is a folder, a pipe or a device.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {str(getattr(error, 'strerror', error)).lower()}") from error
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe or device, whose data can be read only once"
        raise InputError(f"{path}: is {what}; expected a file, save the data in one")
    return path


def check_place(path: PathLike, overwrite: bool = False) -> Path:
    """Check that a file can be written, and return its path; of a link, that of the file it leads to.

    Raises:
        OutputError: missing folder, no permission, a name that the drive cannot hold (of the kind "name"), a folder,
            pipe or device of that name, or the file exists and `overwrite` is False.
    """
    path = Path(os.path.realpath(path) if os.path.islink(path) else path)
    try:
        mode = path.stat().st_mode if path.parent.is_dir() else None
    except FileNotFoundError:
        mode = 0
    except OSError as error:
        size = f"{len(os.fsencode(path.name))} bytes"
        cure = "choose a shorter name" if error.errno == errno.ENAMETOOLONG else "choose another"
        raise OutputError(f"{path}: {one_line(error.strerror)} ({size}); {cure}", kind="name") from error
    if mode is None:
        raise OutputError(f"{path}: the folder {path.parent} does not exist; create it first")
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"{path}: no permission to write to the folder {path.parent}")
    if mode and not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe or device"
        raise OutputError(f"{path}: is {what}, expected the name of a file")
    if mode and not overwrite:
        raise OutputError(f"{path}: exists already; choose another name or allow overwriting", cures=("overwrite",))
    return path


def hold(path: Path) -> BaseFileLock:
    """Hold a lock, which goes with the process; on a drive that cannot lock, a file whose being there is the lock.

    Raises:
        filelock.Timeout: another process holds it.
        OSError: the file cannot be made.
    """
    lock: BaseFileLock = FileLock(path)
    try:
        with warnings.catch_warnings(action="ignore"):  # it may turn to such a file by itself
            lock.acquire(blocking=False)
    except (OSError, NotImplementedError) as error:  # the second from filelock, where a system has no such locks
        if isinstance(error, OSError) and error.errno not in UNABLE:
            raise
        lock = SoftFileLock(path.with_name(f"{path.name}ed"))
        lock.acquire(blocking=False)
    return lock


class _Frame:
    """Lives as long as the frame that holds it."""


@contextmanager
def replacing(path: PathLike, overwrite: bool = False) -> Iterator[Path]:
    """Yield a path of the same name in a new hidden folder beside `path`; its content is then moved into place.

    This may be a file, with others beside it (the data of a header), or a folder. It is flushed to disk (fsync) before
    it is moved. After any exception, also a keyboard interrupt, nothing is left behind; what a killed process left of
    this file is removed. A link is followed; a file that is replaced passes on its rights.

    Raises:
        OutputError: see `check_place`; or the disk is full, or somebody has removed the hidden folder.
    """
    name = Path(path).name
    path = check_place(path, overwrite)
    remove_abandoned(path.parent, {path.name})
    folder = path.parent / f".{_label(path.name)}.{secrets.token_hex(4)}.part"
    here = _Frame()
    weakref.finalize(here, shutil.rmtree, folder, ignore_errors=True)  # an interrupt may skip what is below
    lock = None
    try:
        folder.mkdir(mode=0o700)
        lock = hold(folder / LOCK)  # makes the folder again if another run took it for abandoned
        yield folder / name
        parts = [part for part in folder.iterdir() if not part.name.startswith(LOCK)]
        places = {part: path if part.name == name else path.with_name(part.name) for part in parts}
        parts.sort(key=lambda part: part.name == name)  # the requested one last
        for part in parts:
            _flush(part)
        with signals_held():
            for part in parts:
                _pass_on_rights(check_place(places[part], overwrite), part)
            for part in parts:
                os.replace(part, places[part])
            with suppress(OSError):  # the file is in place: a folder that cannot be flushed is no loss
                _flush(path.parent)
            lock.release()
            shutil.rmtree(folder, ignore_errors=True)  # here no interrupt can come first
    except OSError as error:
        # numpy reports only "... requested and ... written"
        full = error.errno in DISK_FULL or (error.errno is None and "written" in str(error))
        cure = "the disk is full; free some space" if full else one_line(error)
        check_kept(folder / name)
        raise OutputError(f"{path}: cannot be written, nothing was left behind: {cure}") from error
    finally:
        with signals_held():
            if lock is not None:
                lock.release()
            shutil.rmtree(folder, ignore_errors=True)


def check_kept(temporary: Path) -> None:
    """Raise OutputError if somebody has removed the folder that `replacing` writes to: the result would be lost."""
    if not temporary.parent.is_dir():
        raise OutputError(f"{temporary.parent}: somebody has removed this temporary folder of a run; start it again")


def remove_abandoned(folder: Path, names: Collection[str]) -> None:
    """Remove the temporary folders that killed processes left of files of these names, and no others.

    One that is in use is locked.
    """
    labels = {_label(name) for name in names}
    for left in folder.glob(".*.part"):
        found = re.fullmatch(r"\.(.+)\.[0-9a-f]{8}\.part", left.name)
        if found is None or found[1] not in labels:
            continue
        with suppress(OSError, Timeout):
            if any(left.glob(f"{LOCK}*")):
                hold(left / LOCK).release()
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.rmdir()  # not yet locked by a process that was killed: empty


def _label(name: str) -> str:
    """A name as that of its temporary folder begins, or its hash if it is long."""
    encoded = os.fsencode(name)
    return name if len(encoded) <= MAX_LABEL else hashlib.sha256(encoded).hexdigest()[:MAX_LABEL]


def _pass_on_rights(old: Path, new: Path) -> None:
    """Give a new file owner, group and mode of the one that it is to replace, as far as this is allowed."""
    with suppress(OSError):  # there is none; or a drive without them
        status = old.stat()
        with suppress(OSError, AttributeError):  # another's; Windows
            os.chown(new, status.st_uid, status.st_gid)
        new.chmod(stat.S_IMODE(status.st_mode))


def write_text(path: PathLike, text: str, overwrite: bool = True) -> None:
    """Write a text file, whole or not at all; see `replacing`. What is no UTF-8, as file names may be, is escaped."""
    with replacing(path, overwrite) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def _flush(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows cannot open folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in UNABLE:
            raise
    finally:
        os.close(handle)


class FirstError(io.FileIO):
    """A file that records its first write error and silently discards everything after it.

    HDF5 cannot close a file that it cannot flush, and crashes the process at exit; so the error is hidden from it.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            while view and self.error is None:  # a write may be partial
                view = view[super().write(view) :]
        except OSError as error:
            self.error = error
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size) if self.error is None else size or 0
        except OSError as error:
            self.error = error
            return size or 0
