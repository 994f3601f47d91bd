"""``proxemic recognize``."""

import argparse

from proxemic.addresses import GALLERY_ADDRESS, without_password
from proxemic.cli.pictures import (
    SOURCES,
    add_reading,
    check_reading,
    say,
    say_unreadable,
)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "recognize",
        help="name what pictures show by a gallery, or say that it is unknown",
        description="Name what pictures show by the label of the nearest labelled picture of a gallery, if it is near "
        "enough: within a threshold that proxemic calibrate has learnt for the gallery's model, or a distance of your "
        "own. Queries with labels are counted as right, wrong or unknown.",
        epilog="Queries that cannot be read are listed; the exit code is 2 where none can.",
        allow_abbrev=False,
    )
    parser.add_argument("gallery", metavar="GALLERY", help=GALLERY_ADDRESS)
    parser.add_argument("query", nargs="+", metavar="QUERY", help=SOURCES)
    parser.add_argument(
        "--rate",
        type=float,
        help="false accept rate whose threshold is taken (default: 0.01, or the smallest that was learnt)",
    )
    parser.add_argument("--threshold", type=float, help="a distance instead")
    parser.add_argument("--format", choices=("table", "json", "csv"), default="table", help="of what is printed")
    parser.add_argument("--model", metavar="MODEL", help="where the gallery's model is now (default: where it was)")
    add_reading(parser)
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Recognise, and print."""
    check_reading(arguments)
    say(f"Recognising by {without_password(arguments.gallery)}")  # before what takes seconds to import
    from proxemic.retrieval import Gallery, recognize

    found = recognize(
        Gallery.open(arguments.gallery, arguments.model),
        *arguments.query,
        rate=arguments.rate,
        threshold=arguments.threshold,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
    )
    say_unreadable(found.unreadable, "query", "queries")
    for note in found.notes:
        say(note)
    print(found.text(arguments.format))
