"""Where compiled code is kept: no fault of those files ends a run, and none of them changes what is computed."""

import warnings
from pathlib import Path

import numba
import numpy as np
import pytest

from cassi.kernels import jit as module


def add_three(x):
    return x + 3


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """Compile anew, as another process would; the folder of the files, and what was warned of."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))

    def call():
        monkeypatch.setattr(module, "_WARNED", [])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kernel = module.jit(add_three)
            assert kernel(4) == 7 and kernel(np.float32(0.5)) == 3.5  # two types, one warning
        return kernel, [str(w.message) for w in caught]

    return call, tmp_path / "cache"


def hits(kernel):
    return sum(kernel.stats.cache_hits.values())


def test_what_is_kept_is_read(compiled):
    call, _ = compiled
    assert hits(call()[0]) == 0
    kernel, warned = call()
    assert hits(kernel) == 2 and not warned


def emptied(path: Path):
    path.write_bytes(b"")


def cut(path: Path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path):
    """One bit of the machine code, which unpickling does not see."""
    whole = bytearray(path.read_bytes())
    whole[whole.index(b"\x7fELF") + 100] ^= 1
    path.write_bytes(whole)


def unreadable(path: Path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("kind", "damage"),
    [("*.nbi", emptied), ("*.nbi", cut), ("*.nbi", unreadable), ("*.nbc", emptied), ("*.nbc", cut), ("*.nbc", flipped)],
)
def test_damaged_files_are_compiled_anew_and_replaced(compiled, kind, damage):
    call, folder = compiled
    call()
    files = list(folder.rglob(kind))
    assert files
    for file in files:
        damage(file)
    kernel, warned = call()
    assert hits(kernel) == 0
    assert len(warned) == 1 and "compiled kernels cannot be read" in warned[0] and str(folder) in warned[0]
    if damage is not unreadable:
        kernel, warned = call()
        assert hits(kernel) == 2 and not warned


def test_a_full_disk(compiled, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    call, _ = compiled
    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._save_index", full)
    _, warned = call()
    assert len(warned) == 1 and "cannot be saved" in warned[0] and "No space left" in warned[0]


def test_no_folder_at_all(compiled, monkeypatch):
    monkeypatch.setattr(module._Checked, "_locator_classes", [])
    kernel, warned = compiled[0]()
    assert hits(kernel) == 0 and not warned
