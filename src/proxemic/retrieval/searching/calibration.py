"""Learn a threshold on the distance from classes on which a model was not trained."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from logging import getLogger
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import normalize

from proxemic.addresses import TIMM, is_pretrained_name
from proxemic.arrays import number_texts
from proxemic.data import Preprocessing, Splits
from proxemic.data.rows import Rows, check_distinct
from proxemic.data.sources.own_source import NewImages
from proxemic.errors import UserError
from proxemic.files import read_json
from proxemic.metrics import FEWEST_CLASSES
from proxemic.metrics.clustering import unit_rows
from proxemic.metrics.open_set import nearest_other_classes, nearest_others
from proxemic.models import EmbeddingModel
from proxemic.retrieval.curation.clustering import average_linkage, best_cut
from proxemic.retrieval.galleries.gallery import Gallery, load_for
from proxemic.retrieval.galleries.stores.store import Distance
from proxemic.retrieval.improving.improvement import heads_without
from proxemic.retrieval.searching.search import embed_queries
from proxemic.retrieval.searching.thresholds import Calibration, calibration_file, check_rate, format_threshold
from proxemic.retrieval.vectors.embedder import Embedder
from proxemic.retrieval.vectors.embedding import as_vectors, gather, model_for, open_sources
from proxemic.runs.directory import RunDirectory
from proxemic.runs.embed import embed_images
from proxemic.runs.pretrained import is_cached

HeldOutSplit = Literal["validation", "test"]

_MOST, _PAIRS = 10_000, 2 * 10**9  # most queries from a gallery, and most pairs of these with rows, compared exactly
_GROUPED = 5_000  # most pictures that learn the threshold for groups: 200 MB of distances
_HALVES = 200
_NEAREST = 32  # classes kept for each query: all of them are in the other half once in 4 billion times
_WHITENINGS, _HEADS = 20, 10  # most parts of the classes, each of which is left out of a head
_TRANSFORMED = 200_000  # rows that all whitenings together transform, if that makes more than `_HEADS` parts


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Vectors and classes to search.

    Args:
        vectors: Labelled vectors, which are searched.
        labels: Their classes.
        description: Where they come from.
        distance: How vectors are compared.
        sequences: The sequence of each vector.
        queries: The vectors that search as if their class were unknown; None takes all.
        unknown: Other vectors and classes, which search instead.
        features: The features from which a head made the vectors, also of unlabelled rows.
        feature_labels: The class of each row of features, below 0 for none.
        head: How the head was made from these rows, see `Improvement.kept`; None if it was not.
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


@dataclass(frozen=True, eq=False)
class Strangers:
    """Pictures of each class, and their distances to the nearest other classes of what they search, nearest first.

    Args:
        labels: The class of each picture.
        distances: Distances to the nearest classes; infinite if there are fewer.
        classes: These classes.
    """

    labels: Int64[Tensor, " queries"]
    distances: Float64[Tensor, "queries nearest"]
    classes: Int64[Tensor, "queries nearest"]

    def threshold(self, rate: float) -> float:
        """Return the largest threshold with this false accept rate."""
        return threshold_at(self.distances[:, 0], rate)

    def passed(self, threshold: float) -> float:
        """Return the share of the pictures that pass a threshold."""
        return _share(self.distances[:, 0] <= threshold)

    def span(self, rate: float) -> tuple[float, float]:
        """Return the 5 % and 95 % quantiles of the false accepts of half of the classes at the other half's threshold.

        Both are NaN if there are fewer than `FEWEST_CLASSES` classes.
        """
        names, own = self.labels.unique(return_inverse=True)
        if len(names) < FEWEST_CLASSES:
            return math.nan, math.nan
        generator, shares = torch.Generator().manual_seed(0), []
        for _ in range(_HALVES):
            strange = torch.randperm(len(names), generator=generator) >= len(names) // 2
            is_absent = torch.zeros(int(max(names.max(), self.classes.max())) + 1, dtype=torch.bool)
            is_absent[names[strange]] = True
            nearest = self.distances.masked_fill(is_absent[self.classes], torch.inf).amin(1)
            queries = strange[own]
            shares.append(_share(nearest[queries] <= threshold_at(nearest[~queries], rate)))
        low, high = torch.tensor(shares, dtype=torch.float64).quantile(torch.tensor([0.05, 0.95], dtype=torch.float64))
        return float(low), float(high)


def calibrate(
    model: Embedder | str | os.PathLike[str] | None = None,
    source: str | os.PathLike[str] | Rows | None = None,
    *,
    gallery: Gallery | str | os.PathLike[str] | None = None,
    split: HeldOutSplit | None = None,
    new_images: NewImages = "leave",
    rate: float = 0.01,
    batch_size: int = 64,
    workers: int = 0,
    keep: bool = True,
    report: Callable[[str], object] | None = None,
) -> Calibration:
    r"""Learn a threshold on the distance from classes on which a model was not trained.

    Each picture searches the pictures of all *other* classes, as a picture of an unknown class would: $d^-$ is the
    distance to its nearest neighbour among them. It is a false accept at a threshold $\tau$ if $d^- \le \tau$. The
    threshold for a false accept rate r is the largest with at most this share of false accepts among N pictures:

    $$\tau_r = \max \{\tau : |\{i : d^-_i \le \tau\}| \le r N\}$$

    The rate counts queries that search as many pictures as here, not pairs of pictures. In a larger gallery there are
    more false accepts, and pictures that resemble known classes are accepted more often. With `gallery`, the threshold
    is learnt by searching that gallery, and kept in it.

    If the gallery made its vectors by a head that was whitened or trained on its own rows, a class plays the unknown
    one with a head that was made without it: one for each of up to 20 parts of the classes if it was whitened, ten if
    it was trained.

    Args:
        model: The model, or its path or name. With `gallery`, None takes the gallery's.
        source: Labelled pictures (a folder or a table), or a file of labelled vectors, or its content; None takes the
            validation classes of the run. Classes in the run's training are left out, and those in its test if there
            are others. With `gallery`, pictures of unknown classes; those without a label count as one class.
        gallery: A gallery, whose labelled pictures are searched. Without `source`, each of its classes in turn plays
            the unknown class, except those in the run's training; at most 10,000 random pictures are queries.
        split: ``validation`` or ``test`` takes only these classes of the run. After calibration on the test classes,
            results on them are too good.
        new_images: ``join`` adds pictures that came after the run began to the split of their class, ``leave`` leaves
            them out.
        rate: The false accept rate, in (0, 1). If the pictures are too few to measure it, the smallest rate that they
            can measure is taken.
        batch_size: Pictures per batch of the network.
        workers: Processes that read pictures.
        keep: Keep the threshold in the gallery or, without one, in ``calibration.json`` beside the model. A threshold
            of a pretrained network that is given by its name is not kept without a gallery.
        report: Called with notes for the user, such as on a replaced threshold. None logs them.

    Returns:
        The threshold with the range of its false accepts, and a threshold of groups for `cluster`.

    Raises:
        UserError: If there are no held-out classes, or a file cannot be read or written.
        ValueError: If an argument is out of its range, or there are fewer than two classes.

    >>> from torch import nn
    >>> rows = torch.tensor([[0.0, 1.0], [0.1, 1.0], [1.0, 0.0], [1.0, 0.2], [-1.0, 0.0], [-1.0, 0.3]])
    >>> vectors = Rows.of(rows, label=["a", "a", "b", "b", "c", "c"])
    >>> embedder = Embedder(nn.Flatten(), lambda image: torch.zeros(2, 1, 1))
    >>> found = calibrate(embedder, vectors, rate=0.34)
    >>> round(found.threshold, 2), round(found.false_accepts, 2), found.true_accepts
    (0.71, 0.33, 1.0)
    """
    report = report or getLogger("proxemic").info
    check_rate(rate)
    if split not in (None, *get_args(HeldOutSplit)):
        raise ValueError(f"split is {split!r} but must be validation or test")
    reading: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "report": report}
    if new_images == "join" and (source is not None or gallery is not None):
        raise UserError("new_images adds to the split of a run: leave it out, or the source and the gallery.")
    if gallery is not None:
        if split is not None or isinstance(source, Rows):
            raise UserError(
                "With a gallery, unknown pictures are read from a source: leave the split or the vectors out."
            )
        gallery = _open(gallery, model)
        checksum, path = gallery.store.info.embedder, gallery.model_path
        held_out = read_gallery(gallery, source, **reading)
    elif model is None:
        raise UserError("Nothing says which distances are meant: give a model, or a gallery (--gallery).")
    else:
        embedder = model if isinstance(model, Embedder) else Embedder.load(model)
        checksum, path = embedder.checksum, embedder.path
        held_out = _embed_held_out(embedder, source, split, new_images, **reading)
    if len(held_out.labels.unique()) < 2:
        raise UserError(f"{held_out.description} has only one class, but thresholds tell one from others: give more.")
    strangers = find_strangers(held_out, report)
    images = len(strangers.labels)
    if images * rate < 1:
        report(f"{images:,} pictures measure no false accept rate below {1 / images:g}, which is taken.")
        rate = 1 / images
    threshold = strangers.threshold(rate)
    own = nearest_others(
        held_out.vectors,
        held_out.labels,
        distance=held_out.distance,
        sequences=held_out.sequences,
        queries=held_out.queries,
    )
    calibration = Calibration(
        checksum,
        held_out.distance,
        held_out.description,
        len(strangers.labels.unique()),
        images,
        len(held_out.labels),
        rate,
        threshold,
        strangers.passed(threshold),
        *strangers.span(rate),
        _share(own.correct & (own.distances <= threshold)),
        _grouping(held_out),
        None if path is None else RunDirectory.of_model(path).stopped,
    )
    if keep and gallery is not None:
        if (kept := gallery.store.calibration) is not None:
            _report_replaced(kept, gallery.store.address, strangers, report)
        gallery.store.keep_calibration(calibration.to_json())
    elif keep and path is not None and not is_cached(path):
        if (file := calibration_file(path)).exists():
            _report_replaced(read_json(file), file, strangers, report)
        calibration.write(path)
    return calibration


def threshold_at(distances: Float64[Tensor, " queries"], rate: float) -> float:
    """Return the largest threshold that at most this share of the distances pass, in the middle between two of them."""
    ordered = distances.sort().values
    refused = ordered[int((torch.arange(1, len(ordered) + 1, dtype=torch.float64) / len(ordered) <= rate).sum())]
    passed = ordered[ordered < refused]
    if not len(passed):
        return math.nextafter(float(refused), -math.inf)
    return float((passed[-1] + refused) / 2) if refused.isfinite() else float(passed[-1])


def _share(kind: Tensor) -> float:
    return int(kind.sum()) / len(kind) if len(kind) else math.nan


def find_strangers(held_out: HeldOut, report: Callable[[str], object]) -> Strangers:
    """Search the nearest other classes of each picture that plays an unknown one."""
    vectors, labels, finding = held_out.vectors, held_out.labels, {"distance": held_out.distance, "k": _NEAREST}
    rows = torch.arange(len(labels)) if held_out.queries is None else held_out.queries
    if held_out.unknown is not None:
        unknown, own = held_out.unknown
        return Strangers(own, *nearest_other_classes(unknown, own, vectors, labels, **finding))
    if held_out.features is None or held_out.feature_labels is None or held_out.head is None:
        found = nearest_other_classes(vectors[rows], labels[rows], vectors, labels, **finding)
        return Strangers(labels[rows], *found)
    features, groups = held_out.features, held_out.feature_labels.clone()
    is_labelled, most = groups >= 0, _HEADS
    if held_out.head == "whitened":
        most = min(_WHITENINGS, max(_HEADS, _TRANSFORMED // len(features)))
    classes = int(labels.max()) + 1
    part = torch.randperm(classes, generator=torch.Generator().manual_seed(0)) % min(classes, most)
    groups[is_labelled] = part[groups[is_labelled]]
    report(f"{int(part.max()) + 1} heads are made, each without some classes, which then play the unknown ones.")
    found = []
    for group, head in heads_without(features, held_out.feature_labels, groups, held_out.head, dim=vectors.shape[1]):
        own = rows[part[labels[rows]] == group]
        if len(own):
            with torch.no_grad():
                made = normalize(head(features[is_labelled]), dim=1)
            found.append((labels[own], *nearest_other_classes(made[own], labels[own], made, labels, **finding)))
    return Strangers(*(torch.cat(item) for item in zip(*found, strict=True)))


def _grouping(held_out: HeldOut) -> float:
    """Learn the distance at which groups agree best with classes, from some pictures of known classes."""
    rows = torch.arange(len(held_out.labels)) if held_out.queries is None else held_out.queries
    if len(rows) > _GROUPED:
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:_GROUPED]]
    x = held_out.vectors[rows].float()
    x, labels = (unit_rows(x) if held_out.distance == "cosine" else x), held_out.labels[rows]
    kept = x.any(1)  # a zero vector has no cosine distance
    return best_cut(*average_linkage(x[kept], held_out.distance), labels[kept])


def _report_replaced(
    content: Mapping[str, Any], owner: object, strangers: Strangers, report: Callable[[str], object]
) -> None:
    """Describe the threshold to be replaced, and how many unknown pictures pass it."""
    try:
        old = Calibration.from_json(content, owner)
    except UserError as error:
        report(f"Replaced: {error}")
    else:
        report(
            f"Replaced: the threshold {format_threshold(old.threshold)} for a rate of {old.rate:g}, which was learnt "
            f"from {old.images:,} pictures of {old.classes:,} classes ({old.data}). "
            f"{100 * strangers.passed(old.threshold):.2f} % of the unknown pictures here pass it."
        )


def _open(gallery: Gallery | str | os.PathLike[str], model: Embedder | str | os.PathLike[str] | None) -> Gallery:
    """Open a gallery with its own model, or a given one, which may be the name of the network of its own model."""
    gallery = gallery if isinstance(gallery, Gallery) else Gallery.open(gallery)
    if model is None:
        return gallery
    if not isinstance(model, Embedder):
        if is_pretrained_name(model) and gallery.store.info.features is not None:
            own = gallery.embedder.model
            if isinstance(own, EmbeddingModel) and own.config.backbone == str(model).removeprefix(TIMM):
                return gallery
        model = load_for(model, gallery.store.info)
    return Gallery(gallery.store, model)


def _embed_held_out(
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
    return HeldOut(torch.from_numpy(rows.embeddings), rows.numbers("label")[0], name, embedder.distance, sequences)


def read_gallery(
    gallery: Gallery,
    source: str | os.PathLike[str] | None,
    *,
    batch_size: int,
    workers: int,
    report: Callable[[str], object],
) -> HeldOut:
    """Read the labelled pictures of a gallery, and embed pictures of unknown classes if a source is given."""
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
            f"{path} was trained on all classes of {address}, so that none can take the part of an unknown one: give "
            "pictures of unknown classes (--data.root)."
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
        report(f"{left_out:,} of {len(given):,} pictures belong to classes that were trained on: left out.")
    number = {name: at for at, name in enumerate(sorted({*names, *filter(None, given)}))}
    # One class for all pictures without a label.
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
