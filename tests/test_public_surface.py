"""What users rely on: names, parameters, options and choices. Nothing leaves the list; formats: test_docs.py.

`tests/public_surface.txt` is that list, one thing a line. `pytest --update-golden` adds what is new. To take a line
out, or to move a name to another module, edit it by hand.
"""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import cassi
from cassi.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = Path(__file__).with_name("public_surface.txt")
INTERNAL = ("cassi.choice", "cassi.running", "cassi.cli", "cassi.kernels")  # only what the pages of the docs import


def parameters(function: object) -> Iterator[str]:
    """Those by name, and of `**settings: Unpack[...]` the keys."""
    for name, parameter in inspect.signature(function).parameters.items():  # type: ignore[arg-type]
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            yield name
            continue
        annotation = parameter.annotation
        if isinstance(annotation, str):
            annotation = eval(annotation, vars(inspect.getmodule(function)))  # of our own code
        for keys in get_args(annotation):
            yield from keys.__annotations__


def members(value: type) -> set[str]:
    """What a class of ours defines, or one of ours that it inherits from."""
    return {name for one in value.__mro__ if one.__module__.startswith("cassi") for name in vars(one)}


def describe(name: str, value: object) -> Iterator[str]:
    """A name, what can be given to it, and of a class what it offers."""
    yield name
    if inspect.isfunction(value) or inspect.isclass(value):
        yield from (f"{name}({parameter})" for parameter in parameters(value) if parameter != "self")
    if inspect.isclass(value):
        fields = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        yield from (f"{name}.{member}" for member in {*fields, *members(value)} if not member.startswith("_"))


def names() -> Iterator[str]:
    """Those of `cassi`, `cassi.files` and what the pages of the docs import; of the modules on the API pages the bare
    names of what is documented down to its arguments."""
    for module in (cassi, importlib.import_module("cassi.files")):
        for name in dir(module):
            value = getattr(module, name)
            if not name.startswith("_") and not inspect.ismodule(value):
                yield from describe(f"{module.__name__}.{name}", value)
    for page in (*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"):
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"^::: (cassi[\w.]*)$", text, re.MULTILINE):
            if not path.startswith(INTERNAL):
                module = importlib.import_module(path)
                for name, value in vars(module).items():
                    if getattr(value, "__module__", "") == path and "Args:" in (inspect.getdoc(value) or ""):
                        yield f"{path}.{name}"
        for path, imported in re.findall(r"^ *from (cassi[\w.]*) import ([\w, ]+)$", text, re.MULTILINE):
            for name in imported.split(", "):
                yield from describe(f"{path}.{name}", getattr(importlib.import_module(path), name))


def help_of(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main([*words, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


def options(capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    """Every command, option and choice, as `--help` shows them."""
    text = help_of(capsys=capsys)
    commands = re.findall(r"^  ([a-z][\w-]+)  ", text, re.MULTILINE)
    assert {"reconstruct", "simulate", "calibrate"} <= {*commands}
    for command in (*((name,) for name in commands), ("calibrate", "refine")):
        text, called = help_of(*command, capsys=capsys), " ".join(("cassi", *command))
        yield called
        for option, rest in re.findall(r"^  (?:-\w, )?(--[\w-]+)(.*)$", text, re.MULTILINE):
            yield f"{called} {option}"
            choices = re.match(r" \[?\{([^}]+)\}", rest)
            yield from (f"{called} {option} {choice}" for choice in choices[1].split(",")) if choices else ()
        for word in re.findall(r"^  ([A-Z]+|[a-z]+)  ", text.partition("examples:")[0], re.MULTILINE):
            yield f"{called} {word}"


@pytest.mark.filterwarnings("ignore")
def test_nothing_leaves(capsys, update_golden):
    here = {*names(), *options(capsys)}
    golden = set(GOLDEN.read_text(encoding="utf-8").splitlines()) if GOLDEN.exists() else set()
    if update_golden:
        GOLDEN.write_text("".join(f"{line}\n" for line in sorted(golden | here)), encoding="utf-8")
    gone = sorted(golden - here)
    assert not gone, f"users lose {gone}; if that is meant, take these lines out of {GOLDEN.name}"
    assert golden or update_golden
