"""Compare two cubes: a result with the truth, or two results of one scene; the second is the reference."""

from __future__ import annotations

import argparse
from pathlib import Path

from cassi.cli.shell import say
from cassi.errors import OutputError

EXAMPLES = """\
examples:
  how close is the result to the truth that its file holds, or another file
      {compare} m_cube.h5
      {compare} m_cube.h5 truth.h5
  what another solver, mask or setting changes, as a figure too
      {compare} tv_cube.h5 auto_cube.h5 --figure difference.png
"""


def run(args: argparse.Namespace) -> int:
    """Print how far apart they are, and draw it if asked to."""
    from cassi.files import replacing
    from cassi.looking.comparison import compare

    if args.figure is not None and Path(args.figure).suffix.lower() not in (".png", ".pdf", ".svg"):
        raise OutputError(f"{args.figure}: a figure is .png, .pdf or .svg")
    found = compare(args.cube, args.reference, frame=args.frame)
    say(args, str(found))
    if args.figure is not None:
        with replacing(args.figure, args.overwrite) as temporary:
            found.figure.savefig(temporary)
    return 0
