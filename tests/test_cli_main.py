"""The program `cassi`: subcommands, help, version, errors on one line, and how little it loads."""

import argparse
import os
import re
import signal
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from messages import check_words, last_line

from cassi.cli import main as cli_main, shell
from cassi.cli.main import COMMANDS, main, script
from cassi.errors import InputError
from cassi.version import __version__

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, "-m", "cassi", *arguments], {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)


def test_as_a_module_it_names_its_commands():
    shown = run("--help")
    assert shown.returncode == 0
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", shown.stdout, re.MULTILINE)
    assert run("--version").stdout == f"cassi {__version__}\n"


def test_help_and_version_load_no_torch_and_idle_threads_sleep():
    """Unless the user says otherwise; it is settled before torch is loaded, which reads it once."""
    code = (
        "import os, sys; from cassi.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: print('torch' in sys.modules, 'numpy' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))"
    )
    plain = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}

    def last_line(*words: str, **more: str) -> str:
        command = [sys.executable, "-c", code, *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, env=plain | more)
        return done.stdout.splitlines()[-1]

    for words in (["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)):
        assert last_line(*words) == "False False 1000", words
    assert last_line("view", "--help", OMP_WAIT_POLICY="ACTIVE") == "False False None"
    assert last_line("view", "--help", GOMP_SPINCOUNT="7") == "False False 7"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches(name, capsys):
    for entry, typed in ((lambda argv: main([name, *argv]), f"cassi {name}"), (script(name), f"scripts/{name}.py")):
        with pytest.raises(SystemExit) as caught:
            entry(["--help"])
        assert caught.value.code == 0
        shown = capsys.readouterr().out
        assert "examples:" in shown and "exit codes:" in shown
        assert f"      {typed.replace('scr', 'python scr')} " in shown
        assert not re.search(r"\{\w+\} ", shown.split("examples:")[1])
        with pytest.raises(SystemExit):
            entry(["--version"])
        assert capsys.readouterr().out == f"cassi {__version__}\n"


def test_warm_up_says_in_one_sentence_what_is_ready(monkeypatch, capsys):
    monkeypatch.setattr("cassi.running.warm_up.SIDE", 24)
    assert main(["warm-up"]) == 0
    captured = capsys.readouterr()
    assert re.fullmatch(r"the kernels are compiled, -> \S+, [\d.]+ s\n", captured.out)
    assert "step 1 of 2: trials" in captured.err
    monkeypatch.setattr("cassi.running.warm_up.cache_folder", lambda: None)
    assert "set NUMBA_CACHE_DIR to a writable folder" in last_line(capsys, main(["warm-up"]))


def test_alone_it_teaches(capsys):
    assert main([]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("usage: cassi") and captured.err == ""
    assert all(name in captured.out for name in COMMANDS)


@pytest.mark.parametrize("argv", [["magic"], ["--no-such"]])
def test_no_such_command_is_one_line(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("cassi: error: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (InputError("no mask found", cures=("mask", "mask_key")), 2),
        (KeyboardInterrupt(), 130),
        (FloatingPointError("diverged"), 1), (MemoryError("1 GiB"), 1),
        (RuntimeError("two\nlines"), 1),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_one_line_and_a_code(raised, code, capsys):
    def fail() -> int:
        raise raised

    args = argparse.Namespace(debug=False, mask=None, mask_key=None, size=None, prog="cassi x")
    assert shell.run_and_report(args, fail) == code
    err = capsys.readouterr().err
    assert err.startswith("cassi x: error: ") and err.count("\n") == 1
    check_words(err)


def test_interrupted_before_the_command_has_begun_it_ends_like_later(monkeypatch, capsys):
    def loading(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_main, "import_module", loading)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["/bin/cassi"])
    with pytest.raises(SystemExit) as left:
        cli_main.program(lambda: main(["reconstruct"]))
    assert left.value.code == 130
    shell.warn(argparse.Namespace(prog="cassi"), "a\x1b[31mred\x07")
    assert capsys.readouterr().err.endswith("warning: a\\x1b[31mred\\x07\n"), "messages steer no terminal"


def test_signals_wait_for_modules_that_are_being_loaded(monkeypatch):
    """What is raised while modules in C load may be swallowed, or crash the process."""
    load, loaded = cli_main.import_module, []

    def interrupted(name):
        signal.raise_signal(signal.SIGINT)
        loaded.append(load(name))

    monkeypatch.setattr(cli_main, "import_module", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main(["compare", "cube.h5"])
    assert [module.__name__ for module in loaded] == ["cassi.cli.compare"]


@pytest.mark.skipif(find_spec("triton") is None, reason="there is no Triton")
def test_a_process_that_has_loaded_triton_ends_in_silence():
    code = "import triton._C.libtriton; from cassi.cli.main import program; program(lambda: 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_program_is_declared_and_cited():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"cassi": "cassi.cli.main:program"}
    assert {"pillow", "psutil"} <= {re.split(r"[><=]", one)[0] for one in project["dependencies"]}
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.parametrize("words", [["--output=~/a.h5"], ["--output", "~/a.h5"]])
def test_home_is_found_where_no_shell_has_seen_to_it(tmp_path, monkeypatch, words):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "--size", "16x16", "--num-bands", "4", "--quiet", *words]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]
