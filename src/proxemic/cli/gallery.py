"""``proxemic gallery``."""

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from proxemic.retrieval import Added, Gallery

DOING = {
    "create": "Creating",
    "add": "Adding to",
    "remove": "Removing from",
    "delete": "Deleting",
    "verify": "Verifying",
    "index": "Indexing",
}
INDEXES = ("exact", "hnsw", "ivfpq")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser("gallery", help="keep pictures with their vectors, to be searched")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, does: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=text, allow_abbrev=False)
        made.add_argument("gallery", metavar="GALLERY", help=GALLERY_ADDRESS)
        made.set_defaults(run=run, does=does, takes_flags=False)
        return made

    create = action("create", _create, "make a gallery, and add pictures or vectors to it")
    create.add_argument("source", nargs="*", metavar="SOURCE", help=SOURCES)
    create.add_argument("--model", metavar="MODEL", help="a run directory, a model.safetensors or an .onnx file")
    create.add_argument("--distance", choices=("cosine", "euclidean"), help="(default: the model's, or cosine)")
    create.add_argument("--index", choices=INDEXES, default="exact", help="made once all is added (default: exact)")
    add = action("add", _add, "add pictures or vectors; those that it has, by their paths, stay as they are")
    add.add_argument("source", nargs="+", metavar="SOURCE", help=SOURCES)
    add.add_argument("--model", metavar="MODEL", help="where the gallery's model is now (default: where it was)")
    add.add_argument("--update", action="store_true", help="embed pictures again whose files have changed")
    for each in (create, add):
        each.add_argument(
            "--root",
            action="append",
            default=[],
            metavar="DIR",
            help="a folder or an address of the pictures that files of vectors name, which serve, report and contact "
            "sheets may then open; may be repeated",
        )
        each.add_argument("--no-labels", action="store_true", help="names of folders and column label are no labels")
        add_reading(each)

    remove = action("remove", _remove, "remove pictures, without asking")
    add_where(remove, "what is removed")
    remove.add_argument(
        "--path",
        action="append",
        default=[],
        metavar="PATH",
        help="in place of conditions one picture; may be repeated",
    )

    info = action("info", _info, "say what is in it")
    info.add_argument("--format", choices=("table", "json"), default="table", help="of what is printed")

    delete = action("delete", _delete, "delete it with all its vectors, but none of the pictures themselves")
    delete.add_argument("--yes", action="store_true", help="must be given: there is no way back")

    action("verify", _verify, "read all of it; the exit code is 1 where it is damaged")

    index = action("index", _index, "make another index: exact is slow and finds all, hnsw and ivfpq are approximate")
    index.add_argument("kind", choices=INDEXES)
    index.add_argument(
        "--set", action="append", default=[], metavar="NAME=NUMBER", help="a setting of the index; may be repeated"
    )


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Create, add, remove, delete, describe, verify or index."""
    if arguments.action != "info":  # before what takes seconds to import
        say(f"{DOING[arguments.action]} {without_password(arguments.gallery)}")
    arguments.does(arguments)


def _create(arguments: argparse.Namespace) -> None:
    check_reading(arguments)
    from proxemic.retrieval import Gallery

    gallery = Gallery.create(
        arguments.gallery,
        arguments.model,
        arguments.source or None,
        distance=arguments.distance,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        labels=not arguments.no_labels,
        roots=arguments.root,
    )
    if arguments.index != "exact":
        gallery.build_index(arguments.index)
    _say_added(gallery, gallery.added)


def _add(arguments: argparse.Namespace) -> None:
    check_reading(arguments)
    from proxemic.retrieval import Gallery

    gallery = Gallery.open(arguments.gallery, arguments.model)
    added = gallery.add(
        arguments.source,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        labels=not arguments.no_labels,
        roots=arguments.root,
        update=arguments.update,
    )
    _say_added(gallery, added)


def _say_added(gallery: "Gallery", added: "Added") -> None:
    say_unreadable(added.unreadable, "picture", "pictures")
    if count := len(added.ignored):
        named = ", ".join(added.ignored[:3]) + ", ..." * (count > 3)
        say(f"{count:,} {'file is' if count == 1 else 'files are'} ignored, no pictures by their names: {named}")
    for note in added.notes:
        say(note)
    if added.known:
        say(f"{added.known:,} {'was' if added.known == 1 else 'were'} there already and stay as before")
    if added.changed:
        say(f"{added.changed:,} of these changed since they were embedded: to embed them again, give --update")
    if added.unreadable and not added.rows and not added.known and not added.updated:
        raise UserError(f"Nothing was added to {gallery.store.address}: none of the pictures can be read.")
    updated = f"{added.updated:,} updated, " * bool(added.updated)
    print(f"{added.rows:,} added, {updated}{len(gallery):,} in {gallery.store.address}")


def _remove(arguments: argparse.Namespace) -> None:
    where = read_conditions(arguments.where, "--where")
    if where and arguments.path:
        raise UserError("--where and --path are both given: remove by one of them, then by the other.")
    from proxemic.data.sources.listing import absolute
    from proxemic.retrieval import Gallery

    gallery = Gallery.open(arguments.gallery)
    if arguments.path:
        # Vectors may have come by names that are no paths.
        where["path"] = [name for path in arguments.path for name in (path, absolute(path))]
    removed = gallery.remove(where)
    print(f"{removed:,} removed, {len(gallery):,} in {gallery.store.address}")


def _delete(arguments: argparse.Namespace) -> None:
    address = without_password(arguments.gallery)
    if not arguments.yes:
        raise UserError(f"{address} would be deleted for good: add --yes if that is meant.")
    from proxemic.retrieval import Gallery

    Gallery.delete(arguments.gallery)
    print(f"{address} is deleted")


def _info(arguments: argparse.Namespace) -> None:
    from proxemic.retrieval import Gallery, summarize_store

    summary = summarize_store(Gallery.open(arguments.gallery).store)
    print(json.dumps(summary.as_dict(), indent=2) if arguments.format == "json" else "\n".join(summary.lines()))


def _verify(arguments: argparse.Namespace) -> None:
    from proxemic.retrieval import Gallery

    gallery = Gallery.open(arguments.gallery)
    if problems := gallery.verify():
        print("\n".join(problems))
        raise SystemExit(1)
    print(f"{gallery.store.address} is sound: {len(gallery):,} pictures")


def _index(arguments: argparse.Namespace) -> None:
    settings: dict[str, int] = {}
    for setting in arguments.set:
        name, _, number = setting.partition("=")
        if not (name.isidentifier() and number.isdecimal()):
            raise UserError(f"--set is {setting!r}, but must be NAME=NUMBER.")
        settings[name] = int(number)
    from proxemic.retrieval import Gallery, summarize_store

    gallery = Gallery.open(arguments.gallery)
    gallery.build_index(arguments.kind, **settings)
    print(next(line for line in summarize_store(gallery.store).lines() if line.startswith("index")))
