"""Common to all subcommands: errors on one line with the option that cures them, exit codes, output."""

import argparse
import shlex
import sys
from collections.abc import Callable
from typing import TextIO

from cassi.cli.options import printable
from cassi.errors import InputError, Note, OutputError, one_line

INTERRUPTED = "interrupted; no incomplete file was left"

# What helps with an error of a kind, besides options.
HELP = {
    "result": "`cassi view` shows it, `cassi compare` compares it",
    "measurement": "`cassi reconstruct` makes a result of it",
}


def run_and_report(args: argparse.Namespace, run: Callable[[], int]) -> int:
    """Run a subcommand; what goes wrong is one line on stderr and an exit code."""
    message: object
    try:
        return run()
    except InputError as error:
        code, message = 2, error
    except KeyboardInterrupt:
        code, message = 130, INTERRUPTED
    except FloatingPointError as error:
        code, message = 1, error
    except Exception as error:
        if args.debug:
            raise
        code, message = 1, f"internal error, {type(error).__name__}: {one_line(error)} (--debug shows where)"
        if isinstance(error, MemoryError) or "memory" in str(error).lower():  # torch raises a RuntimeError
            cure = "use --device cpu or a smaller measurement" if hasattr(args, "device") else "ask for less"
            sizes = () if hasattr(args, "device") else ("size", "num_bands", "bands", "step")
            message = Note(f"out of memory: {one_line(error)}; {cure}", cures=sizes)
    warn(args, message, kind="error")
    return code


def say(args: argparse.Namespace, text: str) -> None:
    """Print, unless --quiet; what was done is done, whether or not that can be said."""
    if not args.quiet:
        _write(printable(text), sys.stdout)


def check_said() -> None:
    """Raise OutputError if what was printed is lost; for words that are all that was asked for."""
    sys.stdout.flush()
    if reason := getattr(sys.stdout, "lost", ""):
        raise OutputError(f"standard output: {reason}; what was to be printed there is lost")


def warn(args: argparse.Namespace, what: object, kind: str = "warning", of: str = "") -> None:
    """Print a message of the library with its cures: options, where this subcommand has them, or another command."""
    note = Note(what)
    options = ", ".join(f"--{name.replace('_', '-')}" for name in note.cures if hasattr(args, name))
    cures = [f" ({cure})" for cure in (options, HELP.get(note.kind)) if cure]
    _write(f"{args.prog}: {kind}: {printable(''.join([of, note, *cures]))}", sys.stderr)


def command_line(args: argparse.Namespace) -> str:
    """The command as it was typed, for the provenance of results."""
    program = f"python scripts/{args.prog}".split() if ".py" in args.prog else args.prog.split()
    return shlex.join([*program, *args.argv])


def _write(text: str, file: TextIO) -> None:
    """Write a line; on a terminal, so that a progress bar stays whole."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        tqdm.write(text, file=file)
        file.flush()
    else:
        print(text, file=file, flush=True)
