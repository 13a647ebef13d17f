"""Files captured on the bench: which of them show what, and their frames."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cassi.errors import InputError
from cassi.files import open_container
from cassi.files.frames import natural
from cassi.files.wavelength_files import parse_wavelengths
from cassi.optics.wavelengths import MIN_WAVELENGTH


class BenchFrames(NamedTuple):
    """Files of each kind of frame; `wavelengths` [nm] are those of the mask's, in their order."""

    dark: tuple[Path, ...]
    flat: tuple[Path, ...]
    mask: tuple[Path, ...]
    wavelengths: np.ndarray


def find_frames(folder: str | os.PathLike[str], wavelengths: str | None = None) -> BenchFrames:
    """Find the frames of a calibration in a folder by their names.

    Files whose names begin with dark, flat or white, and mask are taken, in the order of the numbers in them. The
    wavelengths of the mask frames are those given, or in wavelengths.txt or .csv, or in their own names
    (mask_532nm.png).

    `wavelengths` is as for `cassi.files.wavelength_files.parse_wavelengths`.

    Raises:
        InputError: no such folder, a kind of frame is missing, or the wavelengths are unknown or do not fit.
    """
    place = Path(folder)
    if not place.is_dir():
        raise InputError(f"{place}: no such folder; give one with the files dark_*, flat_* and mask_*")
    files = sorted((f for f in place.iterdir() if f.is_file() and not f.name.startswith(".")), key=natural)

    def kind(*starts: str) -> tuple[Path, ...]:
        found = tuple(f for f in files if f.name.lower().startswith(starts))
        if not found:
            raise InputError(
                f"{place}: no file named {starts[0]}_*; it holds {', '.join(f.name for f in files[:12]) or 'nothing'}"
            )
        return found

    dark, flat, mask = kind("dark"), kind("flat", "white"), kind("mask")
    listing = next((f for f in files if f.name.lower() in ("wavelengths.txt", "wavelengths.csv")), None)
    if wavelengths is None and listing is not None:
        wavelengths = str(listing)
    return BenchFrames(dark, flat, mask, _mask_wavelengths(mask, wavelengths))


def _mask_wavelengths(files: Sequence[Path], wavelengths: str | None) -> np.ndarray:
    """The wavelength of each mask frame [nm]: as given, or from names like mask_532nm.png."""
    count = len(files) if len(files) > 1 else len(read_frames(files))
    if wavelengths is not None:
        given = parse_wavelengths(wavelengths, count, of="mask frames")
        if given is None:
            raise InputError("the mask frames must be at known wavelengths")
        return given
    named = [_wavelength_in(f.name) for f in files]
    if len(files) != count or None in named:
        raise InputError(
            f"the wavelengths of {files[0].name} ... are unknown: name the files mask_532nm.png, write one number per "
            "frame into wavelengths.txt, or give --wavelengths"
        )
    return np.array(named, dtype=np.float64)


def _wavelength_in(name: str) -> float | None:
    """The wavelength [nm] that the name of a file states, as 532nm, 532.5nm, 532,5nm, 532p5nm or 0.532um; None without.

    What is shorter than light is the width of a filter.

    Raises:
        InputError: there are two.
    """
    number = r"(?<![\d.,])(\d+(?:[.,p]\d+)?)[\s_-]?(nm|um|µm|μm)(?![a-z])"
    stated = [(re.sub("[,pP]", ".", value), unit) for value, unit in re.findall(number, name, re.IGNORECASE)]
    nm = {float(value) * (1 if unit.lower() == "nm" else 1000) for value, unit in stated}
    light = {one for one in nm if one >= MIN_WAVELENGTH}
    if len(light) > 1:
        raise InputError(f"{name}: which of {', '.join(f'{one:g} nm' for one in sorted(light))} is its wavelength?")
    return next(iter(light), None)


def read_frames(files: Sequence[str | os.PathLike[str]]) -> np.ndarray:
    """Read frames of one size from files that hold one each or a stack: (N, H, W'), counts as they are.

    Raises:
        InputError: a file that cannot be read, or frames of different sizes.
    """
    stacks: list[np.ndarray] = []
    for file in files:
        container = open_container(Path(file))
        readable = [e for e in container.entries if e.dtype is not None and len(e.shape) in (2, 3)]
        if len(readable) != 1:
            raise InputError(f"{file}: expected one frame or one stack of frames, found {container.listing()}")
        values = container.read(readable[0])
        stack = values[None] if values.ndim == 2 else values
        if stacks and stack.shape[1:] != stacks[0].shape[1:]:
            raise InputError(
                f"{file}: frames of {stack.shape[1:]} pixels after {stacks[0].shape[1:]}; capture all with one region"
            )
        stacks.append(stack)
    return np.concatenate(stacks)
