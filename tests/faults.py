"""Deliberate faults: each is put into a copy of the package, and the tests named beside it must go red.

    python tests/faults.py                 all of them, some minutes
    python tests/faults.py tv gap          those whose name contains "tv" or "gap"
    python tests/faults.py --stale         those whose place has changed; a second

`faults.txt` lists them below the file of tests that must notice: a name, which tests of that file ("+ compiled": with
the compiled kernels), and below it `file::function: old => new`. Old and new are parts of the function as `ast.unparse`
writes it, so that layout and comments do not matter; old is there once. Prints a table; the exit code is 0 if the tests
were green without faults and every fault was caught.
"""

import ast
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

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


def faulty(fault: Fault) -> str:
    """The text of the file with the fault in it.

    Raises:
        StaleError: there is no such function, or what is to be replaced is not in it once.
    """
    path = ROOT / "cassi" / fault.file
    tree = node = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])
    for name in fault.place.partition("::")[2].split("."):
        inside = [one for one in ast.walk(node) if getattr(one, "name", "") == name and hasattr(one, "body")]
        node = inside[0] if name and inside else node if not name else ast.Module([], [])
    text = ast.unparse(node)
    pattern = rf"(?<![\w.]){re.escape(fault.old)}(?!\w)"
    if (count := len(re.findall(pattern, text))) != 1:
        raise StaleError(f"{fault.place} has `{fault.old}` {count} times")
    changed = ast.parse(re.sub(pattern, lambda _: fault.new, text))
    vars(node).update(vars(changed if node is tree else changed.body[0]))
    return ast.unparse(ast.fix_missing_locations(tree))


def stale(fault: Fault) -> str:
    """Why a fault cannot be put in, or no test could notice it; "" where all is well."""
    try:
        faulty(fault)
    except (StaleError, SyntaxError) as error:
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
