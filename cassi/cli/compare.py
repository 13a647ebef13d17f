"""Compare two cubes: a result with the truth, or two results of one scene; the second is the reference."""

from __future__ import annotations

import argparse

from cassi.cli.places import check_files
from cassi.cli.shell import say
from cassi.files import replacing


def run(args: argparse.Namespace) -> int:
    """Print how far apart they are, and draw it if asked to."""
    from cassi.looking.comparison import compare

    check_files("compare", args, [args.cube, args.reference])
    found = compare(args.cube, args.reference, frame=args.frame)
    say(args, str(found))
    if args.figure is not None:
        with replacing(args.figure, args.overwrite) as temporary:
            found.figure.savefig(temporary)
    return 0
