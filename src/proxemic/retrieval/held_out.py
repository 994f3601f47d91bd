"""Embeddings of classes that a model was not trained on, to learn thresholds from."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Int64
from torch import Tensor

from proxemic.data import ImageSet, Preprocessing, Splits
from proxemic.data.embeddings import LabelledEmbeddings, RowLabels, number_labels, read_embeddings
from proxemic.data.embeddings.files import MADE_BY
from proxemic.data.embeddings.formats import read_metadata
from proxemic.data.rows import check_distinct
from proxemic.errors import UserError
from proxemic.retrieval.embedder import Embedder
from proxemic.retrieval.embedding import embed_pictures
from proxemic.retrieval.pictures import Pictures, list_pictures
from proxemic.retrieval.vector_rows import is_vector_file
from proxemic.training import RunDirectory
from proxemic.training.embed import embed_images
from proxemic.training.run_directory import split_fingerprint

HeldOutSplit = Literal["validation", "test"]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Embeddings with their classes, and the words for what they are."""

    content: LabelledEmbeddings
    labels: Int64[Tensor, " rows"]
    description: str


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
        return HeldOut(
            LabelledEmbeddings.of_images(vectors, images), images.labels, f"{split} classes of {embedder.path}"
        )
    if isinstance(source, LabelledEmbeddings):
        name, content = "The vectors", _embed_vectors(embedder, source, None)
    elif is_vector_file(source):
        given = read_embeddings(Path(source))
        check_distinct(given.rows.paths or (), source)
        name, content = str(source), _embed_vectors(embedder, given, Path(source))
    else:
        name, content = str(source), _embed_labelled(embedder, list_pictures(source), batch_size, workers, report)
    if content is None or content.rows.labels is None:
        raise UserError(f"{name} gives no labels, but thresholds are learnt from pictures of known classes.")
    kept = _allowed(run, content.rows, split)
    if not len(kept):
        raise UserError(
            f"{name} has no classes but those that {embedder.path} was trained on, or keeps for its test: give others, "
            "or --split test."
        )
    if left_out := len(content.embeddings) - len(kept):
        report(
            f"{left_out:,} of {len(content.embeddings):,} rows are of classes of another split of the run: left out."
        )
    rows = content.rows.take(kept)
    assert rows.labels is not None
    return HeldOut(LabelledEmbeddings(content.embeddings[kept], rows), rows.labels, name)


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


def _allowed(run: RunDirectory | None, rows: RowLabels, split: HeldOutSplit | None) -> Int64[Tensor, " kept"]:
    """Rows of no class that the run was trained on, by its name, nor of its test unless that is asked for."""
    assert rows.labels is not None
    assert rows.class_names is not None
    classes, names = None if run is None else run.read_classes(), rows.class_names
    if classes is None:
        may = set(names)
    elif split is None:
        may = set(names) - classes.trained - set(classes.test or ())
    else:
        may = set((classes.test if split == "test" else classes.validation) or ())
    taken = torch.tensor([name in may for name in names] + [False])  # the last, of rows without a label
    return taken[rows.labels].nonzero().squeeze(1)
