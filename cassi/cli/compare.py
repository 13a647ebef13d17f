"""Compare two cubes: a result with the truth, or two results of one scene; the second is the reference."""

from __future__ import annotations

import argparse

from cassi.cli.shell import Parser

EXAMPLES = """\
examples:
  how close is the result to the truth
      {compare} m_cube.h5 truth.h5
  what does another solver, another mask or another setting change
      {compare} tv_cube.h5 auto_cube.h5 --figures differences/
"""


def parser(prog: str) -> Parser:
    p = Parser(prog=prog, description=__doc__, examples=EXAMPLES)
    p.add_argument("cube", metavar="A", help="a result")
    p.add_argument("reference", metavar="B", help="the truth, or another result of the same size")
    p.add_argument("--figures", metavar="DIR", help="also draw the differences into this folder")
    p.add_manners()
    return p


def run(args: argparse.Namespace) -> int:
    """Print the differences, and draw them if asked to."""
    from cassi.looking.compare import compare

    found = compare(args.cube, args.reference)
    if not args.quiet:
        print(found)
    if args.figures is not None:
        from cassi.looking.figures import save_figures

        save_figures(found.figures(), args.figures)
    return 0
