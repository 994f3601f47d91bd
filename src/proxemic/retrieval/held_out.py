"""Embeddings of classes that a model was not trained on, to learn thresholds from."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from proxemic.data import ImageSet, Preprocessing, Splits
from proxemic.data.embeddings import LabelledEmbeddings, RowLabels, number_labels, read_embeddings
from proxemic.data.embeddings.files import MADE_BY
from proxemic.data.embeddings.formats import read_metadata
from proxemic.data.rows import check_distinct, number_names
from proxemic.errors import UserError
from proxemic.retrieval.embedder import Embedder
from proxemic.retrieval.embedding import embed_pictures
from proxemic.retrieval.pictures import Pictures, list_pictures
from proxemic.retrieval.stores.store import Distance
from proxemic.retrieval.vector_rows import is_vector_file
from proxemic.runs.directory import RunClasses, RunDirectory, split_fingerprint
from proxemic.runs.embed import embed_images

if TYPE_CHECKING:
    from proxemic.retrieval.gallery import Gallery

HeldOutSplit = Literal["validation", "test"]
MOST = 10_000  # queries out of a gallery, whose neighbours are computed exactly


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Vectors that are searched, and those that search them.

    Args:
        vectors: The rows that are searched.
        labels: Their classes.
        description: What they are, in words.
        distance: The distance by which they are compared.
        sequences: The sequence of each row.
        queries: Which rows are queries; None takes all.
        unknown: Vectors and classes of pictures that are queries of unknown classes instead.
    """

    vectors: Float[Tensor, "rows dim"]
    labels: Int64[Tensor, " rows"]
    description: str
    distance: Distance
    sequences: Int64[Tensor, " rows"] | None = None
    queries: Int64[Tensor, " queries"] | None = None
    unknown: tuple[Float[Tensor, "unknown dim"], Int64[Tensor, " unknown"]] | None = None

    @property
    def images(self) -> int:
        """How many pictures search as pictures of an unknown class."""
        if self.unknown is not None:
            return len(self.unknown[1])
        return len(self.labels if self.queries is None else self.queries)


def embed_held_out(
    embedder: Embedder,
    source: str | os.PathLike[str] | LabelledEmbeddings | None,
    split: HeldOutSplit | None,
    *,
    batch_size: int,
    workers: int,
    report: Callable[[str], object],
) -> HeldOut:
    """Embed a run's own classes of a split, or those of a source that it was not trained on."""
    run = run_of(embedder)
    if source is None:
        split = split or "validation"
        images = _own_images(embedder, run, split, report)
        assert isinstance(embedder.transform, Preprocessing)
        vectors = embed_images(
            embedder.model,
            images,
            embedder.transform,
            batch_size=batch_size,
            workers=workers,
            precision=embedder.precision,
        )
        content = LabelledEmbeddings.of_images(vectors, images)
        return _held_out(content, f"{split} classes of {embedder.path}", embedder.distance)
    if isinstance(source, LabelledEmbeddings):
        name, content = "The vectors", _embed_vectors(embedder, source, None)
    elif is_vector_file(source):
        given = read_embeddings(Path(source))
        check_distinct(given.rows.paths or (), source)
        name, content = str(source), _embed_vectors(embedder, given, Path(source))
    else:
        name, content = str(source), _embed_labelled(embedder, list_pictures(source), batch_size, workers, report)
    if content is None or content.rows.labels is None:
        raise UserError(
            f"{name} gives no labels, but thresholds are learnt from pictures of known classes: give a folder with a "
            "folder for each class, or what is searched (--gallery)."
        )
    kept = _allowed(run, content.rows, split, report)
    if not len(kept):
        raise UserError(f"{name} has no classes but those that {embedder.path} was trained on: give others.")
    if left_out := len(content.embeddings) - len(kept):
        report(
            f"{left_out:,} of {len(content.embeddings):,} rows are of classes of another split of the run: left out."
        )
    return _held_out(LabelledEmbeddings(content.embeddings[kept], content.rows.take(kept)), name, embedder.distance)


def _held_out(content: LabelledEmbeddings, description: str, distance: Distance) -> HeldOut:
    labels, sequences = content.rows.labels, content.rows.sequences
    assert labels is not None
    numbers = None if sequences is None else sequences.numbers
    return HeldOut(content.embeddings, labels, description, distance, numbers)


def embed_against(
    gallery: "Gallery | str | os.PathLike[str]",
    embedder: Embedder,
    source: str | os.PathLike[str] | None,
    *,
    batch_size: int,
    workers: int,
    report: Callable[[str], object],
) -> HeldOut:
    """Read the labelled pictures of a gallery, and embed pictures of unknown classes if a source has some."""
    from proxemic.retrieval.gallery import Gallery
    from proxemic.retrieval.searching import embed_queries

    if not isinstance(gallery, Gallery):
        gallery = Gallery.open(gallery, embedder)
    address, classes = gallery.store.address, _classes_of(run_of(embedder))
    trained = frozenset[str]() if classes is None else classes.trained
    parts, texts = [], list[str]()
    for vectors, items in gallery.store.iterate():
        part = items["label"].to_pylist()
        parts.append(torch.from_numpy(vectors[[label is not None for label in part]].copy()))
        texts += [label for label in part if label is not None]
    labels, names = number_names(texts)
    if len(names) < 2:
        raise UserError(f"{address} has {len(names)} labels, but thresholds tell one class from others: add more.")
    is_new = torch.tensor([name not in trained for name in names])
    queries = is_new[labels].nonzero().squeeze(1)
    if source is None and not len(queries):
        raise UserError(
            f"{embedder.path} was trained on all classes of {address}, so that none can take the part of an unknown "
            "one: give pictures of unknown classes (--data.root)."
        )
    if known := len(names) - int(is_new.sum()):
        report(
            f"{known:,} of {len(names):,} classes of {address} were trained on: they are searched, but are no queries."
        )
    queries = queries if len(queries) else torch.arange(len(labels))
    if len(queries) > MOST:
        queries = queries[torch.randperm(len(queries), generator=torch.Generator().manual_seed(0))[:MOST]]
    unknown, description = None, f"gallery {address}, with each class in turn left out"
    if source is not None:
        found = embed_queries(gallery, source, batch_size=batch_size, workers=workers)
        for name, why in found.unreadable.items():
            report(f"{name} is left out: {why}.")
        rows = [row for row, label in enumerate(found.labels) if label not in trained]
        if not rows:
            raise UserError(f"{source} has no classes but those that {embedder.path} was trained on: give others.")
        if left_out := len(found.labels) - len(rows):
            report(f"{left_out:,} of {len(found.labels):,} pictures are of classes that were trained on: left out.")
        number = {name: at for at, name in enumerate(sorted({*names, *filter(None, found.labels)}))}
        # One class for all pictures without a label.
        own = torch.tensor([number.get(found.labels[row] or "", len(number)) for row in rows])
        labels = torch.tensor([number[text] for text in texts])
        unknown, description = (found.vectors[rows], own), f"{source}, searching gallery {address}"
    return HeldOut(torch.cat(parts), labels, description, gallery.store.info.distance, None, queries, unknown)


def run_of(embedder: Embedder) -> RunDirectory | None:
    """The run whose model it is, or None."""
    if embedder.path is None:
        return None
    folder = embedder.path if embedder.path.is_dir() else embedder.path.parent
    return RunDirectory(folder) if (folder / "recipe.yaml").is_file() else None


def _own_images(
    embedder: Embedder, run: RunDirectory | None, split: HeldOutSplit, report: Callable[[str], object]
) -> ImageSet:
    if run is None:
        raise UserError(
            f"{embedder.path or 'The model'} is no run, whose held-out classes are known: give labelled pictures of "
            "classes that it was not trained on (--data.root)."
        )
    splits = own_splits(run, report, test=split == "test")
    if split == "test":
        return splits.test_images
    if splits.validation is None:
        raise UserError(
            f"{run.path} has no validation classes (data.validation_fraction is 0): give labelled pictures of other "
            "classes (--data.root), or take its test classes (--split test), which are then no measure of the result."
        )
    return splits.validation


def own_splits(run: RunDirectory, report: Callable[[str], object], *, test: bool) -> Splits:
    """The images of a run as they were split when it began; with `test`, refused where its test must not be seen."""
    run.check_run(test=test)
    from proxemic.recipes.reader import read_evaluation  # which imports much

    splits = run.locate(read_evaluation(run.recipe).data).load()
    run.check_images(split_fingerprint(splits))
    for note in splits.notes:
        report(note)
    return splits


def _embed_labelled(
    embedder: Embedder, pictures: Pictures, batch_size: int, workers: int, report: Callable[[str], object]
) -> LabelledEmbeddings | None:
    labelled = pictures.select([place for place, label in enumerate(pictures.labels) if label is not None])
    if not len(labelled):
        return None
    embedded = embed_pictures(embedder, labelled, batch_size=batch_size, workers=workers)
    for place, why in embedded.unreadable.items():
        report(f"{labelled.names[place]} is left out: {why}.")
    labels = [label for label in labelled.select(embedded.places).labels if label is not None]
    return LabelledEmbeddings(embedded.embeddings, number_labels(labels))


def _embed_vectors(embedder: Embedder, content: LabelledEmbeddings, file: Path | None) -> LabelledEmbeddings:
    """Embed vectors that a head takes; those that a network has made are embeddings already."""
    made_by = None if file is None else read_metadata(file).get(MADE_BY)
    if embedder.takes_vectors and made_by != embedder.checksum:
        return LabelledEmbeddings(embedder.embed(content.embeddings), content.rows)
    if made_by is not None and made_by != embedder.checksum:
        raise UserError(
            f"{file} was made by another model ({made_by[:12]}) than {embedder.path} ({embedder.checksum[:12]}): embed "
            "its pictures anew."
        )
    if content.embeddings.shape[1] != embedder.dim:
        raise UserError(
            f"{file or 'A row'} has {content.embeddings.shape[1]} numbers, but embeddings of {embedder.path} have "
            f"{embedder.dim}: give those that it makes."
        )
    return content


def _classes_of(run: RunDirectory | None) -> RunClasses | None:
    return None if run is None else run.read_classes()


def _allowed(
    run: RunDirectory | None, rows: RowLabels, split: HeldOutSplit | None, report: Callable[[str], object]
) -> Int64[Tensor, " kept"]:
    """Choose rows of classes that the run was not trained on; those of its test only if there are no others."""
    assert rows.labels is not None
    assert rows.class_names is not None
    classes, names = _classes_of(run), rows.class_names
    if classes is None:
        allowed = {*names}
    elif split is not None:
        allowed = {*((classes.test if split == "test" else classes.validation) or ())}
    else:
        untrained = {*names} - classes.trained
        allowed = untrained - {*(classes.test or ())}
        if untrained and not allowed:
            report("These are test classes of the run: what is measured on them afterwards is too good.")
            allowed = untrained
    taken = torch.tensor([name in allowed for name in names] + [False])  # the last, of rows without a label
    return taken[rows.labels].nonzero().squeeze(1)
