"""Results at a glance: small pictures with the main numbers, in a notebook or on the page of a folder; and a film."""

import base64
import io
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from cassi.errors import InputError, counted, parse_json
from cassi.files.atomic import check_place, replacing, write_text
from cassi.files.frames import natural
from cassi.looking.color import cube_to_srgb, white_level
from cassi.looking.report_data import ReportData, of_a_file, read_report, take_every
from cassi.looking.report_page import write_report
from cassi.looking.templates import page_of
from cassi.types import PathLike

MAX_SIDE = 192  # of a small picture [pixel]


def inline_html(data: ReportData) -> str:
    """A result as HTML for a notebook: small picture, size, numbers, and problems.

    It has no script, and text from the input is escaped.
    """
    return page_of("card.html", {"one": _card(data)})


def write_index(folder: PathLike, warn: Callable[[str], object] = str) -> Path:
    """Write `index.html` into a folder of results: a small picture of each, its numbers, and whether it can be trusted.

    Results are the HDF5 files in the folder with a cube; of a stack the first is shown. Method, plan and camera stand
    above if they are the same for all. Each card links to its report, if there is one, or to its file. Failed snapshots
    are listed with the reason, from `index.jsonl`, and so are damaged results, which go to `warn`, too. An
    older index is replaced.

    Raises:
        InputError: the folder has no result.
        OutputError: the page cannot be written.
    """
    place = Path(folder)
    results, damaged = [], list[tuple[str, str]]()
    for path in sorted(place.glob("*.h5"), key=natural):
        try:
            card = _card(read_report(path))
        except InputError as error:
            if error.kind not in ("measurement", "no result"):
                warn(f"{error}; left out of the index")
                damaged.append((path.name, str(error)))
            continue
        target = report_beside(path) if has_report(path) else path
        results.append(card | {"name": path.name, "link": quote(os.fsencode(target.name))})
    if not results:
        raise InputError(f"{place}: no result in it, expected HDF5 files with a cube")
    content = {
        "title": place.resolve().name,
        "methods": Counter(result["method"] for result in results).most_common(),
        "common": _common(results),
        "results": results,
        "failed": _failures(place),
        "damaged": damaged,
    }
    index = place / "index.html"
    write_text(index, page_of("index.html", content))
    return index


def report_beside(cube: Path) -> Path:
    """The place of the report of a result in a folder, to which the index links."""
    return cube.with_name(f"{cube.stem.removesuffix('_cube')}_report.html")


def has_report(cube: Path) -> bool:
    """Whether it has one, no older than itself."""
    report = report_beside(cube)
    return report.exists() and report.stat().st_mtime >= cube.stat().st_mtime


def write_report_beside(cube: Path) -> Path:
    """Write the report of a result beside it."""
    return write_report(report_beside(cube), cube, overwrite=True)


def _common(results: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What all results have in common, by name; differences stay with each."""
    common = {}
    for name in ("method", "plan", "camera"):
        values = {result[name] for result in results}
        if len(values) > 1:
            continue
        if value := values.pop():
            common[name] = value
        for result in results:
            result[name] = ""
    return common


def _failures(place: Path) -> list[tuple[str, str]]:
    """Names and reasons of failed snapshots, as recorded by the run."""
    try:
        lines = [parse_json(line) for line in (place / "index.jsonl").read_text(encoding="utf-8").splitlines()]
        return [(str(line["frame"]), str(line["reason"])) for line in lines if line.get("status") == "failed"]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):  # no such run, or a file of another kind
        return []


@of_a_file
def _card(data: ReportData) -> dict[str, Any]:
    """The values of the templates for a result: its picture, an inline PNG, and words."""
    bands, height, width = data.cube.shape
    small = take_every(data.cube, -(-max(data.cube.shape[1:]) // MAX_SIDE))
    file = io.BytesIO()
    colors, camera = cube_to_srgb(small, data.wavelengths), data.provenance.get("camera")
    size = f"{counted(bands, 'band')}, {height} x {width} px"
    message = str(camera.get("message") or "") if isinstance(camera, Mapping) else ""
    Image.fromarray((255 * colors).round().astype(np.uint8)).save(file, "PNG")
    return {
        "picture": base64.b64encode(file.getvalue()).decode("ascii"),
        "problems": data.problems(),
        "lines": [size, *(f"{name}: {value}" for name, value in data.numbers())],
        "method": str(data.choice.get("prior") or data.choice.get("solver") or ""),
        "plan": str(data.parameters.get("plan") or ""),
        "camera": ": ".join(filter(None, [str(data.parameters.get("camera") or ""), message])),  # asked for, and found
    }


MAX_FILM_SIDE = 256  # of the film [pixel]
RATE = 8  # frames per second


def write_film(
    path: PathLike, frame: Callable[[int], np.ndarray], count: int, wavelengths: ArrayLike | None = None, *,
    overwrite: bool = False,
) -> Path:  # fmt: skip
    """Write an animated GIF of `count` cubes frame(t), t from 0, one in memory at a time, all with the white of the
    first.

    Raises:
        OutputError: the file exists, or its folder does not.
    """
    path = Path(path)
    check_place(path, overwrite)
    first = frame(0)
    every = -(-max(first.shape[-2:]) // MAX_FILM_SIDE)
    white = white_level(first, wavelengths)

    def picture(t: int) -> Image.Image:
        cube = frame(t) if t else first
        colors = cube_to_srgb(cube[:, ::every, ::every], wavelengths, white=white)
        return Image.fromarray((255 * colors).round().astype(np.uint8))

    with replacing(path, overwrite) as temporary, temporary.open("wb") as file:
        later = (picture(t) for t in range(1, count))
        picture(0).save(file, "GIF", save_all=True, append_images=later, duration=1000 // RATE, loop=0)
    return path
