#!/usr/bin/env python
"""Look at a result in the browser; bands and spectra are read from the file when they are asked for."""

from __future__ import annotations

import argparse
import sys
import webbrowser

from cassi.errors import InputError
from cassi.looking.report_data import read_report
from cassi.looking.server import address_of, make_server


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", help="result file (.h5)")
    parser.add_argument("--frame", type=int, default=0, help="which cube of a stack, from 0 (default: %(default)s)")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: %(default)s, this machine alone; 0.0.0.0 lets anyone on the network look)",
    )
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: any free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the address, open no browser")
    args = parser.parse_args(argv)
    try:
        server = make_server(read_report(args.result, frame=args.frame), host=args.host, port=args.port)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{address_of(server)}  (Ctrl-C ends it)", flush=True)
    if not args.no_browser:
        webbrowser.open(address_of(server))
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
