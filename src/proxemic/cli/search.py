"""``proxemic search``."""

import argparse
from pathlib import Path

from proxemic.addresses import GALLERY_ADDRESS, without_password
from proxemic.cli.pictures import (
    SOURCES,
    add_reading,
    add_where,
    check_reading,
    say,
    say_unreadable,
)
from proxemic.conditions import read_conditions
from proxemic.errors import UserError


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "search",
        help="find the pictures of a gallery that are nearest to others",
        description="Find the pictures of a gallery that are nearest to one picture, to many, or to vectors.",
        epilog="Queries that cannot be read are listed; the exit code is 2 where none can.",
        allow_abbrev=False,
    )
    parser.add_argument("gallery", metavar="GALLERY", help=GALLERY_ADDRESS)
    parser.add_argument("query", nargs="+", metavar="QUERY", help=SOURCES)
    parser.add_argument("-k", type=int, default=10, metavar="N", help="hits for each query (default: 10)")
    add_where(parser, "a condition on hits")
    parser.add_argument("--format", choices=("table", "json", "csv"), default="table", help="of what is printed")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a contact sheet: one web page, .html")
    parser.add_argument("--png", type=Path, metavar="FILE", help="also write a contact sheet as a picture, .png")
    parser.add_argument("--model", metavar="MODEL", help="where the gallery's model is now (default: where it was)")
    add_reading(parser)
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Search, and print."""
    check_reading(arguments)
    where = read_conditions(arguments.where, "--where")
    sheets = {".html": arguments.html, ".png": arguments.png}
    for ending, path in sheets.items():
        if path is not None and path.suffix.lower() != ending:
            raise UserError(f"--{ending[1:]} is {path}, but must end in {ending}.")
    say(f"Searching {without_password(arguments.gallery)}")  # before what takes seconds to import
    from proxemic.retrieval import Gallery, search_gallery, write_contact_sheet

    gallery = Gallery.open(arguments.gallery, arguments.model)
    result = search_gallery(
        gallery,
        *arguments.query,
        k=arguments.k,
        where=where,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
    )
    say_unreadable(result.unreadable, "query", "queries")
    if not any(answer.hits for answer in result.answers):
        lacking = "no pictures that meet the conditions" if len(gallery) else "no pictures: add some first"
        say(f"{gallery.store.address} has {lacking}")
    print(result.text(arguments.format))
    for path in filter(None, sheets.values()):
        write_contact_sheet(result, path)
        say(f"{path} shows them")
