"""What every subcommand shares: its parser, errors on one line with the option that cures them, exit codes, steps."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn, TextIO

from cassi.errors import InputError, one_line
from cassi.version import PROGRAM

EXIT_CODES = "exit codes: 0 done, 1 the computation failed, 2 the input or the output cannot be used, 130 interrupted"

INTERRUPTED = "interrupted; no half file was left"

# What a message of the library speaks of, and the options that say it on the command line.
CURES = {
    "allow overwriting": ("overwrite",),
    "no measurement found": ("key", "mask_key"),
    "no measurement among": ("key", "mask_key"),
    "no mask found": ("mask", "mask_key"),
    "needs the gain": ("gain",),
    "the gain must": ("gain",),
    "check the black level": ("black_level",),
    "give a map of bad pixels": ("bad_pixels",),
    "from which on a pixel is bad": ("saturation",),
    "displaced mask": ("align",),
    "displaced by part of a pixel": ("align",),
    "it fits when dispersion reversed": ("step",),
}

# And of commands.
COMMANDS = {"this is a result": "`cassi view` shows it, `cassi compare` compares it"}


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line; {reconstruct} in the examples is that command as it is typed."""

    def __init__(self, *, prog: str, description: str | None, examples: str = "") -> None:
        pattern = "python scripts/{}.py" if ".py" in prog else "cassi {}"
        examples = re.sub(r"\{([\w-]+)\}", lambda found: pattern.format(found[1]), examples)
        super().__init__(
            prog=prog,
            description=description,
            epilog=f"{examples}\n{EXIT_CODES}\n",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {printable(message)} (--help shows all options)\n")

    def add_calibration_file(self, name: str) -> None:
        """Where a calibration is written, and its figures."""
        words = 'where the figures go, or "none" (default: NAME_figures beside the output)'
        self.add_argument("--output", default=name, metavar="FILE", help=f"what to write ({name})")
        self.add_argument("--figures", metavar="DIR", help=words)
        self.add_argument("--overwrite", action="store_true", help="replace an existing file")

    def add_manners(self) -> None:
        """The options that every subcommand has."""
        self.add_argument("--quiet", action="store_true", help="print nothing but errors and warnings")
        self.add_argument("--debug", action="store_true", help="show a traceback where something fails unexpectedly")
        self.add_argument("--version", action="version", version=PROGRAM)


def guarded(args: argparse.Namespace, prog: str, run: Callable[[], int]) -> int:
    """Run a subcommand; what goes wrong is one line on stderr and an exit code."""
    try:
        return run()
    except InputError as error:
        return _fail(prog, 2, with_options(str(error), args))
    except KeyboardInterrupt:
        return _fail(prog, 130, INTERRUPTED)
    except FloatingPointError as error:
        return _fail(prog, 1, str(error))
    except BrokenPipeError:  # the reader of our output, such as head, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if args.debug:
            raise
        if isinstance(error, MemoryError) or "memory" in str(error).lower():
            return _fail(prog, 1, f"out of memory: {one_line(error)}; use --device cpu or a smaller measurement")
        return _fail(prog, 1, f"internal error, {type(error).__name__}: {one_line(error)} (--debug shows where)")


def with_options(message: str, args: argparse.Namespace) -> str:
    """A message of the library with what cures it: options, where this subcommand has them, or another command."""
    for words, names in CURES.items():
        options = [f"--{name.replace('_', '-')}" for name in names if hasattr(args, name)]
        if words in message and options and not any(option in message for option in options):
            message += f" ({', '.join(options)})"
    message += "".join(f" ({cure})" for words, cure in COMMANDS.items() if words in message)
    return message


def printable(text: str) -> str:
    """Names from files may hold what would steer a terminal."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def say(args: argparse.Namespace, text: str) -> None:
    """Print, unless --quiet."""
    if not args.quiet:
        _write(printable(text), sys.stdout)


def command_line(args: argparse.Namespace) -> str:
    """The command as it was typed, for the provenance of results."""
    program = f"python scripts/{args.prog}".split() if ".py" in args.prog else args.prog.split()
    return shlex.join([*program, *args.argv])


def warn(prog: str, message: str, kind: str = "warning") -> None:
    _write(f"{prog}: {kind}: {printable(message)}", sys.stderr)


def _write(text: str, file: TextIO) -> None:
    """On a terminal so that a bar stays whole; elsewhere the bar is not drawn again at each line."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        tqdm.write(text, file=file)
        file.flush()
    else:
        print(text, file=file, flush=True)


def _fail(prog: str, code: int, message: str) -> int:
    warn(prog, message, kind="error")
    return code


class Steps:
    """Says on stdout which step of how many begins, and shows on stderr how far all of them are.

    Args:
        args: --quiet shows nothing.
        expected: the steps in order, by name, and the share of the time that each is expected to take.
    """

    def __init__(self, args: argparse.Namespace, expected: Mapping[str, float]) -> None:
        from cassi.running.progress import StepBar

        self._args, self._names = args, list(expected)
        self._bar = StepBar(expected, shown=not args.quiet)
        self._begun: set[str] = set()

    def expect(self, expected: Mapping[str, float]) -> None:
        """The steps, where they are known better now."""
        self._names = list(expected)
        self._bar.expect(expected)

    def __call__(self, name: str, share: float = 0.0) -> None:
        """So much of a step is done."""
        if name in self._names and name not in self._begun:
            self.begin(name)
        self._bar(name, share)

    def begin(self, name: str) -> None:
        """A step begins."""
        self._begun.add(name)
        say(self._args, f"step {self._names.index(name) + 1} of {len(self._names)}: {name}")
        self._bar(name)

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__()
