"""The page of a result from a small server on this machine, for a browser here or at the other end of a tunnel."""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cassi.errors import InputError, one_line
from cassi.looking.report_data import ReportData
from cassi.looking.report_page import make_page


def make_server(data: ReportData, *, host: str = "127.0.0.1", port: int = 0) -> ThreadingHTTPServer:
    """Make a server for the page of a result; `serve_forever()` runs it, `server_close()` ends it.

    Args:
        data: the result, see `cassi.looking.report_data.read_report`.
        host: address to listen on. On the default only this machine can ask, and no foreign page whose name was made
            to point at it (DNS rebinding).
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
    page = make_page(data).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.headers.get("Host", "").rpartition(":")[0]
            if host == "127.0.0.1" and name not in ("127.0.0.1", "localhost"):
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
