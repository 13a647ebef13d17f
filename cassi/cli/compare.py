"""Compare two cubes, or the spectrum of a place in one with a spectrometer's; the second is the reference."""

import argparse
from pathlib import Path

from cassi.cli.options import check
from cassi.cli.places import check_files
from cassi.cli.shell import check_said, say, warn
from cassi.cli.spectra import regions_of, write_spectra
from cassi.errors import InputError, counted
from cassi.files import replacing
from cassi.files.wavelength_files import TABLES
from cassi.optics.measurement import REFLECTANCE

NOT_REFLECTANCE = (
    "{}: not divided by a white reference, so that its spectra contain lamp and detector, and the angle to a table of "
    "reflectances measures these, too; reconstruct with --white"
)


def run(args: argparse.Namespace) -> int:
    """Print how far apart they are, and draw it if asked to."""
    check("compare", args)
    check_files("compare", args, [args.cube, args.reference])
    if args.at or args.regions:
        return compare_places(args)
    if Path(args.reference).suffix.lower() in TABLES:
        raise InputError(
            f"{args.reference} is the table of a spectrometer; say where: --at ROW,COLUMN or --regions FILE"
        )
    from cassi.looking.comparison import compare

    comparison = compare(args.cube, args.reference, frame=args.frame, scaled=args.fit_scale)
    if args.figure is not None:
        with replacing(args.figure, args.overwrite) as temporary:
            comparison.figure.savefig(temporary)
    say(args, str(comparison))
    check_said()
    return 0


def compare_places(args: argparse.Namespace) -> int:
    """Compare the spectra of places in a result with a table, or with the same places of another cube."""
    from cassi.files import read_cube
    from cassi.files.cubes import check_turned_alike
    from cassi.files.spectrum_files import Spectrum, read_spectrum
    from cassi.looking.comparison import compare_spectra, paired_spectrum
    from cassi.looking.regions import spectrum_of
    from cassi.looking.report_data import read_report

    data = read_report(args.cube, frame=args.frame)
    regions = regions_of(args)
    spectra = [spectrum_of(data, region) for region in regions]
    if Path(args.reference).suffix.lower() not in TABLES:
        if args.reference != "truth":
            check_turned_alike(args.cube, args.reference)
        other, nm = (data.truth, data.wavelengths) if args.reference == "truth" else read_cube(args.reference)
        if other is None:
            raise InputError(f"{args.cube} holds no truth; give the table of a spectrometer, or another cube")
        if tuple(other.shape[-2:]) != tuple(data.cube.shape[-2:]) or len(other.shape) != 3:
            raise InputError(f"{args.reference} must have the pixels of {args.cube}, {data.cube.shape[-2:]}")
        means = [spectrum_of(data, region, of=other).mean for region in regions]
        references = [paired_spectrum(spectrum, mean, nm) for spectrum, mean in zip(spectra, means, strict=True)]
        if any(isinstance(reference, Spectrum) for reference in references):
            warn(args, f"{args.reference} has different bands: its spectra are averaged over the bands of {args.cube}")
        pairs = [(one, other) for one, other in zip(spectra, references, strict=True) if other is not None]
        compared = [compare_spectra(*pair, scaled=False) for pair in pairs]
        if len(compared) < len(spectra):
            what = f"{args.reference} has {counted(len(means[0]), 'band')}, {args.cube} {len(spectra[0].mean)}"
            raise InputError(f"{what}, and one of them has no wavelengths to pair them by")
    else:
        table = read_spectrum(args.reference)
        if data.unit != REFLECTANCE:
            warn(args, NOT_REFLECTANCE.format(args.cube))
        compared = [compare_spectra(spectrum, table, scaled=not args.unscaled) for spectrum in spectra]
    write_spectra(args, spectra, compared)
    for comparison in compared:  # after the files are written: what reads this may close early
        say(args, str(comparison))
    check_said()
    return 0
