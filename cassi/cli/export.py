"""Write a result, or those in a folder, to another format; turned, or at other wavelengths, if asked to."""

import argparse
from pathlib import Path

from tqdm import tqdm

from cassi.cli.options import options_of
from cassi.cli.places import check_folder, check_written, inputs
from cassi.cli.shell import say
from cassi.cli.spectra import results_in
from cassi.errors import InputError
from cassi.files.cubes import export_cube
from cassi.files.opening import WRITERS


def run(args: argparse.Namespace) -> int:
    """Check every place, then write."""
    files, target = results_in([args.result]), Path(args.output)
    pairs = [(files[0], target)]
    if Path(args.result).is_dir() or target.suffix.lower() not in WRITERS:
        suffix = args.format or ""
        if f".{suffix}" not in WRITERS:
            suffixes = ", ".join(sorted(WRITERS))
            raise InputError(f"{target}: expected a file ending in {suffixes}, or a folder and --format h5, tif ...")
        check_folder(target).mkdir(parents=True, exist_ok=True)
        pairs = [(file, target / f"{file.stem}.{suffix}") for file in files]
    elif args.format and WRITERS.get(f".{args.format.lower()}") is not WRITERS[target.suffix.lower()]:
        raise InputError(f"{target} is not of the format {args.format}; leave --format out, it is for folders")
    (option,) = (option for option in options_of("export") if option.name == "output")
    taken = inputs([], args, files)
    for _, place in pairs:
        check_written({option: place}, taken, args.overwrite)
    how = {"turn_result": args.turn_result, "output_bands": args.output_bands, "overwrite": args.overwrite}
    bar = tqdm(pairs, desc="export", unit="file", leave=False, disable=args.quiet or None, delay=1)
    said = dict.fromkeys(text for file, place in bar for text in export_cube(file, place, **how))
    say(args, "\n".join([*said, f"-> {pairs[0][1] if len(pairs) == 1 else f'{len(pairs)} files in {target}'}"]))
    return 0
