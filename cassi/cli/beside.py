"""The options of a photograph beside the snapshot, and how it is read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cassi.errors import InputError

if TYPE_CHECKING:
    from cassi.optics.measurement import Measurement
    from cassi.optics.side_picture import SidePicture


def add_side(method: argparse._ArgumentGroup) -> None:
    method.add_argument(
        "--side",
        metavar="FILE",
        help="a grey or color photograph of the same scene from beside the camera (PNG, JPEG, TIFF, .npy), of any "
        "size, slightly moved, turned, scaled; it is used where it fits and held-out pixels do not speak against it",
    )
    method.add_argument(
        "--side-response",
        metavar="rgb|pan|FILE",
        help="how its channels weigh the bands: a preset, adapted to the scene (default: by its channels), or a table "
        "(.csv) of a wavelength and one value a channel in each line",
    )


def check_side_options(args: argparse.Namespace, *, many: bool) -> None:
    """Raise InputError for options that do not go with --side."""
    if args.side is None:
        if args.side_response is not None:
            raise InputError("--side-response belongs to a photograph; give --side too")
        return
    others = {
        "several snapshots": many,
        "--tile": args.tile is not None,
        "--budget": args.budget is not None,
        "--uncertainty": args.uncertainty,
        "--iterations": args.iterations is not None,
        f"--solver {args.solver}": args.solver != "auto",
    }
    for name in (name for name, given in others.items() if given):
        raise InputError(f"--side does not go with {name}; leave one of them out")


def side_of(args: argparse.Namespace, m: Measurement) -> SidePicture | None:
    """The photograph, None where there is none."""
    if args.side is None:
        return None
    from cassi.files.side_pictures import read_side_picture

    return read_side_picture(args.side, args.side_response, m.wavelengths)


def side_in_words(args: argparse.Namespace, m: Measurement) -> list[str]:
    """What would be done with the photograph."""
    side = side_of(args, m)
    if side is None:
        return []
    height, width = side.picture.shape[:2]
    how = "a table" if isinstance(side.response, type(side.picture)) else side.response or "by its channels"
    return [
        f"side picture {args.side}: {height} x {width} pixels, {side.channels} channels, {side.picture.dtype}, "
        f"response {how}; it would be registered to the snapshot, and used unless held-out pixels speak against it"
    ]
