#!/usr/bin/env python
"""Damaged files by the thousand, of every format: each ends in one line or in a measurement, soon, within the memory.

Run by hand; not part of the suite:  python tests/stress_files.py --count 3000 --seed 0
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
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
    kinds = ("bytes", "bits", "cut", "hole", "twice", "swapped", "numbers", "zeros", "ones", "head")
    kind = kinds[int(draw.integers(len(kinds)))]
    at, length = int(draw.integers(len(data))), int(draw.integers(1, 64))
    if kind == "bytes":
        for place in draw.integers(0, len(data), int(draw.integers(1, 30))):
            data[place] = int(draw.integers(256))
    elif kind == "bits":
        for place in draw.integers(0, len(data), int(draw.integers(1, 8))):
            data[place] ^= 1 << int(draw.integers(8))
    elif kind == "cut":
        del data[at:]
    elif kind == "hole":
        del data[at : at + length]
    elif kind == "twice":
        data[at:at] = data[at : at + length]
    elif kind == "swapped":
        other = int(draw.integers(len(data)))
        data[at : at + length], data[other : other + length] = data[other : other + length], data[at : at + length]
    elif kind == "numbers":  # where the file says a number in words, another
        for place in [i for i, byte in enumerate(data[:4096]) if byte in DIGITS][:: int(draw.integers(1, 9))]:
            data[place] = DIGITS[int(draw.integers(len(DIGITS)))]
    elif kind == "head":
        for place in draw.integers(0, min(512, len(data)), 6):
            data[place] = int(draw.choice([0, 1, 127, 128, 255]))
    else:
        data[at : at + length] = (b"\0" if kind == "zeros" else b"\xff") * length
    return kind, bytes(data)


def verdict(path: Path, options: dict[str, object]) -> str:
    """What became of a file: "one line", "read", or what went wrong."""
    for call in (lambda: read_measurement(path, **options), lambda: describe(path)):
        try:
            found = call()
        except InputError as error:
            text = str(error)
            if "\n" in text or len(text) > 1000 or not text.isprintable():
                return f"not one line: {text[:80]!r}"
            if "internal error" in text:
                return f"traceback in disguise: {text[:120]}"
            continue
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__} in {Path(where.filename).name}:{where.lineno}: {str(error)[:100]}"
        if hasattr(found, "y") and not (np.isfinite(found.y).all() and np.isfinite(found.mask).all()):
            return "read, but not finite"
    return "handled"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    draw = np.random.default_rng(args.seed)
    found: Counter[str] = Counter()
    wrong: list[str] = []

    def hangs(*_: object) -> None:
        raise TimeoutError(f"more than {SLOW} s")

    signal.signal(signal.SIGALRM, hangs)
    began, slowest = time.perf_counter(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        good = {}
        for name, write in CORPUS.items():
            path = Path(folder, "good", name)
            path.parent.mkdir(exist_ok=True)
            write(path)
            good[name] = path.read_bytes()
        good["a.img"] = Path(folder, "good", "a.img").read_bytes()  # the other half of a.hdr
        names = sorted(good)
        for number in range(args.count):
            name = names[number % len(names)]
            kind, data = damage(good[name], draw)
            place = Path(folder, "bad")
            place.mkdir(exist_ok=True)
            for half in ("a.hdr", "a.img"):
                (place / half).write_bytes(good[half])
            (place / name).write_bytes(data)
            opened = "a.hdr" if name == "a.img" else name
            start = time.perf_counter()
            signal.alarm(SLOW)
            try:
                said = verdict(place / opened, options_of(opened))
            finally:
                signal.alarm(0)
            slowest = max(slowest, time.perf_counter() - start)
            found[said if said == "handled" else "wrong"] += 1
            if said != "handled":
                wrong.append(f"{number} {name} {kind}: {said}")
                print(wrong[-1], flush=True)
    print(f"{args.count} files in {time.perf_counter() - began:.0f} s, slowest {slowest:.1f} s: {dict(found)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
