"""``proxemic datasets``."""

import argparse
from pathlib import Path

__all__ = ["add_parser", "run"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser("datasets", help="get the papers' data sets; look at images before training on them")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="the data sets, how large they are and how to get them")
    listing.add_argument("--root", type=Path, metavar="DIR", help="also say what of them is in DIR, or in DIR/NAME")

    prepare = actions.add_parser(
        "prepare", help="fetch a data set (an interrupted download goes on), check, unpack and count it"
    )
    prepare.add_argument("name", metavar="NAME", help="as proxemic datasets list names it")
    prepare.add_argument("--root", type=Path, metavar="DIR", help="the folder to put it in, or where its archives lie")
    prepare.add_argument("--url", help="fetch it from this mirror: a folder with the original files, or the only file")

    check = actions.add_parser(
        "check",
        help="count images and classes; find missing or unreadable files, lone images and exact duplicates",
        epilog="The exit code is 1 where images of a folder or a table cannot be read: the report names them.",
    )
    check.add_argument(
        "path", metavar="PATH|NAME", help="a folder of class folders, a CSV or Parquet table, or a data set's name"
    )
    check.add_argument("--root", type=Path, metavar="DIR", help="the folder of the data set NAME")
    check.add_argument("--decode", action="store_true", help="also open every image of the data set NAME")
    check.add_argument("--json", action="store_true", help="print JSON")
    for action in (listing, prepare, check):
        action.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """List, prepare or check."""
    if arguments.action == "list":
        from proxemic.cli.datasets.listing import print_list

        print_list(arguments.root)
    elif arguments.action == "prepare":
        from proxemic.cli.datasets.preparing import prepare_named

        prepare_named(arguments.name, arguments.root, arguments.url)
    else:
        _check(arguments)


def _check(arguments: argparse.Namespace) -> None:
    from proxemic.cli.datasets.catalogue import CATALOGUE
    from proxemic.cli.datasets.checking import check_named, check_own

    named = arguments.path in CATALOGUE and not Path(arguments.path).exists()
    if named or arguments.root is not None:
        check_named(arguments.path, arguments.root, arguments.decode, arguments.json)
    else:
        check_own(Path(arguments.path), arguments.json)
