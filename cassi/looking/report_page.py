"""The HTML page of a report, and a small local server for it: its content, and the packing of its cubes.

`page/` beside this file has the templates, and the script for drawing, pointer and keyboard. The templates escape text
from the input, and the content security policy of the page allows no other script and no request.
"""

import base64
import math
import zlib
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cassi.errors import InputError, OutputError, one_line
from cassi.files.atomic import check_place, replacing
from cassi.looking.color import color_note, cube_to_srgb, shown_range, value_label
from cassi.looking.methods import methods_text
from cassi.looking.metrics import band_psnr, peak_of, residual_whiteness
from cassi.looking.report_data import MAX_VALUES, ReportData, of_a_file, read_report, take_every
from cassi.looking.spectra_points import points_of
from cassi.looking.templates import page_of, page_part
from cassi.solvers.loop import STATUS_WORDS
from cassi.types import PathLike

MAX_SHOWN = 40  # numbers of a list
CUBE_BITS = 12  # steps of 1/4094 of the range of a band, finer than a line on a screen
PICTURE_BITS = 8  # of images that are only displayed

FOR_PROGRAMS = ("plan", "bases", "trials", "part", "notes")  # or said in words beside

Array = NDArray[Any]


def write_report(path: PathLike, data: ReportData | PathLike, *, overwrite: bool = False) -> Path:
    """Write one HTML file that shows a result in any recent browser, without a network.

    It contains the cubes, each band rounded to 1/4094 of its range; of large cubes every k-th pixel, which it states.

    Args:
        path: file to write, .html or .htm, whole or not at all.
        data: the content, or a result file (see `read_report`).
        overwrite: replace an existing file.

    Raises:
        InputError: `data` cannot be read.
        OutputError: wrong suffix, the file exists, or it cannot be written; nothing is left behind.

    Example:
        >>> path = os.path.join(tempfile.mkdtemp(), "report.html")
        >>> write_report(path, ReportData(np.random.default_rng(0).random((8, 32, 32)))).name
        'report.html'
    """
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise OutputError(f"{path}: a report is a page, expected the suffix .html")
    check_place(path, overwrite)
    page = make_page(data if isinstance(data, ReportData) else read_report(data)).encode(errors="backslashreplace")
    with replacing(path, overwrite) as temporary:
        temporary.write_bytes(page)
    return path


@of_a_file
def make_page(data: ReportData) -> str:
    """The HTML text of the report, including the cubes."""
    cubes = {"cube": data.cube, "truth": data.truth, "uncertainty": data.uncertainty}
    present = {name: cube for name, cube in cubes.items() if cube is not None}
    thin = math.ceil(math.sqrt(len(present) * math.prod(data.cube.shape) / MAX_VALUES))
    inside = {name: take_every(cube, thin) for name, cube in present.items()}
    small, centers = inside["cube"], data.wavelengths
    bands, height, width = small.shape
    bits = {"cube": CUBE_BITS, "truth": CUBE_BITS, "uncertainty": PICTURE_BITS}
    packed = {name: _pack(cube, bits[name]) for name, cube in inside.items()}
    packed["picture"] = _pack(np.moveaxis(cube_to_srgb(small, centers), -1, 0), PICTURE_BITS)
    limits: dict[str, tuple[float, float]] = {}
    for name, snapshot in (("measurement", data.measurement), ("residual", data.residual)):
        if snapshot is not None:
            limits[name] = shown_range(snapshot, "around zero" if name == "residual" else "data")[:2]
            packed[name] = _pack(np.clip(snapshot[::thin, ::thin], *limits[name])[None], PICTURE_BITS)
    points = points_of(small, inside.get("truth"), inside.get("uncertainty"))  # the same points as in the summary
    peak = 1.0 if data.truth is None else peak_of(inside["truth"], data.provenance.get("origin"))
    facts = {
        "shape": [bands, height, width],
        "thin": thin,
        "arrays": {name: layout for name, (_, layout) in packed.items()},
        "limits": limits,
        "centers": (np.arange(1.0, bands + 1) if centers is None else centers).tolist(),
        "in_nm": centers is not None,
        "labels": ["band" if centers is None else "wavelength [nm]", value_label(data.unit[:60])],
        "range": shown_range(small)[:2],
        "points": points,
        "history": [list(record) for record in data.history],
        "file": Path(data.title).stem,
        "psnr": None if data.truth is None else band_psnr(small.clip(0, peak), inside["truth"], peak=peak),
    }
    detector = next((image.shape for image in (data.residual, data.measurement) if image is not None), (1, 1))
    provenance = {k: STATUS_WORDS.get(str(v), v) if k == "status" else v for k, v in data.provenance.items()}
    camera = data.provenance.get("camera")
    correction = camera.get("message") if isinstance(camera, Mapping) and camera.get("accepted") is True else None
    tables = {"Chosen automatically": data.choice, "Parameters": data.parameters, "Provenance": provenance}
    content = {
        "style": page_part("page.css"),
        "script": page_part("page.js"),
        "data": data,
        "thin": thin,
        "good": [good for good in (data.verdict if data.ok else None, correction) if good],
        "color_note": color_note(centers, data.unit).capitalize(),
        "detector": detector,
        "white": None if data.residual is None else residual_whiteness(data.residual),
        "limits": {name: tuple(map(_number, values)) for name, values in limits.items()},
        "notes": [str(note) for note in notes] if isinstance(notes := data.provenance.get("notes"), list) else [],
        "tables": {heading: _plain(values) for heading, values in tables.items() if values},
        "methods": methods_text(data) if data.choice else "",
        "facts": _finite(facts),
        "packed": {name: text for name, (text, _) in packed.items()},
    }
    return page_of("page.html", content)


def _finite(value: object) -> object:
    """The value without NaN and Inf, which JSON lacks: they become null."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# Packing of cubes


def _pack(planes: Array, bits: int) -> tuple[str, dict[str, object]]:
    """Planes (P, H, W), rounded to 2^bits - 1 levels each, as base64 text and the data that page.js needs to decode it.

    A value is low + step * level of its plane; the last level represents NaN and infinite values. Stored are the mostly
    small differences along the rows of differences along the columns, with the sign in the lowest bit, all low bytes
    before all high bytes, deflated.
    """
    count, height, width = planes.shape
    top = 2**bits - 2
    folded = np.empty((count, height, width), np.uint16)
    lows, steps = [], []
    for p in range(count):
        plane = planes[p].astype(np.float64)
        known = np.isfinite(plane)
        low, high = (float(plane[known].min()), float(plane[known].max())) if known.any() else (0.0, 0.0)
        step = (high - low) / top or 1.0
        levels = np.where(known, np.rint((np.where(known, plane, low) - low) / step), top + 1).astype(np.int32)
        change = np.diff(np.diff(levels, axis=0, prepend=0), axis=1, prepend=0)
        folded[p] = (change << 1) ^ (change >> 31)
        lows.append(low)
        steps.append(step)
    deflate = zlib.compressobj(4)  # 1 % larger than with the default level, in two thirds of the time
    packed = b"".join(deflate.compress(part.astype(np.uint8).tobytes()) for part in (folded & 255, folded >> 8))
    text = base64.b64encode(packed + deflate.flush()).decode("ascii")
    return text, {"shape": [count, height, width], "low": lows, "step": steps, "missing": top + 1}


def _plain(value: object) -> object:
    """A JSON value as the page shows it: text, a mapping, or a list of other items than numbers."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        if isinstance(message := value.get("message"), str):  # numbers beside it are for programs, in the file
            return message
        said = {name: item for name, item in value.items() if name not in FOR_PROGRAMS and item not in (None, "")}
        return {str(name).replace("_", " "): _plain(item) for name, item in said.items()} or "none"
    if isinstance(value, list | tuple):
        count = sum(len(item) if isinstance(item, list) else 1 for item in value)
        if count > MAX_SHOWN:  # basis vectors
            return f"{count} numbers, in the file"
        items = [_plain(item) for item in value]
        is_plain = all(isinstance(item, float | int) for item in value)
        return ", ".join(map(str, items)) or "none" if is_plain else items
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not set"}[value]
    return _number(value, 6) if isinstance(value, float) else str(value)


def _number(value: float, digits: int = 3) -> str:
    """A number with some digits; zero without sign."""
    return f"{value + 0.0:.{digits}g}"


def make_server(data: ReportData, *, port: int = 0) -> ThreadingHTTPServer:
    """Create a server for the report of a result; `serve_forever()` runs it, `server_close()` ends it.

    It accepts only requests from this machine, and none from foreign pages (DNS rebinding). Port 0 is any free port.

    Raises:
        InputError: the port is not available.
    """
    page = make_page(data).encode(errors="backslashreplace")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Host", "").rpartition(":")[0] not in ("127.0.0.1", "localhost"):
                self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            elif self.path != "/":
                self.send_error(HTTPStatus.NOT_FOUND)
            else:
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing, so that the terminal keeps showing the address."""

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot listen on port {port}: {one_line(error)}; choose another --port") from error


def address_of(server: ThreadingHTTPServer) -> str:
    """The address to open in a browser."""
    return f"http://127.0.0.1:{server.server_address[1]}/"
