"""The page of a report from a small server on this machine: for cubes too large for one file.

Bands and spectra are read from the result file when the page asks for them. There are three addresses and none of
them names a file: `/`, `/band?band=3` and `/spectrum?rows=10:20&columns=5:6`.
"""

from __future__ import annotations

import ipaddress
import json
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import numpy as np

from cassi.errors import InputError, one_line
from cassi.looking.report_data import CubeLike, ReportData
from cassi.looking.report_page import band_of, make_page, thinning


def make_server(data: ReportData, *, host: str = "127.0.0.1", port: int = 0) -> ThreadingHTTPServer:
    """Make a server for the page of a result; `serve_forever()` runs it, `server_close()` ends it.

    It answers only requests that name it by a number, as localhost or as `host`: a foreign page whose name was made to
    point at this machine (DNS rebinding) learns nothing.

    Args:
        data: the result, see `cassi.looking.report_data.read_report`.
        host: address to listen on; on the default only this machine can ask.
        port: 0: any free one.

    Returns:
        The server, listening.

    Raises:
        InputError: the address cannot be had.

    Example:
        >>> server = make_server(ReportData(np.random.default_rng(0).random((8, 32, 32))))
        >>> address_of(server).startswith("http://127.0.0.1:")
        True
        >>> server.server_close()
    """
    page = make_page(data, live=True)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version = "cassi"
        sys_version = ""

        def do_GET(self) -> None:
            try:
                if not _is_ours(self.headers.get("Host", ""), host):
                    raise _Refused(HTTPStatus.MISDIRECTED_REQUEST, "this server has another name")
                where = urlsplit(self.path)
                asked = {name: values[-1] for name, values in parse_qs(where.query).items()}
                if where.path == "/":
                    self._answer(page.html.encode(), "text/html; charset=utf-8")
                elif where.path == "/band":
                    self._answer(_band(data.cube, asked), "application/octet-stream")
                elif where.path == "/spectrum":
                    self._answer(_spectrum(data, asked), "application/json")
                else:
                    raise _Refused(HTTPStatus.NOT_FOUND, "no such address")
            except _Refused as refused:
                self._answer(str(refused).encode(), "text/plain; charset=utf-8", refused.status)
            except InputError as error:  # the file has changed or is damaged
                self._answer(str(error).encode(), "text/plain; charset=utf-8", HTTPStatus.INTERNAL_SERVER_ERROR)

        def _answer(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Security-Policy", f"{page.policy}; frame-ancestors 'none'")
            self.send_header("Cross-Origin-Resource-Policy", "same-origin")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the terminal shows the address and stays readable."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot listen on {host}:{port}: {one_line(error)}; choose another --port") from error
    server.daemon_threads = True
    return server


def address_of(server: ThreadingHTTPServer) -> str:
    """The address to open in a browser."""
    host, port = server.server_address[:2]
    return f"http://{host!s}:{port}/"


class _Refused(Exception):
    """A request that is not answered, and why."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def _is_ours(named: str, host: str) -> bool:
    """Whether a Host header names this server by number, as localhost, or by the name it was started with."""
    try:
        name = urlsplit(f"//{named}").hostname or ""
    except ValueError:
        return False
    if name in ("localhost", host.lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _band(cube: CubeLike, asked: dict[str, str]) -> bytes:
    """One band as little-endian float32, every k-th pixel of a large one."""
    bands, height, width = cube.shape
    c = _whole(asked.get("band", ""), "band", bands)
    k = thinning(height, width)
    return np.ascontiguousarray(band_of(cube, c)[::k, ::k], dtype="<f4").tobytes()


def _spectrum(data: ReportData, asked: dict[str, str]) -> bytes:
    """Mean spectra of a box as JSON."""
    _, height, width = data.cube.shape
    rows, columns = (_span(asked.get(name, ""), name, size) for name, size in (("rows", height), ("columns", width)))
    found: dict[str, list[float | None] | None] = {}
    for name, cube in (("cube", data.cube), ("truth", data.truth), ("uncertainty", data.uncertainty)):
        if cube is not None:
            # band by band: a box may be as large as the picture
            means = [float(cube[c : c + 1, rows, columns].mean(dtype=np.float64)) for c in range(cube.shape[0])]
            found[name] = [value if np.isfinite(value) else None for value in means]
        else:
            found[name] = None
    return json.dumps(found).encode()


def _span(text: str, name: str, size: int) -> slice:
    """`first:end` as a slice that is not empty and lies in the picture."""
    first, _, end = text.partition(":")
    start = _whole(first, name, size)
    stop = _whole(end, name, size + 1)
    if stop <= start:
        raise _Refused(HTTPStatus.BAD_REQUEST, f"{name}: expected first:end with first below end")
    return slice(start, stop)


def _whole(text: str, name: str, size: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) < size):
        raise _Refused(HTTPStatus.BAD_REQUEST, f"{name}: expected a whole number from 0 to {size - 1}")
    return int(text)
