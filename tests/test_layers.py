"""The shape of the house: imports point down only, heavy packages stay at the edges, docstring examples run."""

from __future__ import annotations

import ast
import doctest
import functools
import graphlib
import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "cassi"
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports(path: Path, *, lazy: bool = True) -> set[str]:
    """Absolute names of the modules a file imports when it runs; with lazy=False only those its import needs."""
    found: set[str] = set()
    package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]

    def visit(nodes: list[ast.stmt]) -> None:
        for node in nodes:
            if is_type_checking(node):
                visit(node.orelse)
                continue
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                    base = ".".join([*parents, *([base] if base else [])])
                # `from cassi import compiled` imports a module, `from cassi import CASSI` a name of the package
                found.update(f"{base}.{a.name}" if f"{base}.{a.name}" in MODULES else base for a in node.names)
            elif lazy or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for field in ("body", "orelse", "finalbody"):
                    visit(getattr(node, field, []))
                for handler in getattr(node, "handlers", []):
                    visit(handler.body)

    visit(ast.parse(path.read_text(encoding="utf-8")).body)
    return found


def within(name: str, roofs: set[str]) -> bool:
    """Whether a module is one of these or lies under one."""
    return any(name == roof or name.startswith(f"{roof}.") for roof in roofs)


KERNELS = {
    "cassi.kernels.shift_sum",
    "benchmarks.textbook_shift_sum",
    "cassi.kernels.dispatch",
    "cassi.kernels.cpu",
    "cassi.kernels.gpu",
}
ROWS = {"cassi.kernels.convolution", "cassi.kernels.patches", "cassi.kernels.covariance"}
OPTICS = {"cassi.optics.single_disperser", "cassi.optics.blurred", "cassi.optics.other_cameras"}
# What each room of the lower storeys may import of the package. Rooms not named here are the upper ones.
ALLOWED = {
    "cassi.errors": set(),
    **dict.fromkeys(KERNELS, KERNELS),
    **dict.fromkeys(ROWS, KERNELS | ROWS),
    **dict.fromkeys(OPTICS, KERNELS | ROWS | OPTICS),
    "cassi.priors": KERNELS | ROWS | {"cassi.priors"},
    "cassi.solvers.loop": KERNELS,
    "cassi.solvers": KERNELS | ROWS | OPTICS | {"cassi.priors", "cassi.solvers.loop", "cassi.solvers"},
}
# The top of the house: nothing but its equals and the scripts knows of it.
TOP = {
    f"cassi.{room}"
    for room in ("reconstruct", "auto", "solve", "tiles", "batch", "stores", "report", "report_page", "view")
}
BESIDE = {
    f"cassi.{room}"
    for room in ("io", "figures", "metrics", "color", "points", "simulate", "scene", "wavelengths", "mask_check")
}
# Packages that only these rooms may import.
EDGES = {
    "h5py": {"cassi.files", "cassi.running.stores"},
    "matplotlib": {"cassi.looking.figures", "cassi.looking.calibration_figures"},
    "numba": {"cassi.kernels.cpu"},
    "triton": {"cassi.kernels.gpu"},
    "tqdm": {"cassi.solvers.loop", "cassi.running.many"},
    "dask": {"cassi.running.many"},
    "distributed": {"cassi.running.many"},
    "zarr": {"cassi.running.stores"},
}


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_the_lower_storeys_import_only_what_lies_below(room):
    inside = [name for name in MODULES if within(name, {room})]
    assert inside or room not in (
        "cassi.kernels.shift_sum",
        "cassi.optics.single_disperser",
        "cassi.priors",
        "cassi.solvers",
        "cassi.solvers.loop",
    )
    for name in inside:
        ours = {i for i in imports(MODULES[name]) if within(i, {"cassi"})}
        too_high = {i for i in ours if not within(i, ALLOWED[room])}
        assert not too_high, f"{name} imports {sorted(too_high)}"


def test_the_operator_knows_no_solver_and_the_priors_no_optics():
    """The two arrows that matter most, said once more by name."""
    assert not {
        i for i in imports(MODULES["cassi.optics.single_disperser"]) if within(i, {"cassi.solvers", "cassi.priors"})
    }
    for name in MODULES:
        if within(name, {"cassi.priors"}):
            assert not {
                i for i in imports(MODULES[name]) if within(i, OPTICS | {"cassi.kernels.shift_sum", "cassi.solvers"})
            }


def test_what_stands_beside_the_solvers_knows_neither_them_nor_the_top():
    for name in MODULES:
        if within(name, BESIDE):
            too_high = {i for i in imports(MODULES[name]) if within(i, TOP | {"cassi.solvers", "benchmarks"})}
            assert not too_high, f"{name} imports {sorted(too_high)}"


def test_no_module_imports_the_benchmarks_or_the_scripts():
    for name, path in MODULES.items():
        if not within(name, {"benchmarks"}):
            assert not {i for i in imports(path) if within(i, {"benchmarks", "scripts"})}, name


def test_no_module_but_the_top_imports_the_package_itself():
    """`import cassi` pulls in everything: only the top may, and only for the name or version."""
    for name, path in MODULES.items():
        if not within(name, TOP | {"benchmarks"}):
            assert "cassi" not in imports(path), name


def room_of(name: str) -> str:
    """cassi.files.formats.hdf5 -> cassi.files. Wavelengths belong to it: a list of them may be a file, a file may hold a list."""
    room = ".".join(name.split(".")[:2])
    return "cassi.files" if room == "cassi.optics.wavelengths" else room


def test_no_circle_of_imports():
    """None between rooms, also not through the back door of an import inside a function; none at import time at all."""
    at_import = {n: {i for i in imports(p, lazy=False) if i in MODULES} for n, p in MODULES.items()}
    rooms: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        rooms.setdefault(room_of(name), set()).update(room_of(i) for i in imports(path) if i in MODULES)
    for graph in (at_import, rooms):
        acyclic = {n: {i for i in below if i not in (n, "cassi")} for n, below in graph.items() if n != "cassi"}
        try:
            graphlib.TopologicalSorter(acyclic).prepare()
        except graphlib.CycleError as error:
            pytest.fail(f"imports in a circle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("package", sorted(EDGES))
def test_heavy_packages_stay_at_the_edges(package):
    users = {name for name, path in MODULES.items() if any(within(i, {package}) for i in imports(path))}
    astray = {name for name in users if not within(name, EDGES[package])}
    assert not astray, f"{package} is imported by {sorted(astray)}"


def test_the_package_imports_without_files_and_figures():
    """A fresh interpreter: `import cassi` loads neither h5py nor matplotlib."""
    code = "import sys, cassi; cassi.CASSI; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert "torch" in loaded and "cassi" in loaded
    assert not loaded & {"h5py", "matplotlib", "skimage", "zarr", "dask", "distributed"}


def test_the_public_names_exist_and_nothing_else_is_defined_in_init():
    import cassi

    assert sorted(set(cassi.__all__)) == sorted(cassi.__all__)
    for name in cassi.__all__:
        assert getattr(cassi, name) is not None
    tree = ast.parse(MODULES["cassi"].read_text(encoding="utf-8"))
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)], "__init__ holds the public names only"


# scripts


ONLY_THESE = {  # what a script may take from torch: no arithmetic
    "torch.Generator", "torch.Tensor", "torch.Size", "torch.device", "torch.from_numpy", "torch.set_num_threads",
    "torch.get_num_threads", "torch.__version__", "torch.cuda.is_available", "np.ndarray", "np.asarray",
}  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_scripts_hold_no_numerics(script):
    tree = ast.parse(script.read_text(encoding="utf-8"))
    packages = {i.partition(".")[0] for i in imports(script)}
    assert not packages & {"scipy", "h5py", "matplotlib", "numba", "triton", "skimage", "colour", "zarr"}
    inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in inner:
            text = ast.unparse(node)
            if text.startswith(("torch.", "np.", "numpy.")):
                taken = ".".join(text.split("(")[0].split(".")[:3])
                assert any(taken == name or taken.startswith(f"{name}.") for name in ONLY_THESE), (
                    f"{script.name}:{node.lineno}: {text} belongs in the library"
                )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_nothing_imports_a_script(script):
    for path in (*MODULES.values(), *SCRIPTS):
        assert f"scripts.{script.stem}" not in imports(path)


# manners of the source


@pytest.mark.parametrize("path", MODULES.values(), ids=MODULES.keys())
def test_manners(path):
    """No assert as validation, no global seed, no **kwargs passed on; every module says what it is."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), f"{path.name} has no docstring"
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Assert), f"{path.name}:{node.lineno}: assert validates nothing under -O"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("torch.manual_seed", "np.random.seed", "random.seed"), f"{path.name}:{node.lineno}"
        if isinstance(node, ast.Global):
            pytest.fail(f"{path.name}:{node.lineno}: global {', '.join(node.names)} is hidden state")
    assert path.stem not in ("utils", "base", "core", "helpers", "common", "misc")


# examples


@functools.cache
def examples(name: str) -> list[doctest.DocTest]:
    """The examples of one module, run as a reader would who has imported what the README imports."""
    import cassi

    usual = {"torch": torch, "np": np, "cassi": cassi, "CASSI": cassi.CASSI, "os": os, "tempfile": tempfile}
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [test for test in finder.find(importlib.import_module(name), extraglobs=usual) if test.examples]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_the_docstrings_run(name):
    try:
        tests = examples(name)
    except ImportError as error:
        if error.name and within(error.name, {"cassi"}):
            raise
        pytest.skip(f"{name} needs {error.name}")
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    log: list[str] = []
    with np.printoptions(legacy=False):  # colour-science sets another style for the whole process
        for test in tests:
            runner.run(test, out=log.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(log)


def test_the_core_has_examples():
    """The words that carry the library show how they are used."""
    for name in ("cassi.optics.single_disperser", "cassi.kernels.shift_sum", "cassi.priors.tv", "cassi.solvers.gap"):
        assert examples(name), f"{name} has no example"
