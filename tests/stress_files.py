#!/usr/bin/env python
"""Damaged files by the thousand, of every format: each ends in one line or in a measurement, soon, within the memory.

Run by hand; not part of the suite:  python tests/stress_files.py --count 3000 --seed 0
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np
from test_files_hostile import CORPUS, options_of

from cassi.errors import InputError
from cassi.files import describe, read_measurement

SLOW = 20  # seconds after which a file is taken to hang
DIGITS = b"0123456789-+.eE"


def damage(good: bytes, draw: np.random.Generator) -> tuple[str, bytes]:
    """One way to spoil a file, and the spoilt bytes."""
    data = bytearray(good)
    kind = str(draw.choice(["bytes", "bits", "cut", "hole", "zeros", "numbers", "head"]))
    at, length = int(draw.integers(len(data))), int(draw.integers(1, 64))
    if kind in ("bytes", "head"):
        for place in draw.integers(0, len(data) if kind == "bytes" else min(512, len(data)), int(draw.integers(1, 30))):
            data[place] = int(draw.choice([0, 1, 127, 128, 255, int(draw.integers(256))]))
    elif kind == "bits":
        for place in draw.integers(0, len(data), int(draw.integers(1, 8))):
            data[place] ^= 1 << int(draw.integers(8))
    elif kind == "cut":
        del data[at:]
    elif kind == "hole":
        del data[at : at + length]
    elif kind == "zeros":
        data[at : at + length] = bytes(length)
    else:  # where the file says a number in words, another
        for place in [i for i, byte in enumerate(data[:4096]) if byte in DIGITS][:: int(draw.integers(1, 9))]:
            data[place] = DIGITS[int(draw.integers(len(DIGITS)))]
    return kind, bytes(data)


def wrong(path: Path, options: dict[str, object]) -> str:
    """What is wrong with how a file is taken; empty where nothing is."""
    for call in (lambda: read_measurement(path, **options), lambda: describe(path)):
        signal.alarm(SLOW)
        try:
            found = call()
        except InputError as error:
            if not str(error).isprintable() or len(str(error)) > 1000:
                return f"not one line: {str(error)[:80]!r}"
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:100]}"
        else:
            if hasattr(found, "y") and not (np.isfinite(found.y).all() and np.isfinite(found.mask).all()):
                return "read, but not finite"
        finally:
            signal.alarm(0)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    draw, found = np.random.default_rng(args.seed), 0

    def hangs(*_: object) -> None:
        raise TimeoutError(f"more than {SLOW} s")

    signal.signal(signal.SIGALRM, hangs)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name, write in CORPUS.items():
            write(place / name)
        good = {path.name: path.read_bytes() for path in place.iterdir()}
        names = sorted(good)
        for number in range(args.count):
            name = names[number % len(names)]
            kind, data = damage(good[name], draw)
            (place / name).write_bytes(data)
            opened = "a.hdr" if name == "a.img" else name
            if said := wrong(place / opened, options_of(opened)):
                found += 1
                print(f"{number} {name} {kind}: {said}", flush=True)
            (place / name).write_bytes(good[name])
    print(f"{args.count} files, {found} wrong")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
