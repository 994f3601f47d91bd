"""Learn a threshold on the distance from classes on which a model was not trained."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from logging import getLogger
from typing import Any, get_args

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.nn.functional import normalize

from proxemic.addresses import TIMM, is_pretrained_name
from proxemic.data.rows import Rows
from proxemic.data.sources.own_source import NewImages
from proxemic.errors import UserError
from proxemic.files import read_json
from proxemic.metrics import FEWEST_CLASSES
from proxemic.metrics.clustering import unit_rows
from proxemic.metrics.open_set import nearest_other_classes, nearest_others
from proxemic.models import EmbeddingModel
from proxemic.retrieval.curation.clustering import average_linkage, best_cut
from proxemic.retrieval.galleries.gallery import Gallery
from proxemic.retrieval.galleries.models import load_for
from proxemic.retrieval.improving.improvement import heads_without
from proxemic.retrieval.searching.held_out import HeldOut, HeldOutSplit, embed_held_out, read_gallery
from proxemic.retrieval.searching.thresholds import Calibration, calibration_file, check_rate, format_threshold
from proxemic.retrieval.vectors.embedder import Embedder
from proxemic.runs.directory import RunDirectory
from proxemic.runs.pretrained import is_cached

_GROUPED = 5_000  # most images that learn the threshold for groups: 200 MB of distances
_HALVES = 200
_NEAREST = 32  # classes kept for each query: all of them are in the other half once in 4 billion times
_WHITENINGS, _HEADS = 20, 10  # most parts of the classes, each of which is left out of a head
_TRANSFORMED = 200_000  # embeddings that all whitenings together transform, if that makes more than `_HEADS` parts


@dataclass(frozen=True, eq=False)
class Strangers:
    """Images of unknown classes, with their distances to the nearest other classes that they search, nearest first.

    Args:
        labels: The class of each image.
        distances: Distances to the nearest classes; infinite if there are fewer.
        classes: The nearest classes.
    """

    labels: Int64[Tensor, " queries"]
    distances: Float64[Tensor, "queries nearest"]
    classes: Int64[Tensor, "queries nearest"]

    def threshold(self, rate: float) -> float:
        """Return the largest threshold with this false accept rate."""
        return threshold_at(self.distances[:, 0], rate)

    def passed(self, threshold: float) -> float:
        """Return the fraction of the images that pass a threshold."""
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

    Each image searches the images of all *other* classes, as an image of an unknown class would: $d^-$ is the distance
    to its nearest neighbour among them. It is a false accept at a threshold $\tau$ if $d^- \le \tau$. The threshold for
    a false accept rate r is the largest with at most this fraction of false accepts among N images:

    $$\tau_r = \max \{\tau : |\{i : d^-_i \le \tau\}| \le r N\}$$

    The rate counts queries, not pairs of images, and holds for queries that search as many images as here. In a larger
    gallery there are more false accepts, and images that resemble known classes are accepted more often. With
    `gallery`, the threshold is learnt by searching that gallery, and kept in it.

    If the gallery made its vectors by a head that was whitened or trained on its own rows, a class is searched as
    unknown with a head that was made without that class. There is one head for each of up to 20 parts of the classes if
    the head was whitened, and of ten parts if it was trained.

    Args:
        model: The model, or its path or name. With `gallery`, None takes the gallery's.
        source: Labelled images (a folder or a table), or a file of labelled vectors, or its content; None takes the
            validation classes of the run. Classes in the run's training are left out, and those in its test if there
            are others. With `gallery`, images of unknown classes; those without a label count as one class.
        gallery: A gallery, whose labelled images are searched. Without `source`, each of its classes in turn is the
            unknown class, except those in the run's training; at most 10,000 random images are queries.
        split: ``validation`` or ``test`` takes only these classes of the run. After calibration on the test classes,
            results on them are too good.
        new_images: ``join`` adds images that came after the run began to the split of their class, ``leave`` leaves
            them out.
        rate: The false accept rate, in (0, 1). If the images are too few to measure it, the smallest rate that they can
            measure is taken.
        batch_size: Images per batch of the network.
        workers: Processes that read images.
        keep: Keep the threshold in the gallery or, without one, in ``calibration.json`` next to the model. Without a
            gallery, a threshold of a pretrained network that is given by its name is not kept.
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
                "With a gallery, unknown photos are read from a source: leave the split or the vectors out."
            )
        gallery = _open(gallery, model)
        checksum, path = gallery.store.info.embedder, gallery.model_path
        held_out = read_gallery(gallery, source, **reading)
    elif model is None:
        raise UserError("Nothing says which distances are meant: give a model, or a gallery (--gallery).")
    else:
        embedder = model if isinstance(model, Embedder) else Embedder.load(model)
        checksum, path = embedder.checksum, embedder.path
        held_out = embed_held_out(embedder, source, split, new_images, **reading)
    if len(held_out.labels.unique()) < 2:
        raise UserError(f"{held_out.description} has only one class, but thresholds tell one from others: give more.")
    if held_out.made is not None:
        report(f"{held_out.made}.")
    strangers = find_strangers(held_out, report)
    images = len(strangers.labels)
    if images * rate < 1:
        report(f"{images:,} photos measure no false accept rate below {1 / images:g}, which is taken.")
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
    """Return the largest threshold that at most this fraction of the distances pass, halfway between two of them."""
    ordered = distances.sort().values
    refused = ordered[int((torch.arange(1, len(ordered) + 1, dtype=torch.float64) / len(ordered) <= rate).sum())]
    passed = ordered[ordered < refused]
    if not len(passed):
        return math.nextafter(float(refused), -math.inf)
    return float((passed[-1] + refused) / 2) if refused.isfinite() else float(passed[-1])


def _share(kind: Tensor) -> float:
    return int(kind.sum()) / len(kind) if len(kind) else math.nan


def find_strangers(held_out: HeldOut, report: Callable[[str], object]) -> Strangers:
    """Find the nearest other classes of each image of an unknown class."""
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
    report(f"{int(part.max()) + 1} heads are made, each without some classes, which then are the unknown ones.")
    found = []
    for group, head in heads_without(features, held_out.feature_labels, groups, held_out.head, dim=vectors.shape[1]):
        own = rows[part[labels[rows]] == group]
        if len(own):
            with torch.no_grad():
                made = normalize(head(features[is_labelled]), dim=1)
            found.append((labels[own], *nearest_other_classes(made[own], labels[own], made, labels, **finding)))
    return Strangers(*(torch.cat(item) for item in zip(*found, strict=True)))


def _grouping(held_out: HeldOut) -> float:
    """Learn the distance at which groups agree best with classes from some images of known classes."""
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
    """Describe the threshold to be replaced, and how many unknown images pass it."""
    try:
        old = Calibration.from_json(content, owner)
    except UserError as error:
        report(f"Replaced: {error}")
    else:
        report(
            f"Replaced: the threshold {format_threshold(old.threshold)} for a rate of {old.rate:g}, which was learnt "
            f"from {old.images:,} photos of {old.classes:,} classes ({old.data}). "
            f"{100 * strangers.passed(old.threshold):.2f} % of the unknown photos here pass it."
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
