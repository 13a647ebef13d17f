"""The cores and the memory that this process may use, as a container or a job limits them."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")  # of Linux, version 2 and below it version 1
PROCESS = Path("/proc/self/cgroup")  # the groups of this process
UNLIMITED = 1 << 60  # bytes, or what version 1 writes in place of "max"


def num_cores() -> int:
    """The cores that this process may use, those that a share of processor time makes up counted whole."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for place in _groups("cpu"):
        quota, period, *_ = [*_numbers(place / "cpu.max"), 0, 0]
        if not quota:
            quota, period = (next(_numbers(place / f"cpu.cfs_{name}_us"), 0) for name in ("quota", "period"))
        if quota > 0 and period > 0:
            cores = min(cores, math.ceil(quota / period))
    return cores


def free_memory() -> int:
    """The memory that this process may still take [bytes]: what the machine, each of its groups and `ulimit` leave."""
    import psutil

    left = [int(psutil.virtual_memory().available)]
    for place in _groups("memory"):
        for limits, used, cache in (
            (("memory.max", "memory.high"), "memory.current", "inactive_file"),
            (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit = min((n for name in limits for n in _numbers(place / name)), default=UNLIMITED)
            if limit < UNLIMITED:
                left.append(limit - next(_numbers(place / used), 0) + _stated(place / "memory.stat", cache))
    with suppress(ImportError, OSError, AttributeError, psutil.Error):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if 0 < limit < UNLIMITED:
            left.append(limit - psutil.Process().memory_info().vms)
    return max(0, min(left))


def _groups(controller: str) -> Iterator[Path]:
    """The folders of the groups that this process is in, and those above them, which limit it as well."""
    with suppress(OSError):
        for line in PROCESS.read_text(encoding="utf-8").splitlines():
            _, names, path = line.split(":", 2)
            if names and controller not in names.split(","):
                continue
            for top in (CGROUPS, CGROUPS / controller, CGROUPS / names) if names else (CGROUPS,):
                place = top / path.strip("/")
                yield from (folder for folder in (place, *place.parents) if folder == top or top in folder.parents)


def _numbers(file: Path) -> Iterator[int]:
    """The whole numbers in a file of a group; none where there is no such file or no limit."""
    with suppress(OSError):
        yield from (int(word) for word in file.read_text(encoding="utf-8").split() if word.lstrip("-").isdigit())


def _stated(file: Path, name: str) -> int:
    """A number in a file with one name and number a line; 0 where it is not there."""
    with suppress(OSError, ValueError):
        lines = (line.split() for line in file.read_text(encoding="utf-8").splitlines())
        return next((int(value) for stated, value, *_ in lines if stated == name), 0)
    return 0
