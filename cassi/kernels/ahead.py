"""Where nothing is compiled yet, a second process compiles those kernels that a default run calls last.

The run itself compiles the others when it calls them, and finds these in the cache of `jit`. Either process makes the
same machine code: who was faster changes no result.
"""

import atexit
import functools
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from cassi.kernels.jit import cache_folder, is_off
from cassi.kernels.machine import num_cores

LAST = ("cpu_tv._tv_prox", "cpu_lowrank._bases", "cpu_lowrank._filters", "cpu_lowrank._filtered")
HERE = Path(__file__).parent


@functools.cache
def compile_beside() -> subprocess.Popen[bytes] | None:
    """Start that process, which ends with this one at the latest; None where it has nothing to do or no core.

    It is started once, however many runs there are in this process before all is compiled.
    """
    folder = cache_folder()
    if folder is None or is_off() or num_cores() < 2 or all(_is_compiled(Path(folder), name) for name in LAST):
        return None
    silent = subprocess.DEVNULL
    with suppress(OSError):  # the run compiles them itself
        named = [os.path.realpath(name) for name in os.environ.get("PYTHONPATH", "").split(os.pathsep) if name]
        paths = [str(HERE.parents[1]), *(name for name in named if name != os.path.realpath("."))]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],  # -P and above: nothing of the working folder is run
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=silent,
            stdout=silent,
            stderr=silent,
        )
        atexit.register(process.kill)
        return process
    return None


def _is_compiled(folder: Path, name: str) -> bool:
    """Whether machine code of a kernel is there, of this source or a later one."""
    source = HERE / f"{name.partition('.')[0]}.py"
    with suppress(OSError):
        return any(file.stat().st_mtime >= source.stat().st_mtime for file in folder.glob(f"{name}-*.nbi"))
    return False


def compile_last() -> None:
    """Call the kernels once, with the types of a default run."""
    import torch

    from cassi.kernels.cpu_lowrank import apply_filters, learn_filters
    from cassi.kernels.cpu_tv import tv_steps

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    image, weight, dual = torch.rand(1, 8, 8, generator=generator), torch.ones(()), torch.zeros(2, 1, 8, 8)
    tv_steps(image, weight, dual, None, 1, 1.0)
    filters = learn_filters(torch.rand(8, 8, 2, generator=generator), torch.arange(6)[None], 3, 1.0)
    apply_filters(torch.rand(2, 8, 8, generator=generator), filters, torch.ones(2), torch.ones(8, 8))
    folder = cache_folder()
    for name in LAST if folder else ():
        for file in Path(folder or "").glob(f"{name}-*.nbi"):
            file.touch()  # numba finds it by its source's content, `_is_compiled` by its age


if __name__ == "__main__":
    compile_last()
