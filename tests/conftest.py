"""Fixtures and settings shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from cassi.kernels.dispatch import eager

# one thread: small tensors gain nothing from more, and parallel test runs do not fight over the cores
torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: minutes; runs only where asked for, with -m slow or CASSI_SLOW_TESTS=1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "slow" in config.option.markexpr or os.environ.get("CASSI_SLOW_TESTS", "0") == "1":
        return
    skip = pytest.mark.skip(reason="slow: run with -m slow or CASSI_SLOW_TESTS=1")
    for item in items:
        if item.get_closest_marker("slow") is not None:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real captures: CASSI_SHARED_DATA, or ../shared/data beside the repository; skips where absent."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("CASSI_SHARED_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"real captures are not at {folder}; set CASSI_SHARED_DATA to their folder")
    return folder


@pytest.fixture(params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Every device there is."""
    return torch.device(request.param)


@pytest.fixture(params=["default", "eager"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both implementations: what is chosen by itself (compiled kernels, Triton), and plain torch."""
    with eager() if request.param == "eager" else nullcontext():
        yield str(request.param)


@pytest.fixture
def generator() -> torch.Generator:
    """A fresh generator with a fixed seed for each test."""
    return torch.Generator().manual_seed(20240229)


@pytest.fixture
def torch_threads() -> Iterator[Callable[[int], None]]:
    """Set the number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
