"""The process that compiles beside the first run on a machine makes what that run needs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from cassi.kernels import ahead

ROOT = Path(__file__).resolve().parents[1]
RUN = """
import torch
import cassi
from cassi.kernels import cpu_lowrank, cpu_tv
mask = torch.rand(64, 64, generator=torch.Generator().manual_seed(0))
y = cassi.CASSI.from_step(mask, -2, 8) @ torch.ones(8, 64, 64)
cassi.reconstruct(y, mask, num_bands=8, step=-2, camera="as-given")
for kernel in (cpu_tv._tv_prox, cpu_lowrank._bases, cpu_lowrank._filters, cpu_lowrank._filtered):
    assert not kernel.stats.cache_misses, kernel
assert cpu_tv._tv_prox.stats.cache_hits
"""


@pytest.fixture(autouse=True)
def anew():
    """As in a process of its own."""
    ahead.compile_beside.cache_clear()
    yield
    ahead.compile_beside.cache_clear()


@pytest.fixture
def started(tmp_path, monkeypatch):
    """The processes that would be started; no kernel is compiled in the folder of this cache."""
    calls: list[list[str]] = []

    class Process:
        def __init__(self, words, **_):
            calls.append(words)

        def kill(self):
            pass

    monkeypatch.setattr(ahead, "cache_folder", lambda: str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(ahead, "num_cores", lambda: 2)
    monkeypatch.setenv("CASSI_COMPILED", "1")
    return calls


def fill(folder: Path, *, older: bool = False) -> None:
    for name in ahead.LAST:
        file = folder / f"{name}-72.py311.sha256.nbi"
        file.write_bytes(b"")
        if older:
            os.utime(file, (0, 0))


def test_a_process_is_started_where_nothing_is_compiled(started):
    assert ahead.compile_beside() is not None and ahead.compile_beside() is ahead.compile_beside()
    assert started == [[sys.executable, "-P", "-m", "cassi.kernels.ahead"]]


def test_not_where_all_is_compiled(started, tmp_path):
    fill(tmp_path)
    assert ahead.compile_beside() is None and not started


def test_but_where_it_was_compiled_from_an_older_source(started, tmp_path):
    fill(tmp_path, older=True)
    assert ahead.compile_beside() is not None


@pytest.mark.parametrize("what", ["one core", "eager", "no folder"])
def test_nor_where_it_would_be_of_no_use(started, monkeypatch, what):
    if what == "one core":
        monkeypatch.setattr(ahead, "num_cores", lambda: 1)
    elif what == "eager":
        monkeypatch.setenv("CASSI_COMPILED", "0")
    else:
        monkeypatch.setattr(ahead, "cache_folder", lambda: None)
    assert ahead.compile_beside() is None and not started


@pytest.mark.parametrize("path", ["", ".", "{here}", "{here}:", ":other"])
def test_nothing_of_the_working_folder_is_run(tmp_path, monkeypatch, path):
    """The process that is started finds none of these packages there."""
    names = ("numba", "llvmlite", "numpy", "torch", "cassi")
    for name in names:
        (tmp_path / f"{name}.py").write_text("raise SystemExit\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", path.format(here=tmp_path))
    monkeypatch.setattr(ahead, "cache_folder", lambda: str(tmp_path / "none"))
    monkeypatch.setattr(ahead, "num_cores", lambda: 2)
    monkeypatch.setenv("CASSI_COMPILED", "1")
    start = subprocess.Popen
    find = f"import importlib.util as u; print(*(u.find_spec(name).origin for name in {names}), sep='\\n')"

    def instead(words, stdout, **more):
        assert words[-2:] == ["-m", "cassi.kernels.ahead"]
        return start([*words[:-2], "-c", find], stdout=subprocess.PIPE, text=True, **more)

    monkeypatch.setattr(subprocess, "Popen", instead)
    found = ahead.compile_beside().communicate(timeout=600)[0].split()
    assert len(found) == len(names) and not any(Path(origin).is_relative_to(tmp_path) for origin in found)


@pytest.mark.long
def test_a_run_finds_what_the_process_compiled(tmp_path, monkeypatch):
    """In a cache that lacks just these kernels: the others are those of the suite, where it has compiled them."""
    compiled = [path for path in Path(ahead.cache_folder()).glob("*.nb[ic]") if not path.name.startswith(ahead.LAST)]
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    for name, value in {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "CASSI_COMPILED": "1"}.items():
        monkeypatch.setenv(name, value)
    folder = Path(ahead.cache_folder())
    assert tmp_path in folder.parents
    for path in compiled:
        shutil.copy2(path, folder)
    process = ahead.compile_beside()
    assert process.wait(600) == 0
    ahead.compile_beside.cache_clear()
    assert ahead.compile_beside() is None
    subprocess.run([sys.executable, "-c", RUN], check=True, timeout=600)


def test_machine_code_that_is_found_by_its_source_counts_as_compiled(tmp_path, monkeypatch, torch_threads):
    """A checkout makes sources younger than what is compiled of them, and numba compiles nothing again."""
    torch_threads(1)
    monkeypatch.setattr(ahead, "cache_folder", lambda: str(tmp_path))
    for name in ahead.LAST:
        (tmp_path / f"{name}-1.nbi").touch()
        os.utime(tmp_path / f"{name}-1.nbi", (0, 0))
    assert not any(ahead._is_compiled(tmp_path, name) for name in ahead.LAST)
    ahead.compile_last()
    assert all(ahead._is_compiled(tmp_path, name) for name in ahead.LAST)
