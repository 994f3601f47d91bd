"""Read classes on which a model was not trained, from its run, a source, or a gallery."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from proxemic.arrays import number_texts
from proxemic.data import FilePixels, Preprocessing, Splits
from proxemic.data.rows import Rows, check_distinct
from proxemic.data.sources.own_source import NewImages
from proxemic.errors import UserError
from proxemic.retrieval.galleries.gallery import Gallery
from proxemic.retrieval.galleries.stores.store import Distance
from proxemic.retrieval.searching.search import embed_queries
from proxemic.retrieval.vectors.embedder import Embedder
from proxemic.retrieval.vectors.embedding import as_vectors, gather, how_embedded, model_for, open_sources
from proxemic.runs.directory import RunDirectory
from proxemic.runs.embed import embed_images

HeldOutSplit = Literal["validation", "test"]

_MOST, _PAIRS = 10_000, 2 * 10**9  # most queries from a gallery, and most pairs of these with rows, compared exactly


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Vectors and classes to search.

    Args:
        vectors: Labelled vectors, which are searched.
        labels: Their classes.
        description: Where they come from.
        distance: How vectors are compared.
        sequences: The sequence of each vector.
        queries: The vectors that search as if their class were unknown; None takes all vectors.
        unknown: Other vectors and classes, which search instead.
        features: The features from which a head made the vectors, also of unlabelled images.
        feature_labels: The class of each feature vector, below 0 for none.
        head: How the head was made from these features, see `Improvement.kept`; None if it was not.
        made: How many photos were embedded for the vectors; None if they were not made from photos.
    """

    vectors: Float[Tensor, "rows dim"]
    labels: Int64[Tensor, " rows"]
    description: str
    distance: Distance
    sequences: Int64[Tensor, " rows"] | None = None
    queries: Int64[Tensor, " queries"] | None = None
    unknown: tuple[Float[Tensor, "unknown dim"], Int64[Tensor, " unknown"]] | None = None
    features: Float[Tensor, "all features"] | None = None
    feature_labels: Int64[Tensor, " all"] | None = None
    head: str | None = None
    made: str | None = None


def embed_held_out(
    embedder: Embedder,
    source: str | os.PathLike[str] | Rows | None,
    split: HeldOutSplit | None,
    new_images: NewImages,
    *,
    batch_size: int,
    workers: int,
    report: Callable[[str], object],
) -> HeldOut:
    """Embed the classes of a run's split, or those classes of a source that are not in the run's training."""
    run = run_of(embedder)
    if source is None:
        split = split or "validation"
        if run is None:
            raise UserError(
                f"{embedder.path or 'The model'} is not a run with known held-out classes: give labelled photos "
                "of classes that it was not trained on (--data.root)."
            )
        splits = own_splits(run, report, test=split == "test", new_images=new_images)
        if split == "validation" and splits.validation is None:
            raise UserError(
                f"{run.path} has no validation classes (data.validation_fraction is 0): give labelled photos of "
                "other classes (--data.root), or take its test classes (--split test), which are then no measure of "
                "the result."
            )
        images = splits.test_images if split == "test" else splits.validation
        assert images is not None
        assert isinstance(embedder.transform, Preprocessing)
        reading: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "precision": embedder.precision}
        vectors = embed_images(embedder.model, images, embedder.transform, checksum=embedder.kept_by, **reading)
        description = f"{split} classes of {embedder.path}"
        return HeldOut(vectors, images.labels, description, embedder.distance, images.sequences)
    if isinstance(source, Rows):
        name, opened = "The vectors", as_vectors(source)
    else:
        (opened,), name = open_sources(source), str(source)
        check_distinct(opened.names, source)
    if model_for(opened, embedder, embedder.checksum, embedder.path) is None and opened.pixels.dim != embedder.dim:
        raise UserError(
            f"{name} has {opened.pixels.dim} dimensions, but embeddings of {embedder.path} have "
            f"{embedder.dim}: give embeddings of that model."
        )
    labels = opened.labels
    known = [row for row, label in enumerate(labels) if label is not None]
    if not known:
        raise UserError(
            f"{name} gives no labels, but thresholds are learnt from photos of known classes: give a folder with a "
            "folder for each class, or what is searched (--gallery)."
        )
    allowed = _allowed(run, {label for label in labels if label is not None}, split, report)
    kept = [row for row in known if labels[row] in allowed]
    if not kept:
        raise UserError(f"{name} has no classes but those that {embedder.path} was trained on: give others.")
    if left_out := len(known) - len(kept):
        report(f"{left_out:,} of {len(known):,} rows belong to classes of another split of the run: left out.")
    rows = gather([opened.take(kept)], embedder, embedder.distance, batch_size=batch_size, workers=workers)
    for picture, why in rows.unreadable.items():
        report(f"{picture} is left out: {why}.")
    assert rows.embeddings is not None
    sequences = rows.numbers("sequence")[0] if rows.has("sequence") else None
    found = HeldOut(torch.from_numpy(rows.embeddings), rows.numbers("label")[0], name, embedder.distance, sequences)
    return replace(found, made=how_embedded(embedder, len(rows)) if isinstance(rows.pixels, FilePixels) else None)


def read_gallery(
    gallery: Gallery,
    source: str | os.PathLike[str] | None,
    *,
    batch_size: int,
    workers: int,
    report: Callable[[str], object],
) -> HeldOut:
    """Read the labelled images of a gallery, and embed images of unknown classes if a source is given."""
    info, address, path = gallery.store.info, gallery.store.address, gallery.model_path
    run = None if path is None else _run_at(path)
    classes = None if run is None else run.read_classes()
    trained = frozenset[str]() if classes is None else classes.trained
    keeps_features = info.head is not None and source is None
    vectors, features, texts = [], [], list[str | None]()
    for part, items in gallery.store.iterate():
        vectors.append(torch.from_numpy(np.array(part)))
        texts += items["label"].to_pylist()
        if keeps_features:
            features.append(gallery.store.features(items["id"].to_numpy()))
    numbers, names = number_texts(texts)
    labels = numbers[numbers >= 0]
    if len(names) < 2:
        raise UserError(f"{address} has {len(names)} labels, but thresholds tell one class from others: add more.")
    is_new = torch.tensor([name not in trained for name in names])
    queries = is_new[labels].nonzero().squeeze(1)
    if source is None and not len(queries):
        raise UserError(
            f"{path} was trained on all classes of {address}, so that none is unknown: give "
            "photos of unknown classes (--data.root)."
        )
    if known := len(names) - int(is_new.sum()):
        report(
            f"{known:,} of {len(names):,} classes of {address} were trained on: they are searched, but are not queries."
        )
    queries, most = queries if len(queries) else torch.arange(len(labels)), min(_MOST, _PAIRS // len(labels))
    if len(queries) > most:
        queries = queries[torch.randperm(len(queries), generator=torch.Generator().manual_seed(0))[:most]]
    description = f"gallery {address}, with each class in turn left out"
    found = HeldOut(torch.cat(vectors)[numbers >= 0], labels, description, info.distance, None, queries)
    if keeps_features:
        rows = torch.from_numpy(np.concatenate(features))
        return replace(found, features=rows, feature_labels=numbers, head=info.head)
    if source is None:
        return found
    embedded = embed_queries(gallery, source, batch_size=batch_size, workers=workers)
    assert embedded.embeddings is not None
    for name, why in embedded.unreadable.items():
        report(f"{name} is left out: {why}.")
    given = embedded.labels
    rows = [row for row, label in enumerate(given) if label not in trained]
    if not rows:
        raise UserError(f"{source} has no classes but those that {path} was trained on: give others.")
    if left_out := len(given) - len(rows):
        report(f"{left_out:,} of {len(given):,} photos belong to classes that were trained on: left out.")
    number = {name: at for at, name in enumerate(sorted({*names, *filter(None, given)}))}
    # One class for all images without a label.
    own = torch.tensor([number.get(given[row] or "", len(number)) for row in rows])
    labels = torch.tensor([number[name] for name in names])[labels]
    unknown, description = (torch.from_numpy(embedded.embeddings[rows]), own), f"{source}, searching gallery {address}"
    return replace(found, labels=labels, unknown=unknown, description=description)


def run_of(embedder: Embedder) -> RunDirectory | None:
    """Return the run that the embedder was loaded from, or None."""
    return None if embedder.path is None else _run_at(embedder.path)


def _run_at(path: Path) -> RunDirectory | None:
    run = RunDirectory.of_model(path)
    return run if run.recipe.is_file() else None


def own_splits(
    run: RunDirectory, report: Callable[[str], object], *, test: bool, new_images: NewImages = "leave"
) -> Splits:
    """Load a run's images with their original split; with `test`, refuse runs whose test must not be seen."""
    run.check_run(test=test)
    from proxemic.recipes.reader import read_evaluation  # which imports much

    splits = run.load(run.locate(read_evaluation(run.recipe).data), new_images)
    for note in splits.notes:
        report(note)
    return splits


def _allowed(
    run: RunDirectory | None, names: set[str], split: HeldOutSplit | None, report: Callable[[str], object]
) -> set[str]:
    """Choose classes that are not in the run's training; those of its test only if there are no others."""
    classes = None if run is None else run.read_classes()
    if classes is None:
        return names
    if split is not None:
        return {*((classes.test if split == "test" else classes.validation) or ())}
    untrained = names - classes.trained
    allowed = untrained - {*(classes.test or ())}
    if untrained and not allowed:
        report("These are test classes of the run: what is measured on them afterwards is too good.")
        return untrained
    return allowed
