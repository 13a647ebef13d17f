"""Deliberate faults: each is put into a copy of the package, and the tests named beside it must go red.

    python tests/faults.py                 all of them, some minutes
    python tests/faults.py tv gap          those whose name contains "tv" or "gap"
    python tests/faults.py --stale         those whose place has changed; a second

`faults.txt` lists them below the file of tests that must notice: a name, which tests of that file ("+ compiled": with
the compiled kernels), and below it `file::function: old => new`. Old is an expression, statements in a row, or the head
of a block, `if x:`; it is there once, compared as syntax: layout, comments and quotes do not matter. Prints a table;
the exit code is 0 if the tests were green without faults and every fault was caught.
"""

import ast
import functools
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ENTRY = re.compile(
    r"    (?P<name>.+?)(?: \[(?P<select>.*?)(?P<compiled> ?\+ compiled)?\])?\n {8}(?P<place>\S+): (?P<change>.+)"
)


class Fault(NamedTuple):
    """A substitution at a place of the package, the tests that must notice it, and a -k expression to keep it short."""

    name: str
    place: str
    old: str
    new: str
    tests: str
    select: str = ""
    compiled: bool = False

    @property
    def file(self) -> str:
        return self.place.partition("::")[0]

    @property
    def is_head(self) -> bool:
        return self.old.endswith(":")


def read_table() -> Iterator[Fault]:
    for part in re.split(r"^(?=\S)", Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"), flags=re.M)[1:]:
        tests, _, entries = part.partition("\n")
        for found in ENTRY.finditer(entries):
            name, select, compiled, place, change = found.groups()
            old, _, new = change.partition(" => ")
            yield Fault(name, place, old, new, tests, select or "", compiled is not None)


FAULTS = list(read_table())


class StaleError(Exception):
    """The place of a fault is not there, or not once."""


Syntax = ast.expr | list[ast.stmt]
Spot = tuple[Any, str, slice | int | None]  # node, field, and where in it


def parsed(text: str) -> Syntax:
    """An expression, or statements; the head of a block has an empty body."""
    if text.endswith(":"):
        (head,) = ast.parse(f"{text} pass").body
        return [_head(head)]
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return ast.parse(text).body


def _head(node: Any) -> Any:
    return type(node)(**{**dict(ast.iter_fields(node)), "body": [], "orelse": []})


def _same(a: ast.AST, b: ast.AST) -> bool:
    return type(a) is type(b) and ast.dump(a) == ast.dump(b)


def spots(scope: ast.AST, old: Syntax, head: bool) -> Iterator[Spot]:
    """Where these expressions or statements stand."""
    for node in ast.walk(scope):
        for field, value in ast.iter_fields(node):
            items = value if isinstance(value, list) else [value]
            if isinstance(old, ast.expr):
                for k, item in enumerate(items):
                    if isinstance(item, ast.expr) and _same(item, old):
                        yield node, field, k if isinstance(value, list) else None
            elif isinstance(value, list):
                for k in range(len(items) - len(old) + 1):
                    row = items[k : k + len(old)]
                    pairs = ((_head(a) if head and type(a) is type(b) else a, b) for a, b in zip(row, old, strict=True))
                    if all(_same(a, b) for a, b in pairs):
                        yield node, field, slice(k, k + len(old))


def scopes(tree: ast.Module) -> dict[str, ast.AST]:
    """Functions and classes by their full name; "" is the module."""
    found: dict[str, ast.AST] = {"": tree}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if named:
                found[f"{prefix}{child.name}"] = child
            visit(child, f"{prefix}{child.name}." if named else prefix)

    visit(tree, "")
    return found


def tree_of(file: str) -> ast.Module:
    path = ROOT / "cassi" / file
    return ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])


@functools.cache
def read_once(file: str) -> dict[str, ast.AST]:
    """The functions of a file, for what only looks."""
    return scopes(tree_of(file))


def spot_in(functions: dict[str, ast.AST], fault: Fault) -> Spot:
    """Where a fault goes.

    Raises:
        StaleError: no such place, or what is to be replaced is not there once.
    """
    function, (old, _) = fault.place.partition("::")[2], both(fault)
    scope = functions.get(function)
    found = [] if scope is None else list(spots(scope, old, fault.is_head))
    if len(found) != 1:
        raise StaleError(f"{fault.place} has `{fault.old}` {len(found)} times")
    return found[0]


def both(fault: Fault) -> tuple[Syntax, Syntax]:
    """Old and new, two expressions or two rows of statements."""
    old, new = parsed(fault.old), parsed(fault.new)
    if isinstance(old, ast.expr) and isinstance(new, ast.expr):
        return old, new
    rows = [[ast.Expr(one)] if isinstance(one, ast.expr) else one for one in (old, new)]
    return rows[0], rows[1]


def faulty(fault: Fault) -> str:
    """The text of the file with the fault in it.

    Raises:
        StaleError: see `spot_in`.
    """
    tree = tree_of(fault.file)
    node, field, where = spot_in(scopes(tree), fault)
    _, new = both(fault)
    if where is None:
        setattr(node, field, new)
    else:
        kept = getattr(node, field)[where]
        if fault.is_head and isinstance(new, list):
            new[0].body, new[0].orelse = kept[0].body, kept[0].orelse  # type: ignore[attr-defined]
        getattr(node, field)[where] = new
    return ast.unparse(ast.fix_missing_locations(tree))


def stale(fault: Fault) -> str:
    """Why a fault cannot be put in, or no test could notice it; "" where all is well."""
    try:
        spot_in(read_once(fault.file), fault)
    except StaleError as error:
        return f"{fault.name}: {error}"
    path = ROOT / "tests" / fault.tests
    tests = path.read_text(encoding="utf-8") if path.exists() else ""
    words = [word for word in re.findall(r"[a-z_]{4,}", fault.select) if word not in tests]
    return f"{fault.name}: {fault.tests} has no {', '.join(words) or 'tests'}" if words or not tests else ""


def copy_package(folder: Path) -> None:
    for part in ("cassi", "tests", "scripts"):
        shutil.copytree(ROOT / part, folder / part)  # with compiled code: it is that of files as old as these
    shutil.copy(ROOT / "pyproject.toml", folder)


def pytest_in(folder: Path, arguments: list[str], compiled: bool) -> None:
    """pytest in a copy, its words in a file there; in a process that was forked with the slow imports done."""
    os.chdir(folder)
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder)}
    os.environ["CASSI_COMPILED"] = str(int(compiled))
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    words = os.open(folder / "words.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(words, stream)
    import pytest

    sys.exit(int(pytest.main(arguments)))


def run(folder: Path, tests: str, select: str, compiled: bool) -> tuple[int, str]:
    """pytest in a copy, stopping at the first red test; its exit code and that test."""
    arguments = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", f"tests/{tests}", *(["-k", select] if select else [])]
    forks = get_context("forkserver")  # each pytest is a fork of a process that has imported what takes seconds
    forks.set_forkserver_preload(["torch", "scipy.ndimage", "h5py", "pytest"])
    process = forks.Process(target=pytest_in, args=(folder, arguments, compiled))
    process.start()
    process.join()
    told = (folder / "words.txt").read_text(encoding="utf-8", errors="replace")
    red = re.search(r"^(?:FAILED|ERROR) tests/[^:]+::(.+?)(?: - .*)?$", told, re.MULTILINE)
    return process.exitcode or 0, red[1] if red else ""


def check(fault: Fault) -> tuple[str, str]:
    """What became of a fault, "caught" or why not, and the test that caught it."""
    try:
        text = faulty(fault)
    except StaleError as error:
        return f"stale: {error}", ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_package(folder)
        (folder / "cassi" / fault.file).write_text(text, encoding="utf-8")
        code, red = run(folder, fault.tests, fault.select, fault.compiled)
    if code == 1:
        return "caught", red
    return "NOT CAUGHT" if code == 0 else f"pytest ended with {code}, not with a red test", red


def check_green(faults: list[Fault]) -> list[str]:
    """The tests named by the faults that are red without any fault."""
    red = []
    with tempfile.TemporaryDirectory() as name:
        copy_package(Path(name))
        for tests, compiled in sorted({(f.tests, f.compiled) for f in faults}):
            picked = [f for f in faults if (f.tests, f.compiled) == (tests, compiled)]
            code, test = run(Path(name), tests, " or ".join(f"({f.select or 'test'})" for f in picked), compiled)
            if code != 0:
                red.append(f"{tests}::{test}")
    return red


def main(words: list[str]) -> int:
    if words == ["--stale"]:
        found = [line for line in map(stale, FAULTS) if line]
        print(*found or ["none is stale"], sep="\n")
        return int(bool(found))
    faults = [f for f in FAULTS if not words or any(word in f.name for word in words)]
    if red := check_green(faults):
        print("red without any fault:", *red)
        return 1
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        outcomes = list(pool.map(check, faults))
    print("| fault | file | outcome | caught by |\n|---|---|---|---|")
    for fault, (outcome, test) in zip(faults, outcomes, strict=True):
        print(f"| {fault.name} | {fault.place} | {outcome} | {test} |")
    caught = sum(outcome == "caught" for outcome, _ in outcomes)
    print(f"\n{caught} of {len(faults)} caught")
    return 0 if caught == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
