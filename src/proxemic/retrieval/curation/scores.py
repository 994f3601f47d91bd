"""Score how probably labels are wrong, and how little images resemble others, by their nearest neighbours."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float32, Int64, Shaped
from torch import Tensor
from tqdm import tqdm

from proxemic.metrics import Distance, nearest_neighbours
from proxemic.metrics.arrays import as_integers, take_arrays

# Values from 2 to 5, and from 10 to 100, change the average precision by less than 0.01.
NEAREST, SEARCHED = 3, 30
_AT_ONCE = 4096


class LabelScores(NamedTuple):
    """Suspicion that the label of each sample is wrong, and the suggested label.

    A score is in [0, 1], and above 0.5 if another class is nearer; it is NaN for samples that cannot be judged. The
    suggestion is -1 for these samples, and for samples without another class nearby.
    """

    scores: Float32[Tensor, " samples"]
    suggested: Int64[Tensor, " samples"]


@take_arrays("embeddings", "labels")
def wrong_label_scores(
    embeddings: Float[Tensor, "samples dim"], labels: Shaped[Tensor, " samples"], *, distance: Distance = "cosine"
) -> LabelScores:
    r"""Compare the distance of each sample to its own class with its distance to the nearest other class.

    With $d_c$ the mean distance to the three nearest other samples of class c, and y the label of the sample, the score
    is $d_y / (d_y + \min_{c \ne y} d_c)$. A network that was trained on a wrong label moves the image towards its wrong
    class, but the true class stays near. These scores therefore rank wrong labels better than a vote of the neighbours,
    some of which have wrong labels, too.

    Args:
        embeddings: Finite embeddings ``[samples, dim]``.
        labels: Class numbers ``[samples]``; samples with a number below 0 have no label and are ignored.
        distance: ``cosine`` or ``euclidean``.

    Returns:
        Scores and suggested classes. Samples that are alone in their class cannot be judged.

    Raises:
        ValueError: If an argument is out of its range or of a wrong shape.

    >>> points = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2], [0.15]])
    >>> scores, suggested = wrong_label_scores(points, torch.tensor([4, 4, 4, 7, 7, 7, 7]), distance="euclidean")
    >>> int(scores.argmax()), int(suggested[6]), round(float(scores[6]), 2)
    (6, 4, 0.98)
    """
    labels = as_integers("labels", labels, len(embeddings)).cpu()
    scores = torch.full((len(embeddings),), torch.nan)
    suggested = torch.full((len(embeddings),), -1)
    rows = (labels >= 0).nonzero()[:, 0]
    if len(rows) > 1:
        scores[rows], suggested[rows] = _score(embeddings.detach().cpu()[rows].float(), labels[rows], distance)
    return LabelScores(scores, suggested)


def leave_one_out_recall(
    embeddings: Float32[Tensor, "samples dim"],
    labels: Int64[Tensor, " samples"],
    copies: Int64[Tensor, " samples"],
    distance: Distance,
) -> tuple[float, int]:
    """Return the fraction of samples whose nearest other sample, ignoring copies, has their label, and their number.

    Samples without a label, and samples that are alone in their class, do not count; without any samples, the fraction
    is NaN.
    """
    rows = (labels >= 0).nonzero()[:, 0]
    classes = labels[rows]
    counted = classes.bincount()[classes] > 1 if len(rows) else torch.zeros(0, dtype=torch.bool)
    if not counted.any():
        return torch.nan, 0
    _, nearest = nearest_others(embeddings[rows], 1, distance, copies[rows])
    counted &= nearest[:, 0] >= 0
    same = classes[nearest[:, 0]] == classes
    return float(same[counted].double().mean()), int(counted.sum())


def _score(
    x: Float32[Tensor, "samples dim"], labels: Int64[Tensor, " samples"], distance: Distance
) -> tuple[Float32[Tensor, " samples"], Int64[Tensor, " samples"]]:
    distances, places = nearest_others(x, min(SEARCHED, len(x) - 1), distance)
    own = torch.full((len(x),), torch.nan)
    # Search each class by itself, as the nearest samples of all classes may have fewer than three of the sample's own.
    counts = labels.unique(return_counts=True)[1]
    for members in labels.argsort(stable=True).split(counts.tolist()):
        if len(members) > 1:
            own[members] = nearest_others(x[members], min(NEAREST, len(members) - 1), distance)[0].mean(1)
    parts = zip(distances.split(_AT_ONCE), labels[places].split(_AT_ONCE), labels.split(_AT_ONCE), strict=True)
    other, suggested = (torch.cat(item) for item in zip(*(_nearest_other_class(*part) for part in parts), strict=True))
    # Equal images in two classes score 0.5; samples without another class nearby score 0.
    scores = torch.where(other.isinf() & ~own.isnan(), 0.0, torch.where(own + other == 0, 0.5, own / (own + other)))
    suggested[scores.isnan()] = -1
    return scores, suggested


def _nearest_other_class(
    distances: Float32[Tensor, "samples k"], classes: Int64[Tensor, "samples k"], labels: Int64[Tensor, " samples"]
) -> tuple[Float32[Tensor, " samples"], Int64[Tensor, " samples"]]:
    """Return the mean distance to the three nearest samples of the nearest other class, and that class."""
    same = classes[:, :, None] == classes[:, None, :]
    rank = same.tril(-1).sum(2)  # how many samples of its class are nearer
    counted = same & (rank < NEAREST)[:, None, :]
    # Samples beyond the neighbours are at least as far as the last of them.
    missing = (NEAREST - counted.sum(2)) * distances[:, -1:]
    means = ((counted * distances[:, None, :]).sum(2) + missing) / NEAREST
    best, at = means.masked_fill(classes == labels[:, None], torch.inf).min(1)
    return best, torch.where(best.isfinite(), classes.gather(1, at[:, None])[:, 0], -1)


def nearest_others(
    x: Float32[Tensor, "samples dim"], k: int, distance: Distance, copies: Int64[Tensor, " samples"] | None = None
) -> tuple[Float32[Tensor, "samples k"], Int64[Tensor, "samples k"]]:
    """Find the k samples nearest to each sample, without itself and its copies, filled up with infinity and -1."""
    parts = []
    with tqdm(total=len(x), desc="comparing vectors", unit="sample", leave=False, disable=None, delay=2) as bar:
        for rows in torch.arange(len(x)).split(_AT_ONCE):
            found = nearest_neighbours(
                x[rows],
                x,
                k=k,
                distance=distance,
                exclude=rows,
                query_sequences=None if copies is None else copies[rows],
                gallery_sequences=copies,
            )
            parts.append(found)
            bar.update(len(rows))
    distances, places = zip(*parts, strict=True)
    return torch.cat(distances), torch.cat(places)


_COMPARED = 5  # nearest samples whose distances are averaged
LIMIT = 3.5  # as Iglewicz and Hoaglin recommend


@take_arrays("embeddings", "copies")
def outlier_scores(
    embeddings: Float[Tensor, "samples dim"],
    *,
    distance: Distance = "cosine",
    copies: Shaped[Tensor, " samples"] | None = None,
) -> Float32[Tensor, " samples"]:
    r"""Score how much farther than usual the nearest samples are, by a modified z-score.

    With $d$ the mean distance of a sample to its five nearest other samples, the score is
    $0.6745 (d - \tilde d) / \text{MAD}$, where $\tilde d$ is the median and MAD the median of $|d - \tilde d|$. If MAD
    is 0, the score is $(d - \tilde d) / (1.2533 \text{MeanAD})$. Samples above 3.5 are outliers (Iglewicz and Hoaglin,
    How to Detect and Handle Outliers, 1993).

    Args:
        embeddings: Finite embeddings ``[samples, dim]``.
        distance: ``cosine`` or ``euclidean``.
        copies: Group numbers ``[samples]``: samples with the same number from 0 on are copies of one image and are not
            compared with each other; samples below 0 have no copies.

    Returns:
        A score per sample.

    Raises:
        ValueError: If an argument is out of its range or of a wrong shape.

    >>> points = torch.tensor([[0.0], [0.1], [0.2], [0.3], [0.4], [0.5], [9.0]])
    >>> (outlier_scores(points, distance="euclidean") > 3.5).nonzero().flatten()
    tensor([6])
    """
    if copies is not None:
        copies = as_integers("copies", copies, len(embeddings)).cpu()
    if len(embeddings) < 3:
        return torch.zeros(len(embeddings))
    x = embeddings.detach().cpu().float()
    near, _ = nearest_others(x, min(_COMPARED, len(x) - 1), distance, copies)
    there = near.isfinite()
    means = torch.where(there, near, 0.0).double().sum(1) / there.sum(1)
    known = means[~means.isnan()]
    if not len(known):
        return torch.zeros(len(x))
    middle = known.quantile(0.5)
    spread = (known - middle).abs().quantile(0.5) / 0.6745
    if spread == 0:
        spread = (known - middle).abs().mean() * 1.2533
    scores = (means - middle) / spread if spread > 0 else torch.zeros_like(means)
    return scores.nan_to_num(0.0).float()
