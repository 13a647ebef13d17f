"""The program `cassi` and its subcommands; the scripts of the repository are doors to the same."""

import gc
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from cassi.cli.examples import HELP
from cassi.cli.options import Parser, parser_of
from cassi.cli.shell import INTERRUPTED, run_and_report
from cassi.errors import writable_streams
from cassi.kernels.machine import num_cores
from cassi.signals import ENDING, signals_held

COMMANDS = {name: what for name, (what, _) in HELP.items() if name != "refine"}


@writable_streams()
def main(argv: list[str] | None = None) -> int:
    """The console entry `cassi`; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
    parser = Parser(
        prog="cassi",
        description="Spectral cubes from coded-aperture snapshots (CASSI).",
        examples=f"commands:\n{lines}\n\n`cassi COMMAND --help` explains each, with examples; "
        "begin with `cassi reconstruct FILE`",
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    if not argv:
        parser.print_help()
        return 0
    # what stands before the command is for `cassi`, all after it for the command
    first = next((k for k, word in enumerate(argv) if not word.startswith("-")), len(argv))
    name = parser.parse_args(argv[: first + 1]).command
    return run(name, argv[first + 1 :], f"cassi {name}")


def script(name: str) -> Callable[..., int]:
    """The same as `cassi NAME`, under the name of a script of the repository."""

    def entry(argv: list[str] | None = None) -> int:
        return run(name, sys.argv[1:] if argv is None else argv, f"{name}.py")

    return entry


@writable_streams()
def run(name: str, argv: list[str], prog: str) -> int:
    """Parse and run one subcommand; returns its exit code."""
    if name == "calibrate" and argv[:1] == ["refine"]:
        name, argv, prog = "refine", argv[1:], f"{prog} refine"
    typed = [re.sub("^(--[a-z-]+=)?(~.*)", lambda m: (m[1] or "") + os.path.expanduser(m[2]), word) for word in argv]
    args = parser_of(name, prog, *HELP[name]).parse_intermixed_args(typed)  # --output=~/cubes: no shell has seen to it
    args.prog, args.argv = prog, argv
    if name == "reconstruct" and not args.dry_run:
        import_module("cassi.kernels.ahead").compile_beside()  # while torch is loaded and the files are read
    with signals_held():  # what is raised while modules in C load may be swallowed, or crash the process
        command = import_module(f"cassi.cli.{name.replace('-', '_')}")  # and torch with it: help is there without
    if (torch := sys.modules.get("torch")) is not None and torch.get_num_threads() > (cores := num_cores()):
        torch.set_num_threads(cores)  # where a job has a share of processor time, torch sees the whole machine
    return run_and_report(args, lambda: int(command.run(args)))


def program(entry: Callable[..., int] = main) -> NoReturn:
    """As a process of its own: its end is the exit code; SIGTERM and SIGHUP leave by the same door as an interrupt."""

    def terminated(signum: int, frame: object) -> NoReturn:
        raise SystemExit(128 + signum)

    heard = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup wants it
    for number in heard:
        signal.signal(number, terminated)
    try:
        code = entry()
    except KeyboardInterrupt:  # before the command has begun, while its modules load
        sys.stderr.write(f"{Path(sys.argv[0]).name}: error: {INTERRUPTED}\n")
        code = 130
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)  # a second one ends the end of Python, without a traceback
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # nobody reads it, or it is full: nor does Python try again
            with suppress(OSError, ValueError, AttributeError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if "triton" not in sys.modules:  # whose bindings take what is frozen for leaks, and list them
        gc.freeze()  # else the end of the process searches all that torch has loaded, which takes most of a second
    sys.exit(code)
