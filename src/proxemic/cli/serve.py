"""``proxemic serve``."""

import argparse
import os
import signal
from collections.abc import Callable

from proxemic.addresses import GALLERY_ADDRESS, without_password
from proxemic.allocator import share_one_heap
from proxemic.cli.pictures import say

TOKEN = "PROXEMIC_TOKEN"
_INTERRUPTED = 130  # as a shell reports Ctrl-C


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "serve",
        help="show a gallery in a browser, and answer searches over HTTP",
        description="Serve a page on which a picture is dropped, pasted or chosen and its neighbours in a gallery are "
        "shown, and the same as JSON, which /openapi.json describes. Only this machine reaches it, unless --host is "
        "given.",
        allow_abbrev=False,
    )
    parser.add_argument("gallery", metavar="GALLERY", help=GALLERY_ADDRESS)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on, as 0.0.0.0 (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0 takes a free one (default: 8000)")
    parser.add_argument(
        "--token",
        help=f"what clients must give, 16 characters or more; the variable {TOKEN} does not show it to others on this "
        "machine",
    )
    parser.add_argument(
        "--name", action="append", default=[], help="a further host name of the server; may be repeated"
    )
    parser.add_argument(
        "--rate",
        type=float,
        help="false accept rate whose threshold is taken (default: 0.01, or the smallest that was learnt)",
    )
    parser.add_argument("--threshold", type=float, help="a distance instead")
    parser.add_argument("--model", metavar="MODEL", help="where the gallery's model is now (default: where it was)")
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="processes that answer, each with the gallery, its model and the limits below (default: 1)",
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-bytes", type=int, default=20_000_000, metavar="N", help="of a request (default: 20 MB)")
    limits.add_argument(
        "--max-pixels", type=int, default=50_000_000, metavar="N", help="of a picture (default: 50 million)"
    )
    limits.add_argument(
        "--max-seconds",
        type=float,
        default=30,
        metavar="S",
        help="for a request to come, and to be answered (default: 30)",
    )
    limits.add_argument("--max-queue", type=int, default=64, metavar="N", help="requests that wait (default: 64)")
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Serve, until Ctrl-C."""
    say(f"Opening {without_password(arguments.gallery)}")  # before what takes seconds to import
    before = signal.getsignal(signal.SIGINT)

    def report(line: str) -> None:
        signal.signal(signal.SIGINT, before)
        say(line)

    # Python prints a traceback of Ctrl-C in the middle of some imports, and goes on. There is nothing to lose yet.
    signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    try:
        _serve(arguments, report)
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(arguments: argparse.Namespace, report: Callable[[str], object]) -> None:
    from proxemic.serve import Limits, serve

    share_one_heap()
    serve(
        arguments.gallery,
        model=arguments.model,
        host=arguments.host,
        port=arguments.port,
        token=arguments.token or os.environ.get(TOKEN) or None,
        names=arguments.name,
        rate=arguments.rate,
        threshold=arguments.threshold,
        limits=Limits(
            bytes=arguments.max_bytes,
            pixels=arguments.max_pixels,
            seconds=arguments.max_seconds,
            queue=arguments.max_queue,
        ),
        workers=arguments.workers,
        report=report,
    )
