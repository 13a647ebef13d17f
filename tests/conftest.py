"""Fixtures and settings shared by all tests."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import messages
import pytest
from hypothesis import HealthCheck, settings

# Before anything is imported that reads it: as many processes as cores work here, and idle threads of BLAS and OpenMP
# spin, which costs the others their cores. What programs that tests start do with threads, they do with one, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Bytecode is kept as machine code of the kernels is, also where the environment forbids it: else each of the processes
# that tests start compiles the package again, and each of those that test rewrites all assertions.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A worker has said all and cleared up by then: to free each object, too, would take it seconds.
if "PYTEST_XDIST_WORKER" in os.environ:
    atexit.register(os._exit, 0)

if TYPE_CHECKING:  # the process that hands tests to others starts them sooner without
    import torch


# The same examples each time: what is drawn depends neither on the machine nor on what was found before.
settings.register_profile(
    "cassi", derandomize=True, deadline=None, database=None, max_examples=40, suppress_health_check=list(HealthCheck)
)
settings.load_profile("cassi")

# Kernels that are not in the cache yet are compiled by one process, while the next one does what needs none of them:
# two that come to the same kernel at a time would both compile it. Then come the longest files, so that no process
# waits for one of them at the end, and all others in the order of names.
FIRST = (
    "kernels_cpu", "looking_figures", "looking_server", "files_bombs", "self_calibration_search",
    "self_calibration_elements_of_several", "cuda_budgets", "cli_cluster", "cli_shell", "kernels_gpu", "kernels_ahead",
    "photograph_solver", "looking_report", "real_captures", "kill", "scripts_train", "docs", "optics_contract",
    "files_hostile", "running_white", "cli_scenes", "scripts_ablate", "self_calibration_refined_camera",
    "kernels_caller", "cuda_equality", "quality_floor",
)  # fmt: skip


LONG = (
    "calibration_", "self_calibration_", "choice_", "cli_", "contributing", "cuda_", "docs", "kernels_gpu", "kill",
    "looking_figures", "looking_report", "looking_server", "photograph_solver", "quality_floor", "running_",
    "same_file", "scripts_", "sequence_neighbors",
)  # fmt: skip
OF_WORKERS: list[messages.Entries] = []


def is_long(path: Path) -> bool:
    return path.name.removeprefix("test_").startswith(LONG)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files of tests/ anew")


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written anew."""
    return bool(request.config.getoption("--update-golden"))


def pytest_configure(config: pytest.Config) -> None:
    messages.update = bool(config.getoption("--update-golden"))
    config.addinivalue_line("markers", "slow: minutes; runs only where asked for, with -m slow or CASSI_SLOW_TESTS=1")
    config.addinivalue_line("markers", "long: whole reconstructions, programs, pages and trainings")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where no long tests are wanted, what they import is not either."""
    return (is_long(collection_path) and "not long" in config.option.markexpr) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected lives to the end: the search for garbage, a twentieth of the time, skips it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # else some libraries take what is left for a leak, and say so
        gc.set_threshold(5_000, 20, 20)  # figures and pages are many small objects, hardly any of them garbage
        gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not messages.update:
        return
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["messages"] = messages.recorded
    else:
        messages.write([messages.recorded, *OF_WORKERS])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    OF_WORKERS.append(getattr(node, "workeroutput", {}).get("messages", {}))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    import torch

    # small tensors gain nothing from more, and parallel test runs do not fight over the cores
    torch.set_num_threads(1)
    for item in items:
        if is_long(item.path):
            item.add_marker("long")
    place = {f"test_{name}.py": k for k, name in enumerate(FIRST)}
    items.sort(key=lambda item: place.get(item.path.name, len(FIRST)))
    if "slow" in config.option.markexpr or os.environ.get("CASSI_SLOW_TESTS", "0") == "1":
        return
    skip = pytest.mark.skip(reason="slow: run with -m slow or CASSI_SLOW_TESTS=1")
    for item in items:
        if item.get_closest_marker("slow") is not None:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real captures: CASSI_SHARED_DATA, or ../shared/data beside the repository; skips where absent."""
    folder = Path(os.environ.get("CASSI_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real captures are not at {folder}; set CASSI_SHARED_DATA to their folder")
    return folder


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        import torch

        metafunc.parametrize("device", ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"], indirect=True)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    """Every device there is."""
    import torch

    return torch.device(request.param)


@pytest.fixture(params=["default", "eager"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both implementations: what is chosen by itself (compiled kernels, Triton), and plain torch."""
    from cassi.kernels.dispatch import eager

    with eager() if request.param == "eager" else nullcontext():
        yield str(request.param)


@pytest.fixture
def generator() -> torch.Generator:
    """A fresh generator with a fixed seed for each test."""
    import torch

    return torch.Generator().manual_seed(20240229)


@pytest.fixture
def torch_threads() -> Iterator[Callable[[int], None]]:
    """Set the number of threads for one test."""
    import torch

    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
