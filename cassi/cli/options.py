"""The options of every command, and the parser made of them; the options of a reconstruction are its `Settings`."""

import argparse
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, NoReturn

from cassi.settings import (
    CAMERA,
    MANY,
    OPTIONS,
    QUALITIES,
    RESULT,
    SEQUENCE,
    SHOTS,
    TILE,
    Option,
    check_together,
    count,
    number,
    options_in,
    whole,
)  # fmt: skip
from cassi.version import PROGRAM

MAX_DPI = 2400  # more than journals ask for; memory grows with its square
EXIT_CODES = "exit codes: 0 done, 1 the computation failed, 2 the input or the output cannot be used, 130 interrupted"


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line; {reconstruct} in the examples is that command as it is typed."""

    def __init__(self, *, prog: str, description: str | None, examples: str = "") -> None:
        pattern = "python scripts/{}.py" if ".py" in prog else "cassi {}"
        examples = re.sub(r"\{([\w-]+)\}", lambda match: pattern.format(match[1]), examples)
        super().__init__(
            prog=prog,
            description=description,
            epilog=f"{examples}\n{EXIT_CODES}\n",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_argument("--version", action="version", version=PROGRAM)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {printable(message)} (--help shows all options)\n")


def parser_of(command: str, prog: str, description: str, examples: str) -> Parser:
    """The parser of a command."""
    parser = Parser(prog=prog, description=description, examples=f"examples:{examples}")
    every = options_of(command)
    for title, options in TABLE[command].items():
        place = parser.add_argument_group(title) if title else parser
        for option in options:
            add_to(place, option, words(option, every))
    return parser


def options_of(command: str) -> list[Option]:
    """All options of a command."""
    return [option for options in TABLE[command].values() for option in options]


def values_for(cls: type, args: argparse.Namespace) -> dict[str, Any]:
    """The values of those fields of a dataclass that have an option of their name."""
    return {field.name: getattr(args, field.name) for field in fields(cls) if hasattr(args, field.name)}


def check(command: str, args: argparse.Namespace, situations: Iterable[str] = ()) -> None:
    """Compare the options that are given with each other, and with the situation."""
    options = options_of(command)
    check_together(options, vars(args), situations, spelling(options))


def spelling(options: Iterable[Option]) -> Callable[[str], str]:
    """How a field, or a value of one, is typed: "num_iters" is --iterations, "solver=auto" --solver auto."""
    names = {option.field: option.name for option in options}

    def spell(name: str) -> str:
        field, _, value = name.partition("=")
        return f"{names.get(field, field)} {value}".rstrip()

    return spell


def words(option: Option, options: Iterable[Option]) -> str:
    """The help of an option: its effect, and the options that it goes with."""
    spell = spelling(options)
    needs = [name for name in option.needs if name != "solver=auto"]  # the default
    others = [name for name in option.excludes if name != "solver=auto"]
    text = f"; needs {' and '.join(map(spell, needs))}" if needs else ""
    return option.help + text + (f"; not with {', '.join(map(spell, others))}" if others else "")


def add_to(place: argparse._ActionsContainer, option: Option, help: str) -> None:
    """Make an option a part of a parser."""
    settings: dict[str, Any] = {"help": help.replace("%", "%%")}
    if option.name.startswith("-"):
        settings |= {"dest": option.field} | ({"required": True} if option.required else {})
    if option.value is None and option.choices is None:
        settings["action"] = "store_true"
    else:
        optional = {"metavar": option.value, "choices": option.choices, "nargs": option.nargs}
        settings |= {name: value for name, value in optional.items() if value is not None}
        settings |= {"type": option.type, "default": option.default}
        settings |= {"action": "extend"} if option.nargs == "+" else {}  # an option may be repeated
        settings |= {"const": ""} if option.nargs == "?" and option.name.startswith("-") else {}
    place.add_argument(option.name, **settings)


def printable(text: str) -> str:
    """Names from files may hold what would steer a terminal."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def size(text: str) -> tuple[int, int]:
    """Height and width from "256" or "256x384"."""
    match = re.fullmatch(r"(\d{1,6})(?:x(\d{1,6}))?", text.strip().lower())
    height, width = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if height < 1 or width < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size, expected 256 or 256x384 (height x width)")
    return height, width


def formats(text: str) -> tuple[str, ...]:
    """Formats of figures from "png,pdf"."""
    names = tuple(part.strip().lower().lstrip(".") for part in text.split(","))
    if not set(names) <= {"png", "pdf", "svg"}:
        raise argparse.ArgumentTypeError(f"{text!r}: expected png, pdf, svg, or several of them with commas")
    return names


def dpi(text: str) -> int:
    """Pixels per inch."""
    if not 1 <= count(text) <= MAX_DPI:
        raise argparse.ArgumentTypeError(f"expected at most {MAX_DPI} pixels per inch, got {text}")
    return count(text)


def length(text: str) -> tuple[float, str]:
    """A length and its unit from "2.5um"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(nm|[uµμ]m|mm|cm|m|km)\s*", text)
    if match is None or not float(match[1]) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a length, expected 2.5um, 0.1mm or 3m")
    return float(match[1]), {"um": "µm", "μm": "µm"}.get(match[2], match[2])


# fmt: off
# A table: rows, not calls.
HDF5 = (".h5", ".hdf5")
QUIET = Option("--quiet", "print nothing but errors and warnings")
DEBUG = Option("--debug", "show a traceback where something fails unexpectedly")
KEY = Option("--key", "name of the measurement in its file, if unusual", value="NAME")
MASK_KEY = Option("--mask-key", "name of the mask in its file, if unusual", value="NAME")
NUM_BANDS, STEP, BAD_PIXELS, DARK = (OPTIONS[name] for name in ("num_bands", "step", "bad_pixels", "dark"))
FILTERS = tuple(OPTIONS[name] for name in ("pattern", "pattern_offset", "response", "crosstalk"))
BIT_DEPTH = Option("--bit-depth", "bits of integer counts", value="N", type=whole)
FIGURES = Option("--figures", 'folder of figures, or "none" (default: NAME_figures beside the output)',
    value="DIR", idle="none")
OVERWRITE = Option("--overwrite", "replace an existing file")
FRAME = Option("--frame", "which cube of a stack, from 0 (default: 0)", value="FRAME", type=whole, default=0)

PLACES = (
    Option("--at", "row,column of a pixel, or row,column,size of a square around it; with a name if wanted: "
                "leaf=row,column", value="PLACE", nargs="+", default=[]),
    Option("--regions", "polygons in a .json saved by a report", value="FILE", nargs="+", default=[], reads=True),
)
CSV = Option("--csv", "write the spectra with their spread, error bars and reference", value="FILE",
    writes=(".csv",))
FIGURE = Option("--figure", "also draw them: .png, .pdf or .svg", value="FILE", writes=(".png", ".pdf", ".svg"))

TABLE: dict[str, dict[str, tuple[Option, ...]]] = {  # of a command: titles in its help, and their options
    "reconstruct": {
        "": (
            Option("files", "the same as --measurement", value="FILE", nargs="*", reads=True),
        ),
        "files": (
            Option("--measurement", "snapshot, with or without its mask: HDF5, .mat, .npz, .npy, TIFF, PNG, ENVI; or "
                "many: files, a folder, a pattern, a stack",
                value="FILE", default=[], nargs="+", reads=True),
            Option("--mask", "coded aperture, if in another file; several shots need one each",
                value="FILE", default=[], nargs="+", reads=True, excludes=("pattern",)),
            Option("--calibration", "file of cassi calibrate: mask, bands, bad pixels, correction of raw counts",
                value="FILE", default=[], nargs="+", reads=True, why="it states these",
                excludes=("mask", "mask_key", "turn_mask", "num_bands", "step", "wavelengths", "bad_pixels",
                    "bit_depth", "black_level", "dark", "saturation", "pattern")),
            Option("--output", "result: .h5, .mat, .tif or .hdr (default: NAME_cube.h5); of many snapshots a folder",
                value="FILE"),
            OVERWRITE,
            Option("--figures", 'folder of figures, or "none" (default: NAME_figures; of many snapshots none, unless '
                'an option of figures is given)', value="DIR", idle="none"),
            Option("--report", "also write an HTML page of the result (default: NAME_report.html)",
                value="FILE", nargs="?", writes=(".html", ".htm")),
            KEY, MASK_KEY,
            Option("--turn-mask", "flip, turn or transpose the mask so that it fits the snapshot"),
        ),
        CAMERA: (
            Option("--shots", "shots of each scene, each through its own mask (default: as many as masks; needed for a "
                "stack of masks)",
                value="K", type=count),
            *options_in(CAMERA), BIT_DEPTH,
            Option("--saturation", "count from which on a pixel is saturated", value="COUNTS", type=number),
            Option("--align", "the same as --camera align", excludes=("camera",)),
            Option("--save-camera", "write the camera that was used, for --mask (.h5)",
                value="FILE", excludes=("camera", "psf", "align", "calibration", SHOTS),
                why="no camera is searched for", writes=HDF5),
        ),
        "method": (
            *options_in("method"), TILE,
            Option("--save-plan", "write the chosen plan, for --plan (.json); many snapshots all follow "
                "the first plan", value="FILE", needs=("solver=auto",), excludes=("plan", "sequence"),
                writes=(".json",)),
        ),
        RESULT: options_in(RESULT),
        "figures for papers and talks": (
            Option("--figure-format", "png, pdf, svg: one or several, with commas (default: png)",
                value="FORMATS", type=formats, default=("png",)),
            Option("--dpi", "pixels per inch (default: 120)", value="N", type=dpi, default=120),
            Option("--pixel-size", "size of a pixel in the scene, for a scale bar: 2.5um, 0.1mm, 3m",
                value="LENGTH", type=length),
            Option("--tinted", "bands in the color of their light"),
            Option("--no-markers", "no numbers of spectra on the pictures of the summary"),
        ),
        "many snapshots": (
            SEQUENCE,
            Option("--cluster", "compute on a Dask cluster: tcp://HOST:PORT, a scheduler file, or local:N for N "
                "processes here",
                value="ADDRESS", needs=(MANY,)),
            Option("--batch", "snapshots computed at a time (default: as many as fit)",
                value="N", type=count, needs=(MANY,)),
        ),
        "messages": (
            Option("--dry-run", "print what the files hold and what would be done, then stop"),
            QUIET, DEBUG,
        ),
    },
    "calibrate": {
        "": (
            Option("--output", "file to write (default: calibration.h5)",
                value="FILE", default="calibration.h5", writes=HDF5),
            FIGURES, OVERWRITE, QUIET, DEBUG,
        ),
        "frames": (
            Option("folder", "the frames: dark_* without light, flat_* in uniform light without the aperture, mask_* "
                "of the aperture in narrow-band light", value="FOLDER"),
            Option("--wavelengths", "wavelengths of the mask frames: a list 450,500,..., start:stop:count, or a file "
                "(default: wavelengths.txt in the folder, or file names such as mask_532nm.png)", value="NM"),
            Option("--bit-depth", "bits of the counts (default: what holds them)", value="N", type=whole),
        ),
        "a mosaic sensor": (
            Option("--camera", "sd: coded aperture and disperser (default); mosaic: a filter on each detector pixel, "
                "with mask_* in uniform narrow-band light, equally bright",
                choices=("sd", "mosaic"), default="sd"),
            *FILTERS[:2],
        ),
        "bands": (
            Option("--step", "displacement between neighboring bands (default: 2)", value="PX", type=number),
            Option("--num-bands", "number of bands (default: as many as the wavelengths cover)", value="C", type=whole),
            Option("--order", "degree of the dispersion's polynomial (default: 3)",
                value="P", type=whole, default=3),
        ),
    },
    "refine": {
        "": (
            Option("--measurement", "captures: files, a folder or a pattern",
                value="FILE", nargs="+", required=True, reads=True),
            Option("--mask", "coded aperture, if not in the captures",
                value="FILE", reads=True),
            KEY, MASK_KEY, NUM_BANDS, STEP, BAD_PIXELS, BIT_DEPTH, DARK,
            Option("--black-level", "value of a dark pixel as stored (default: estimated from the captures)",
                value="VALUE", type=number),
            Option("--weights", "network weights: free for any use (default), research for research only, or a file of "
                "scripts/train.py",
                value="free|research|FILE", reads=True),
            Option("--seed", "seed of the held-out pixels (default: 0)", value="SEED", type=whole, default=0),
            Option("--output", "file to write (default: camera.h5)", value="FILE", default="camera.h5", writes=HDF5),
            FIGURES, OVERWRITE, QUIET, DEBUG,
        ),
    },
    "simulate": {
        "": (
            Option("--seed", "seed of colors, mask and noise (default: 0)", value="SEED", type=whole, default=0),
            Option("--output", "measurement to write: .h5 or .hdf5", value="FILE", writes=HDF5),
            Option("--bench", "instead, a new folder of 12-bit frames of a simulated bench, for cassi calibrate, and a "
                "snapshot; takes only --size (default: 128x128), --num-bands, --step and --seed", value="DIR"),
            OVERWRITE, QUIET, DEBUG,
        ),
        "scene": (
            Option("--cube", "a spectral cube: HDF5, .mat, .npz, .npy, TIFF", value="FILE", reads=True),
            Option("--key", "name of the cube in its file, if unusual", value="NAME"),
            Option("--size", "pixels (default: 256x256, or as the cube or mask file has)",
                value="HxW", type=size),
            Option("--num-bands", "number of bands (default: 28); of a cube file, its last C", value="C", type=count),
            Option("--wavelengths", "band centers, as for cassi reconstruct (default: 450 to 650 nm, or as in the cube "
                "file)", value="NM", reads=True),
            Option("--truth-bits", "round the cube to multiples of 2^-N first, so that it is exact and compresses well",
                value="N", type=whole),
        ),
        "optics": (
            Option("--camera", "sd: single disperser (default); dd: double disperser; cacti: video camera, with frames "
                "of a grey scene in place of bands; mosaic: a filter on each detector pixel",
                choices=("sd", "dd", "cacti", "mosaic"), default="sd", excludes=("shots", "frames", "side")),
            *FILTERS,
            Option("--mask", "binary, grey, or a file (default: binary)",
                value="KIND|FILE", default="binary", reads=True, excludes=("pattern",)),
            Option("--transmission", "mean transmission of a drawn mask (default: 0.5)",
                value="TRANSMISSION", type=number, default=0.5),
            Option("--step", "displacement between neighboring bands, whole pixels, any sign (default: 2)",
                value="PX", type=whole, default=2),
            Option("--shots", "snapshots of the scene, each through another mask (default: 1)",
                value="K", type=count, default=1),
            Option("--frames", "snapshots of a sequence, for --sequence (default: 1)",
                value="T", type=count, default=1, excludes=("shots",)),
            Option("--motion", "motion of the scene from frame to frame (default: 0.8)",
                value="PX", type=number, default=0.8, needs=("frames",)),
        ),
        "camera (without these options: no noise)": (
            Option("--full-well", "electrons in the brightest pixel: photon noise (Poisson)", value="E", type=number),
            Option("--read-noise", "read noise [electrons] (Gaussian)", value="E", type=number, default=0.0),
            Option("--bit-depth", "digitize to 2^N levels", value="N", type=whole),
        ),
        "a photograph beside it": (
            Option("--side", "also photograph the scene with a second camera: an 8-bit PNG",
                value="FILE", writes=(".png",), excludes=("frames",)),
            Option("--side-response", "its channels: rgb (default) or pan", choices=("rgb", "pan"), default="rgb"),
        ),
    },
    "view": {
        "": (
            Option("result", "result (.h5)", value="RESULT"),
            FRAME,
            Option("--port", "port to listen on (default: any free one)", value="PORT", type=whole, default=0),
            Option("--no-browser", "print the address, open no browser"),
            QUIET, DEBUG,
        ),
    },
    "spectra": {
        "": (
            Option("results", "results, or folders of them", value="RESULT", nargs="+"),
            *PLACES, CSV, FIGURE, FRAME, OVERWRITE, QUIET, DEBUG,
        ),
    },
    "export": {
        "": (
            Option("result", "a result, or a folder of them", value="RESULT"),
            Option("output", "file to write: .h5, .nc (NetCDF-4), .mat, .npz, .tif or .hdr (ENVI); or a folder",
                value="OUTPUT"),
            Option("--format", "format of the files in a folder: h5, nc, mat, npz, tif or hdr", value="FORMAT"),
            *options_in(RESULT), OVERWRITE, QUIET, DEBUG,
        ),
    },
    "compare": {
        "": (
            Option("cube", "a result", value="A", reads=True),
            Option("reference", "another cube; truth: the one in A (default); or, with --at or --regions, the table of "
                "a spectrometer, nm and value: .csv, .txt, .tsv, .dat or .asc",
                value="B", default="truth", nargs="?"),
            Option("--fit-scale", "first multiply A by the factor that fits best, where units differ",
                excludes=("at", "regions")),
            FRAME, FIGURE, OVERWRITE, QUIET, DEBUG,
        ),
        "spectra of places": (
            *PLACES,
            Option("--unscaled", "do not multiply the table by the factor that fits best"),
            CSV,
        ),
    },
    "design": {
        "": (
            Option("--output", "folder for table, figures and finished runs (default: design)",
                value="DIR", default="design"),
            QUIET, DEBUG,
        ),
        "cameras: a value, a list 1,2,4, or start:stop": (
            Option("--step", "displacement between neighboring bands (default: 1:3)", value="PX", default="1:3"),
            Option("--mask-element", "side of a mask element (default: 1:4)", value="PX", default="1:4"),
            Option("--bands", "number of bands (default: 16:31, the ends and the middle)", value="C", default="16:31"),
            Option("--electrons", "electrons in the brightest pixel (default: 1e3:1e5, one value a decade)",
                value="E", default="1e3:1e5"),
        ),
        "scenes": (
            Option("--scenes", "a folder of cubes (default: painted scenes)", value="FOLDER"),
            Option("--num-scenes", "number of painted scenes (default: 2)", value="N", type=count, default=2),
            Option("--size", "side of the scenes (default: 96)", value="PX", type=count, default=96),
            Option("--quality", "quality of the reconstructions (default: fast)", choices=QUALITIES, default="fast"),
        ),
    },
    "warm-up": {
        "": (
            Option("--device", "cpu, or also a GPU: cuda, cuda:1 ... (default: cpu)",
                value="DEVICE", default="cpu"),
            QUIET, DEBUG,
        ),
    },
}
# fmt: on
