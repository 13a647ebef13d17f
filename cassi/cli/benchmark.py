"""The benchmarks, which belong to a clone of the repository: they run on its data and write its pages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run(argv: list[str]) -> int:
    """Run scripts/benchmark.py of the clone that this package is used from."""
    script = Path(__file__).resolve().parents[2] / "scripts" / "benchmark.py"
    if not script.is_file():
        message = "the benchmarks run from a clone of the repository only, as python scripts/benchmark.py"
        print(f"cassi benchmark: error: {message}", file=sys.stderr)
        return 2
    return subprocess.call([sys.executable, str(script), *argv])
