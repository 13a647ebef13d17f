"""A frame among many, and the fingerprint of all that its cube is made from: what is finished is known by it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from torch import Tensor

from cassi.errors import InputError
from cassi.files.atomic import file_sha256, stamp_of
from cassi.kernels.dispatch import pick_device
from cassi.priors.learned import DEFAULT, KINDS, LearnedPrior
from cassi.settings import Settings
from cassi.version import PROGRAM

if TYPE_CHECKING:
    from cassi.optics.measurement import Measurement


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
        """The file, or all of several."""
        return self.paths if self.others else self.path

    def absolute(self) -> Self:
        """The same by absolute paths."""
        path, *others = map(os.path.abspath, self.paths)
        return replace(self, path=path, others=tuple(others))

    def read_by(self, read: Callable[..., Measurement]) -> Measurement:
        """The scene, by a reader as of `reconstruct_many`."""
        return read(self.where) if self.index is None else read(self.where, frames=self.index)


def fingerprints(read: object, solve: object, *others: object) -> Callable[[Frame], str]:
    """SHA-256 over everything a frame's cube depends on: program, file, how it is read and solved, and `others`.

    A file that cannot be read counts as its name.
    """
    common = {
        "version": PROGRAM,
        "read": describe_call(read),
        "solve": describe_call(solve),
        "others": content_of(others),
    }

    def fingerprint_of(frame: Frame) -> str:
        try:
            content = " ".join(file_sha256(path) for path in frame.paths)
        except (OSError, InputError):
            content = " ".join(frame.paths)
        made_from = json.dumps([common, content, frame.index], sort_keys=True)
        return hashlib.sha256(made_from.encode()).hexdigest()

    return fingerprint_of


Stamps = Mapping[str, tuple[int, ...]]  # of files


def named_files(*values: object) -> Iterator[str]:
    """The files that a fingerprint of these depends on: of frames, functions, settings ..., at any depth."""
    for value in values:
        if isinstance(value, partial):
            yield from named_files(value.func, *value.args, value.keywords)
        elif isinstance(value, Frame):
            yield from value.paths
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from named_files(*(getattr(value, field.name) for field in dataclasses.fields(value)))
        elif isinstance(value, Mapping):
            yield from named_files(*value.values())
        elif isinstance(value, list | tuple):
            yield from named_files(*value)
        elif isinstance(value, str | os.PathLike) and os.path.isfile(value):
            yield os.fspath(value)


def stamps_of(paths: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """`stamp_of` each file that there is; a pipe is none."""
    stamps: dict[str, tuple[int, ...]] = {}
    for path in filter(os.path.isfile, paths):
        with suppress(OSError, ValueError):
            stamps[path] = stamp_of(path)
    return stamps


def changed_since(stamps: Stamps) -> str:
    """A file that is no longer what it was, in words, if only for a while; empty if there is none."""
    now = stamps_of(stamps)
    changed = next((path for path, stamp in stamps.items() if now.get(path) != stamp), "")
    return changed and f"{changed}: was changed while the run read it; run again"


def describe_call(function: object) -> dict[str, Any]:
    """A function, partial or callable dataclass as plain values: its name and keywords, files as hash of content.

    Of the device "auto" that which it is here: cubes of a CPU and of a GPU differ in the last digits.
    """
    inner, keywords = (function.func, function.keywords) if isinstance(function, partial) else (function, {})
    if dataclasses.is_dataclass(inner):
        keywords = {field.name: getattr(inner, field.name) for field in dataclasses.fields(inner)}
    if "device" in keywords:
        keywords = {**keywords, "device": device_of(keywords["device"])}
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return {"function": f"{inner.__module__}.{name}", **content_of(keywords)}


def device_of(named: object) -> str:
    return str(pick_device("auto") if named == "auto" else named)


def content_of(value: object) -> Any:
    """Plain values for a fingerprint: of files and arrays their hash, of keywords those that are given."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        values = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        values |= {"device": device_of(value.device)} if isinstance(value, Settings) else {}
        if isinstance(value, Settings) and value.weights in (None, *KINDS):  # no file: shipped ones change, too
            named = KINDS if value.weights is None and value.plan is not None else KINDS[str(value.weights or DEFAULT)]
            return content_of({**values, "weights": named})  # without a name those of the plan, whichever it names
        return {name: content_of(item) for name, item in values.items()}
    if isinstance(value, Mapping):
        return {key: content_of(item) for key, item in sorted(value.items()) if item is not None}
    if isinstance(value, str | os.PathLike) and os.path.isfile(value):
        return {"sha256": file_sha256(value)}
    if isinstance(value, list | tuple):
        return [content_of(item) for item in value]
    if isinstance(value, LearnedPrior):
        return content_of(value.state_dict())
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return {"sha256": hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest(), "shape": value.shape}
    return value if isinstance(value, str | int | float | bool) else str(value)
