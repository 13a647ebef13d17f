"""The shape of the house: imports point down only, heavy packages stay at the edges, docstring examples run."""

import ast
import doctest
import functools
import graphlib
import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import cassi

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "cassi"
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """A file, parsed once for all tests, which only read it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


@functools.cache
def imports(path: Path, *, lazy: bool = True) -> set[str]:
    """Absolute names of the modules a file imports when it runs; with lazy=False only those its import needs."""
    found: set[str] = set()
    package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]

    def visit(nodes: list[ast.stmt]) -> None:
        for node in nodes:
            if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
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

    visit(tree_of(path).body)
    return found


def within(name: str, roofs: set[str]) -> bool:
    """Whether a module is one of these or lies under one."""
    return any(name == roof or name.startswith(f"{roof}.") for roof in roofs)


BELOW = (
    "errors",
    "kernels",
    "optics",
    "priors",
    "solvers",
    "files",
    "evidence",
    "choice",
    "calibration",
    "self_calibration",
)
ROOMS = {  # what each room may import besides itself; the order is that of the floors
    "errors": set(), "types": set(), "version": set(), "signals": set(), "settings": {"errors"}, "keywords": set(),
    "kernels": {"errors"}, "optics": {"errors", "kernels"}, "priors": {"errors", "kernels"},
    "solvers": {"errors", "kernels", "optics", "priors"}, "files": {"errors", "optics", "priors"},
    "evidence": {"errors", "kernels", "optics", "priors", "solvers"},
    "choice": {"errors", "kernels", "optics", "priors", "solvers", "evidence"},
    "calibration": {"errors", "kernels", "optics", "files"},
    "self_calibration": {*BELOW} - {"calibration", "self_calibration"},
    "photograph": {*BELOW}, "simulation": {"errors", "kernels", "optics", "files", "photograph"},
    "looking": {*BELOW} - {"priors"}, "running": {*BELOW, "photograph", "simulation", "looking"},
    "sequence": {*BELOW, "running"} - {"files"},
    "cli": {*BELOW, "photograph", "simulation", "looking", "running", "sequence"},
}  # fmt: skip
WITHOUT_SETTINGS = {"kernels", "optics", "priors", "solvers", "files", "evidence", "simulation", "looking"}
PLAIN = {"errors", "types", "version", "signals", "settings", "keywords"}  # files, which every room may import
# Packages that only these rooms may import.
EDGES = {
    "h5py": {"cassi.files", "cassi.running.many"}, "matplotlib": {"cassi.looking"}, "numba": {"cassi.kernels.jit"},
    "triton": {"cassi.kernels.gpu"}, "tqdm": {"cassi.solvers.loop", "cassi.running", "cassi.cli"},
    "safetensors": {"cassi.priors.learned"},
}  # fmt: skip


def room_of(name: str) -> str:
    """cassi.files.formats.hdf5 -> files; "" is the package itself, whose door imports every room."""
    return name.split(".")[1] if "." in name else ""


def graph(*, lazy: bool, of: Callable[[str], str]) -> dict[str, set[str]]:
    """Who imports whom, rooms or modules; the door `cassi` and a room's own `__init__` (its public names) left out."""
    found: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        if path.name != "__init__.py":
            below = {of(i) for i in imports(path, lazy=lazy) if i in MODULES and MODULES[i].name != "__init__.py"}
            found.setdefault(of(name), set()).update(below - {of(name)})
    return found


def test_the_tree_is_thirteen_rooms_and_a_door():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(ROOMS) - PLAIN
    assert {path.stem for path in PACKAGE.glob("*.py")} == {"__init__", "__main__", *PLAIN}


def test_a_room_imports_only_what_lies_below():
    floors = list(ROOMS)
    for room, below in ROOMS.items():
        assert {floors.index(b) for b in below} <= set(range(floors.index(room)))
    for name, path in MODULES.items():
        if (room := room_of(name)) in ROOMS:
            allowed = ROOMS[room] | PLAIN | {room}
            allowed -= {"settings", "keywords"} if room in WITHOUT_SETTINGS else set()
            above = {i for i in imports(path) if i.startswith("cassi.") and room_of(i) not in allowed}
            assert not above, f"{name} imports {sorted(above)}"


def test_the_package_itself_is_imported_by_its_door_alone():
    for name, path in MODULES.items():
        assert "cassi" not in imports(path) or room_of(name) == "cli", name


def test_no_circle_of_imports():
    """Between modules, inside a room too, and also through the back door of an import inside a function."""
    try:
        graphlib.TopologicalSorter(graph(lazy=True, of=str)).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"imports in a circle: {' -> '.join(error.args[1])}")


def test_no_public_function_hides_its_module():
    """`cassi.solvers.gap` is a module; a function of that name in the room's `__init__` would hide it."""
    for room in set(ROOMS) - PLAIN:
        modules = {name.rpartition(".")[2] for name in MODULES if name.startswith(f"cassi.{room}.")}
        assert not modules & set(getattr(importlib.import_module(f"cassi.{room}"), "__all__", ())), room


def test_heavy_packages_stay_at_the_edges():
    for package, allowed in EDGES.items():
        users = {name for name, path in MODULES.items() if any(within(i, {package}) for i in imports(path))}
        astray = {name for name in users if not within(name, allowed)}
        assert not astray, f"{package} is imported by {sorted(astray)}"


@pytest.mark.long
def test_the_package_imports_without_files_and_figures():
    """A fresh interpreter: `import cassi` loads neither h5py nor matplotlib, and figures never load pyplot."""
    code = (
        "import sys, cassi; cassi.CASSI; print(*sorted({m.partition('.')[0] for m in sys.modules}))\n"
        "import cassi.looking.figures, cassi.looking.overview; assert 'matplotlib.pyplot' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert "torch" in loaded and "cassi" in loaded
    assert not loaded & {"h5py", "matplotlib", "xarray", "skimage"}


def test_the_public_names_exist_and_nothing_else_is_defined_in_init():
    assert len(set(cassi.__all__)) == len(cassi.__all__)
    assert sorted(dir(cassi)) == sorted([*cassi.__all__, "__version__"])
    assert all(getattr(cassi, name) is not None for name in cassi.__all__)
    defined = [n for n in nodes_of(MODULES["cassi"]) if isinstance(n, ast.ClassDef)]
    assert not defined, "__init__ holds the public names only"


ONLY_THESE = {  # what a script may take from torch: no arithmetic
    "torch.Generator", "torch.Tensor", "torch.Size", "torch.device", "torch.from_numpy", "torch.set_num_threads",
    "torch.get_num_threads", "torch.__version__", "torch.cuda.is_available", "np.ndarray", "np.asarray",
}  # fmt: skip


def test_scripts_hold_no_numerics():
    for script in [*SCRIPTS, *sorted((PACKAGE / "cli").glob("*.py"))]:
        packages = {i.partition(".")[0] for i in imports(script)}
        assert not packages & {"scipy", "h5py", "matplotlib", "numba", "triton", "skimage", "colour"}, script
        inner = {node.value for node in nodes_of(script) if isinstance(node, ast.Attribute)}
        for node in nodes_of(script):
            if isinstance(node, ast.Attribute) and node not in inner:
                text = ast.unparse(node)
                taken = ".".join(text.split("(")[0].split(".")[:3])
                where = f"{script.name}:{node.lineno}: {text} belongs in the library"
                assert not text.startswith(("torch.", "np.", "numpy.")) or within(taken, ONLY_THESE), where


def test_nothing_imports_a_script():
    for path in (*MODULES.values(), *SCRIPTS):
        forbidden = {f"scripts.{script.stem}" for script in SCRIPTS}
        if path not in SCRIPTS:
            forbidden |= {"benchmarks", "training", "scripts"}
        assert not {i for i in imports(path) if within(i, forbidden)}, path


def test_manners():
    """No assert as validation, no global seed, no hidden state; every module says what it is."""
    for path in MODULES.values():
        assert ast.get_docstring(tree_of(path)), f"{path.name} has no docstring"
        assert path.stem not in ("utils", "base", "core", "helpers", "common", "misc")
        for node in nodes_of(path):
            wrong = isinstance(node, ast.Assert | ast.Global)
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "").endswith("seed"):  # to unparse all is slow
                wrong = ast.unparse(node.func) in ("torch.manual_seed", "np.random.seed", "random.seed")
            assert not wrong, f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


@functools.cache
def examples(name: str) -> list[doctest.DocTest]:
    """The examples of one module, run as a reader would who has imported what the README imports."""
    usual = {"torch": torch, "np": np, "cassi": cassi, "CASSI": cassi.CASSI, "os": os, "tempfile": tempfile}
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [test for test in finder.find(importlib.import_module(name), extraglobs=usual) if test.examples]


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_the_examples_of_the_docstrings_run(room):
    missing: set[str] = set()
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    log: list[str] = []
    for name in [name for name in MODULES if room_of(name) == room]:
        try:
            tests = examples(name)
        except ImportError as error:
            if error.name is None or within(error.name, {"cassi"}):
                raise
            missing.add(f"{name} needs {error.name}")
            continue
        for test in tests:
            runner.run(test, out=log.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(log)
    if missing:
        pytest.skip("all but: " + ", ".join(sorted(missing)))


def test_the_core_has_examples():
    for name in ("cassi.optics.single_disperser", "cassi.kernels.shift_sum", "cassi.priors.tv", "cassi.solvers.gap"):
        assert examples(name), f"{name} has no example"


def test_one_place_reconstructs_briefly_one_fits_noise_and_one_judges():
    """Whoever asks whether a camera, a basis or a chain is believed asks them."""
    users = {
        "subspace_tv": {"evidence.fitting", "choice.stages", "choice.by_name"},
        "unrolled": {"choice.stages", "choice.adaptation"},
        "fit_noise": {"evidence.fitting", "choice.automatic", "sequence.neighbors"},
    }
    for name, allowed in users.items():
        found = {
            module.removeprefix("cassi.")
            for module, path in MODULES.items()
            for node in nodes_of(path)
            if isinstance(node, ast.ImportFrom) and any(one.name == name for one in node.names)
        }
        assert found - {"solvers.subspace_tv", "solvers.unrolled"} == allowed, name
