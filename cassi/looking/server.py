"""A small local server for the report of a result, for a browser here or at the other end of a tunnel."""

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cassi.errors import InputError, one_line
from cassi.looking.report_data import ReportData
from cassi.looking.report_page import make_page


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
