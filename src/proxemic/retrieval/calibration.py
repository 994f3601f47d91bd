"""Learn thresholds on the distance from classes on which a model was not trained."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from logging import getLogger
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from proxemic.arrays import number_texts
from proxemic.data import Preprocessing, Splits
from proxemic.data.embeddings import LabelledEmbeddings
from proxemic.data.rows import check_distinct
from proxemic.data.sources.own_source import NewImages
from proxemic.data.vectors import VectorArray, Vectors
from proxemic.errors import UserError
from proxemic.metrics import Interval, bootstrap_intervals
from proxemic.metrics.clustering import unit_rows
from proxemic.metrics.open_set import OpenSetIdentification, dir_name, leave_classes_out, threshold_name
from proxemic.retrieval.curation.clustering import average_linkage, best_cut
from proxemic.retrieval.embedder import Embedder
from proxemic.retrieval.embedding import gather, model_for, open_sources
from proxemic.retrieval.gallery import Gallery
from proxemic.retrieval.searching import embed_queries
from proxemic.retrieval.stores.store import Distance
from proxemic.retrieval.thresholds import RATES, CalibratedThreshold, Calibration, calibration_file, format_threshold
from proxemic.runs.directory import RunDirectory
from proxemic.runs.embed import embed_images

HeldOutSplit = Literal["validation", "test"]

_MOST = 10_000  # most queries from a gallery, as neighbours are computed exactly
_GROUPED = 5_000  # most pictures that learn the threshold for groups: 200 MB of distances


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Vectors and classes to search; `queries` are the rows that search (None: all), or else `unknown` vectors are."""

    vectors: Float[Tensor, "rows dim"]
    labels: Int64[Tensor, " rows"]
    description: str
    distance: Distance
    sequences: Int64[Tensor, " rows"] | None = None
    queries: Int64[Tensor, " queries"] | None = None
    unknown: tuple[Float[Tensor, "unknown dim"], Int64[Tensor, " unknown"]] | None = None

    @property
    def images(self) -> int:
        """How many pictures search as if their class were unknown."""
        if self.unknown is not None:
            return len(self.unknown[1])
        return len(self.labels if self.queries is None else self.queries)


def calibrate(
    model: Embedder | str | os.PathLike[str],
    source: str | os.PathLike[str] | LabelledEmbeddings | None = None,
    *,
    gallery: Gallery | str | os.PathLike[str] | None = None,
    split: HeldOutSplit | None = None,
    new_images: NewImages = "leave",
    rates: Sequence[float] = RATES,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    batch_size: int = 64,
    workers: int = 0,
    keep: bool = True,
    report: Callable[[str], object] | None = None,
) -> Calibration:
    r"""Learn thresholds on the distance from classes on which a model was not trained.

    Each picture searches the pictures of all *other* classes, as a picture of an unknown class would: $d^-$ is the
    distance to its nearest neighbour among them. It is a false accept at a threshold $\tau$ if $d^- \le \tau$. The
    threshold for a false accept rate r is the largest with at most this share of false accepts among N pictures:

    $$\tau_r = \max \{\tau : |\{i : d^-_i \le \tau\}| \le r N\}$$

    The rates count queries that search as many pictures as here, not pairs of pictures. In a larger gallery there are
    more false accepts, and pictures that resemble known classes are accepted more often. With `gallery`, thresholds are
    learnt by searching that gallery.

    Args:
        model: The model, or its path.
        source: Labelled pictures (a folder or a table), or a file of labelled vectors, or its content; None takes the
            validation classes of the run. Classes in the run's training are left out, and those in its test if there
            are others. With `gallery`, pictures of unknown classes; those without a label count as one class.
        gallery: A gallery of the model, whose labelled pictures are searched. Without `source`, each of its classes in
            turn plays the unknown class, except those in the run's training; at most 10,000 random pictures are
            queries.
        split: ``validation`` or ``test`` takes only these classes of the run. After calibration on the test classes,
            results on them are too good.
        new_images: ``join`` adds pictures that came after the run began to the split of their class, ``leave`` leaves
            them out.
        rates: False accept rates, each in (0, 1). If the pictures are too few to measure any of them, the smallest rate
            that they can measure is added.
        level: Confidence level of the intervals.
        resamples: Resamples of the bootstrap over classes; 0 computes no intervals.
        seed: Seed of the bootstrap.
        batch_size: Pictures per batch of the network.
        workers: Processes that read pictures.
        keep: Write ``calibration.json`` beside the model if that has a path.
        report: Called with notes for the user, such as on replaced thresholds. None logs them.

    Returns:
        The thresholds, also of groups for `cluster`.

    Raises:
        UserError: If there are no held-out classes, or a file cannot be read or written.
        ValueError: If an argument is out of its range, or there are fewer than two classes.

    >>> from torch import nn
    >>> rows = torch.tensor([[0.0, 1.0], [0.1, 1.0], [1.0, 0.0], [1.0, 0.2], [-1.0, 0.0], [-1.0, 0.3]])
    >>> from proxemic.data.rows import number_labels
    >>> vectors = LabelledEmbeddings(rows, number_labels(["a", "a", "b", "b", "c", "c"]))
    >>> embedder = Embedder(nn.Flatten(), lambda image: torch.zeros(2, 1, 1))
    >>> (found,) = calibrate(embedder, vectors, rates=[0.34]).thresholds
    >>> round(found.threshold, 2), round(found.false_accepts, 2), found.true_accepts
    (0.71, 0.33, 1.0)
    """
    report = report or getLogger("proxemic").info
    embedder = model if isinstance(model, Embedder) else Embedder.load(model)
    if split not in (None, *get_args(HeldOutSplit)):
        raise ValueError(f"split is {split!r} but must be validation or test")
    reading: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "report": report}
    if new_images == "join" and (source is not None or gallery is not None):
        raise UserError("new_images adds to the split of a run: leave it out, or the source and the gallery.")
    if gallery is None:
        held_out = _embed_held_out(embedder, source, split, new_images, **reading)
    elif split is not None or isinstance(source, LabelledEmbeddings):
        raise UserError("With a gallery, unknown pictures are read from a source: leave the split or the vectors out.")
    else:
        if not isinstance(gallery, Gallery):
            gallery = Gallery.open(gallery, embedder)
        embedder = embedder.as_in(gallery.store.info)
        held_out = _embed_against(gallery, embedder, source, **reading)
    if len(held_out.labels.unique()) < 2:
        raise UserError(f"{held_out.description} has only one class, but thresholds tell one from others: give more.")
    if (images := held_out.images) * max(rates, default=0) < 1:
        report(f"{images:,} pictures measure no false accept rate below {1 / images:g}, which is added.")
        rates = [*rates, 1 / images]
    found = leave_classes_out(
        held_out.vectors,
        held_out.labels,
        distance=held_out.distance,
        false_alarm_rates=rates,
        sequences=held_out.sequences,
        queries=held_out.queries,
        unknown=held_out.unknown,
    )
    calibration = Calibration(
        embedder.checksum,
        held_out.distance,
        held_out.description,
        len(found.non_mated.labels.unique()),
        images,
        len(held_out.labels),
        level,
        _thresholds(found, level, resamples, seed),
        _grouping(held_out),
        embedder.stopped,
    )
    if keep and embedder.path is not None:
        if (replaced := _replaced(embedder.path, found)) is not None:
            report(replaced)
        calibration.write(embedder.path)
    return calibration


def _grouping(held_out: HeldOut) -> float:
    """Learn the distance at which groups agree best with classes, from some pictures of known classes."""
    rows = torch.arange(len(held_out.labels)) if held_out.queries is None else held_out.queries
    if len(rows) > _GROUPED:
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:_GROUPED]]
    x = held_out.vectors[rows].float()
    x, labels = (unit_rows(x) if held_out.distance == "cosine" else x), held_out.labels[rows]
    kept = x.any(1)  # a zero vector has no cosine distance
    return best_cut(*average_linkage(x[kept], held_out.distance), labels[kept])


def _thresholds(
    found: OpenSetIdentification, level: float, resamples: int, seed: int
) -> tuple[CalibratedThreshold, ...]:
    drawing: dict[str, Any] = {"level": level, "resamples": resamples, "seed": seed}
    intervals = found.intervals(**drawing) if resamples else {}
    none, thresholds = Interval(math.nan, math.nan, math.nan), []
    distances, _, classes = found.non_mated
    for rate, point in found.points.items():
        near, true = (intervals.get(name(rate), none) for name in (threshold_name, dir_name))
        passed = {"passed": (distances <= point.threshold).double()}
        false = (
            bootstrap_intervals(passed, classes, **drawing)["passed"] if intervals and near.low == near.low else none
        )
        bounds = {"false_low": false.low, "false_high": false.high, "true_low": true.low, "true_high": true.high}
        accepts = {"false_accepts": point.false_alarm_rate, "true_accepts": point.rate}
        thresholds.append(CalibratedThreshold(rate, point.threshold, near.low, near.high, **accepts, **bounds))
    return tuple(thresholds)


def _replaced(model: Path, found: OpenSetIdentification) -> str | None:
    """Describe the thresholds to be replaced, and how many unknown pictures pass them; None without any."""
    path = calibration_file(model)
    if not path.exists():
        return None
    try:
        old = Calibration.read(model)
    except UserError as error:
        return f"Replaced: {error}"
    values = "; ".join(
        f"{item.rate:g}: {format_threshold(item.threshold)}, which "
        f"{100 * (found.non_mated.distances <= item.threshold).double().mean():.2f} % of the unknown pictures here pass"
        for item in old.thresholds
        if not math.isnan(item.threshold)
    )
    return (
        f"Replaced: the thresholds that were learnt from {old.images:,} pictures of {old.classes:,} classes "
        f"({old.data}) for the rates {values}."
    )


def _embed_held_out(
    embedder: Embedder,
    source: str | os.PathLike[str] | LabelledEmbeddings | None,
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
                f"{embedder.path or 'The model'} is not a run with known held-out classes: give labelled pictures "
                "of classes that it was not trained on (--data.root)."
            )
        splits = own_splits(run, report, test=split == "test", new_images=new_images)
        if split == "validation" and splits.validation is None:
            raise UserError(
                f"{run.path} has no validation classes (data.validation_fraction is 0): give labelled pictures of "
                "other classes (--data.root), or take its test classes (--split test), which are then no measure of "
                "the result."
            )
        images = splits.test_images if split == "test" else splits.validation
        assert images is not None
        assert isinstance(embedder.transform, Preprocessing)
        reading: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "precision": embedder.precision}
        vectors = embed_images(embedder.model, images, embedder.transform, **reading)
        sequences = None if images.sequences is None else images.sequences.numbers
        description = f"{split} classes of {embedder.path}"
        return HeldOut(vectors, images.labels, description, embedder.distance, sequences)
    if isinstance(source, LabelledEmbeddings):
        name, opened = "The vectors", source.rows.as_rows()
        opened = replace(opened, pixels=Vectors(VectorArray(source.embeddings.detach().float().cpu())))
    else:
        (opened,), name = open_sources(source), str(source)
        check_distinct(opened.names, source)
    if model_for(opened, embedder, embedder.checksum, embedder.path) is None and opened.pixels.dim != embedder.dim:
        raise UserError(
            f"{name} has {opened.pixels.dim} numbers in a row, but embeddings of {embedder.path} have "
            f"{embedder.dim}: give those that it makes."
        )
    labels = opened.labels
    known = [row for row, label in enumerate(labels) if label is not None]
    if not known:
        raise UserError(
            f"{name} gives no labels, but thresholds are learnt from pictures of known classes: give a folder with a "
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
    return HeldOut(rows.embeddings, rows.numbers("label")[0], name, embedder.distance, sequences)


def _embed_against(
    gallery: Gallery,
    embedder: Embedder,
    source: str | os.PathLike[str] | None,
    *,
    batch_size: int,
    workers: int,
    report: Callable[[str], object],
) -> HeldOut:
    """Read the labelled pictures of a gallery, and embed pictures of unknown classes if a source is given."""
    run = run_of(embedder)
    address, classes = gallery.store.address, None if run is None else run.read_classes()
    trained = frozenset[str]() if classes is None else classes.trained
    parts, texts = [], list[str]()
    for vectors, items in gallery.store.iterate():
        part = items["label"].to_pylist()
        parts.append(torch.from_numpy(vectors[[label is not None for label in part]].copy()))
        texts += [label for label in part if label is not None]
    labels, names = number_texts(texts)
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
            f"{known:,} of {len(names):,} classes of {address} were trained on: they are searched, but are not queries."
        )
    queries = queries if len(queries) else torch.arange(len(labels))
    if len(queries) > _MOST:
        queries = queries[torch.randperm(len(queries), generator=torch.Generator().manual_seed(0))[:_MOST]]
    unknown, description = None, f"gallery {address}, with each class in turn left out"
    if source is not None:
        found = embed_queries(gallery, source, batch_size=batch_size, workers=workers)
        assert found.embeddings is not None
        for name, why in found.unreadable.items():
            report(f"{name} is left out: {why}.")
        given = found.labels
        rows = [row for row, label in enumerate(given) if label not in trained]
        if not rows:
            raise UserError(f"{source} has no classes but those that {embedder.path} was trained on: give others.")
        if left_out := len(given) - len(rows):
            report(f"{left_out:,} of {len(given):,} pictures belong to classes that were trained on: left out.")
        number = {name: at for at, name in enumerate(sorted({*names, *filter(None, given)}))}
        # One class for all pictures without a label.
        own = torch.tensor([number.get(given[row] or "", len(number)) for row in rows])
        labels = torch.tensor([number[text] for text in texts])
        unknown, description = (found.embeddings[rows], own), f"{source}, searching gallery {address}"
    return HeldOut(torch.cat(parts), labels, description, gallery.store.info.distance, None, queries, unknown)


def run_of(embedder: Embedder) -> RunDirectory | None:
    """Return the run that the embedder was loaded from, or None."""
    run = None if embedder.path is None else RunDirectory.of_model(embedder.path)
    return run if run is not None and run.recipe.is_file() else None


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
