"""Look at a result in the browser."""

import argparse
import webbrowser
from contextlib import suppress


def run(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from cassi.looking.report_data import read_report
    from cassi.looking.report_page import address_of, make_server

    server = make_server(read_report(args.result, frame=args.frame), port=args.port)
    if not args.quiet:
        print(f"{address_of(server)}  (Ctrl-C ends it)", flush=True)
    if not args.no_browser:
        webbrowser.open(address_of(server))
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()
    return 0
