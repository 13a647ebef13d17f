"""Look at a result in the browser."""

import argparse
import webbrowser
from contextlib import suppress

from cassi.cli.shell import check_said, say


def run(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from cassi.looking.report_data import read_report
    from cassi.looking.report_page import address_of, make_server

    server = make_server(read_report(args.result, frame=args.frame), port=args.port)
    with server, suppress(KeyboardInterrupt):
        say(args, f"{address_of(server)}  (Ctrl-C ends it)")
        if args.no_browser or not webbrowser.open(address_of(server)):
            check_said()
        server.serve_forever()
    return 0
