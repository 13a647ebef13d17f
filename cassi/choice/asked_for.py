"""The words in which a user asks for a reconstruction. They need no torch, so that `--help` is there at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

Solver = Literal["auto", "subspace", "least-squares", "gap-tv", "admm-tv"]
SOLVERS: tuple[str, ...] = get_args(Solver)
Quality = Literal["fast", "default", "best"]
QUALITIES: tuple[str, ...] = get_args(Quality)
Prior = Literal["auto", "tv", "nonlocal", "learned"]
PRIORS: tuple[str, ...] = get_args(Prior)
Progress = Callable[[str, float], None]
"""Called with the name of a step, and the share of it that is done: 0 when it begins."""
