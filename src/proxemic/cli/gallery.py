"""The actions of ``proxemic gallery``."""

import json
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from proxemic.addresses import without_password
from proxemic.cli.derive import options_of
from proxemic.cli.notes import say, say_unreadable
from proxemic.conditions import read_conditions
from proxemic.errors import UserError

if TYPE_CHECKING:
    from proxemic.retrieval import Added, Gallery

Index = Literal["exact", "hnsw", "ivfpq"]
_SHOWN = 10


@options_of("proxemic.retrieval:Gallery.add", but=["update"])
def create(
    gallery: str,
    source: Sequence[str] = (),
    /,
    *,
    model: str | None = None,
    dim: int | None = None,
    distance: Literal["cosine", "euclidean"] | None = None,
    index: Index = "exact",
    whiten: bool = True,
    **adding: Any,
) -> None:
    """Create a gallery, and add photos or vectors to it.

    Args:
        gallery (GALLERY): A new or empty folder, postgresql://USER@HOST/DATABASE/NAME, milvus://HOST:PORT/NAME, or
            milvus-lite:FILE.
        model (MODEL): A run directory, a model.safetensors, an .onnx file, timm:NAME, or hf:NAME (default for
            photos: timm:tf_efficientnet_lite0, with the weights of the extra pretrained).
        dim: Keep only the first N dimensions of each embedding, for a model that was trained with MatryoshkaLoss.
        distance: The distance between vectors (default: the model's, or cosine).
        index: The index, built after everything is added.
        whiten: Whiten the features of a pretrained network, for 500 photos or more and a gallery in a folder.
    """
    say("Creating", gallery)
    from proxemic.retrieval import Gallery

    made = Gallery.create(gallery, model, source or None, dim=dim, distance=distance, whiten=whiten, **adding)
    if index != "exact":
        made.build_index(index)
    _say_added(made, made.added)


@options_of("proxemic.retrieval:Gallery.add")
def add(gallery: str, source: Sequence[str] = (), /, *, model: str | None = None, **adding: Any) -> None:
    """Add photos or vectors; those whose paths are in the gallery already stay unchanged.

    If the photos of a gallery were moved with their folder, give the new folder by --root, with or without a source.
    All commands then find the photos there.
    """
    say("Adding to", gallery)
    from proxemic.retrieval import Gallery

    if not source and "roots" not in adding:
        raise UserError("There is nothing to add: give photos or vectors, or the folder of moved photos (--root).")
    opened = Gallery.open(gallery, model)
    _say_added(opened, opened.add(source or None, **adding))


def _say_added(gallery: "Gallery", added: "Added") -> None:
    say_unreadable(added.unreadable, "photo", "photos")
    if count := len(added.ignored):
        named = ", ".join(added.ignored[:3]) + ", ..." * (count > 3)
        say(f"{count:,} {'file is' if count == 1 else 'files are'} ignored, not photos by their names: {named}")
    for note in added.notes:
        say(note)
    if added.known:
        say(f"{added.known:,} {'was' if added.known == 1 else 'were'} there already and stay as before")
    if added.changed:
        say(f"{added.changed:,} of these files changed since they were embedded: give --update to embed them again")
    if added.unreadable and not added.rows and not added.known and not added.updated:
        raise UserError(f"Nothing was added to {gallery.store.address}: none of the photos can be read.")
    embedder = vars(gallery).get("embedder")  # not loaded for vectors
    if embedder is not None and not embedder.takes_vectors:
        from proxemic.retrieval.vectors.embedding import how_embedded

        say(how_embedded(embedder, added.rows + added.updated))
    updated = f"{added.updated:,} updated, " * bool(added.updated)
    print(f"{added.rows:,} added, {updated}{len(gallery):,} in {gallery.store.address}")


def remove(gallery: str, /, *, where: Sequence[str] = (), path: Sequence[str] = ()) -> None:
    """Remove photos, without asking.

    Args:
        where (COLUMN=VALUE): A condition on photos, such as label=shoe; may be repeated. Values of one column are
            alternatives; different columns must all match; label= selects photos without a label.
        path (PATH): Remove this photo, instead of conditions; may be repeated.
    """
    say("Removing from", gallery)
    conditions = read_conditions(where, "--where")
    if conditions and path:
        raise UserError("--where and --path are both given: remove with one of them, then with the other.")
    from proxemic.data.sources.listing import absolute
    from proxemic.retrieval import Gallery

    opened = Gallery.open(gallery)
    if path:
        # Names of vectors need not be paths.
        conditions["path"] = [name for item in path for name in (item, absolute(item))]
    removed = opened.remove(conditions)
    print(f"{removed:,} removed, {len(opened):,} in {opened.store.address}")


def relabel(gallery: str, labels: str, /) -> None:
    """Change labels by a table with the columns path and label.

    Args:
        labels (TABLE): A .csv, .tsv or .parquet table; an empty label removes the photo's label. Other photos keep
            their labels.
    """
    say("Relabelling", gallery)
    from proxemic.retrieval import Gallery, relabel

    opened = Gallery.open(gallery)
    print(f"{relabel(opened, labels):,} of {len(opened):,} photos of {opened.store.address} have a new label")


def decisions(gallery: str, /, *, out: str | None = None, relabel: str | None = None) -> None:
    """List the decisions that people made in proxemic serve --review, or write them to a table.

    Args:
        out (FILE): Write the decisions to this .csv table.
        relabel (FILE): Write a .csv table to train on, with the paths and labels of all labelled photos after all
            decisions; photos to remove are left out.
    """
    say("Reading", gallery)
    from proxemic.outputs import check_csv
    from proxemic.retrieval import Gallery
    from proxemic.retrieval.curation import Decision, list_decisions, write_corrected_table
    from proxemic.tables import Table

    columns = [column.name for column in fields(Decision)]
    check_csv(out, (*columns,), "--out")
    check_csv(relabel, ("path", "label"), "--relabel")
    opened = Gallery.open(gallery)
    rows = [astuple(decision) for decision in list_decisions(opened)]
    if out is not None:
        Table(columns, rows).write(Path(out))
        print(f"{len(rows):,} decisions in {out}")
    if relabel is not None:
        print(f"{write_corrected_table(opened, relabel):,} photos in {relabel}")
    if out is None and relabel is None:
        table = Table(columns[1:], [row[1:] for row in rows], align="l" * (len(columns) - 1))
        print(table.text() if rows else "Nobody has decided anything: proxemic serve --review")


def apply(gallery: str, /) -> None:
    """Apply the decisions of proxemic serve --review to the labels; no file is moved or deleted."""
    say("Applying the decisions about", gallery)
    from proxemic.retrieval import Gallery
    from proxemic.retrieval.curation import apply_decisions

    opened = Gallery.open(gallery)
    done = apply_decisions(opened)
    for item in done.outdated[:_SHOWN]:
        say(f"Not applied, as the photo has another label now or is gone: {item.path}")
    if len(done.outdated) > _SHOWN:
        say(f"{len(done.outdated) - _SHOWN:,} more were not applied: proxemic gallery decisions lists them as outdated")
    print(
        f"{done.relabelled:,} relabelled, {done.removed:,} removed, {done.kept:,} kept: {len(opened):,} photos in "
        f"{opened.store.address}"
    )


@options_of("proxemic.retrieval:suggest_labels")
def suggest(gallery: str, /, **options: Any) -> None:
    """Suggest photos to label next, as a table with path and label to fill in for gallery relabel.

    Photos without a label are grouped, and the most typical photos of each group are suggested.
    """
    say("Looking at", gallery)
    from proxemic.retrieval import suggest_labels
    from proxemic.tables import Table

    print(Table(["path", "label"], [[path, ""] for path in suggest_labels(gallery, **options)]).text("csv"))


def info(gallery: str, /, *, format: Literal["table", "json"] = "table") -> None:
    """Summarise a gallery."""
    from proxemic.retrieval import Gallery, summarize_store

    summary = summarize_store(Gallery.open(gallery).store)
    print(json.dumps(summary.as_dict(), indent=2) if format == "json" else "\n".join(summary.lines()))


def delete(gallery: str, /, *, yes: bool = False) -> None:
    """Delete a gallery with all its vectors, but none of the photos.

    Args:
        yes: Confirm the deletion, which cannot be undone; required.
    """
    address = without_password(gallery)
    say(f"Deleting {address}")
    if not yes:
        raise UserError(f"{address} would be deleted for good: add --yes to confirm.")
    from proxemic.retrieval import Gallery

    Gallery.delete(gallery)
    print(f"{address} is deleted")


def verify(gallery: str, /) -> None:
    """Check a gallery for damage by reading all of it; the exit code is 1 if it is damaged."""
    say("Verifying", gallery)
    from proxemic.retrieval import Gallery

    opened = Gallery.open(gallery)
    if problems := opened.verify():
        print("\n".join(problems))
        raise SystemExit(1)
    print(f"{opened.store.address} is sound: {len(opened):,} photos")


def index(gallery: str, kind: Index, /, *, set: Sequence[str] = ()) -> None:
    """Build another index: exact is slow and finds all neighbours, hnsw and ivfpq are approximate.

    Args:
        kind: The kind of index.
        set (NAME=NUMBER): A setting of the index; may be repeated.
    """
    say("Indexing", gallery)
    settings: dict[str, int] = {}
    for setting in set:
        name, _, number = setting.partition("=")
        if not (name.isidentifier() and number.isdecimal()):
            raise UserError(f"--set is {setting!r}, but must be NAME=NUMBER.")
        settings[name] = int(number)
    from proxemic.retrieval import Gallery, summarize_store

    opened = Gallery.open(gallery)
    opened.build_index(kind, **settings)
    print(next(line for line in summarize_store(opened.store).lines() if line.startswith("index")))


def export(gallery: str, file: str, /) -> None:
    """Export a gallery to a Parquet file, as a backup or to move the gallery to another store.

    The file contains paths, labels, all other columns and vectors, but neither the photos nor the model.

    Args:
        file (FILE): A .parquet file.
    """
    say("Exporting", gallery)
    from proxemic.retrieval import export_gallery

    rows = export_gallery(gallery, file, report=say)
    print(f"{rows:,} photos in {file}: proxemic gallery import restores the gallery from it")


def import_(gallery: str, file: str, /) -> None:
    """Create a gallery from a file that gallery export wrote.

    Args:
        gallery (GALLERY): A new or empty folder, postgresql://USER@HOST/DATABASE/NAME, milvus://HOST:PORT/NAME, or
            milvus-lite:FILE.
        file (FILE): The Parquet file; no code in it is run.
    """
    say(f"Importing {file}")
    from proxemic.retrieval import import_gallery

    made = import_gallery(gallery, file, report=say)
    print(f"{len(made):,} in {made.store.address}")
