"""Scores of labels that are probably wrong, and of pictures that are like no other, by the neighbours of each row."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float32, Int64, Shaped
from torch import Tensor

from proxemic.metrics import Distance, nearest_neighbours
from proxemic.metrics.arrays import as_integers, take_arrays

# Both from 2 to 5, and from 10 to 100, made no difference beyond 0.01 of average precision.
NEAREST, SEARCHED = 3, 30
_AT_ONCE = 4096


class LabelScores(NamedTuple):
    """Probability that the label of each row is wrong, and the suggested label.

    A score is in [0, 1], above 0.5 where another class is nearer; NaN for rows that cannot be judged, whose suggestion
    is -1, as it is where no other class is near.
    """

    scores: Float32[Tensor, " rows"]
    suggested: Int64[Tensor, " rows"]


@take_arrays("embeddings", "labels")
def wrong_label_scores(
    embeddings: Float[Tensor, "rows dim"], labels: Shaped[Tensor, " rows"], *, distance: Distance = "cosine"
) -> LabelScores:
    r"""Compare the distance of each row to its own class with that to the nearest other class.

    With $d_c$ the mean distance to the three nearest other rows of class c, and y the label of the row, the score is
    $d_y / (d_y + \min_{c \ne y} d_c)$. A network that was trained on a wrong label draws the picture to its wrong
    class, but rarely closer than the class's own pictures are to each other, and the true class stays near: these
    scores rank well where a vote of the neighbours, some of them wrongly labelled, does not.

    Args:
        embeddings: Finite.
        labels: Numbers of classes; below 0 for rows without a label, which are neither judged nor asked.
        distance: Which distance.

    Returns:
        Scores and suggested classes. Rows that are alone in their class cannot be judged.

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
    embeddings: Float32[Tensor, "rows dim"],
    labels: Int64[Tensor, " rows"],
    copies: Int64[Tensor, " rows"],
    distance: Distance,
) -> tuple[float, int]:
    """Compute the share of rows whose nearest other row, copies aside, has their label, and of how many rows it is.

    Rows without a label, and those that are alone in their class, do not count; without any the share is NaN.
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
    x: Float32[Tensor, "rows dim"], labels: Int64[Tensor, " rows"], distance: Distance
) -> tuple[Float32[Tensor, " rows"], Int64[Tensor, " rows"]]:
    distances, places = nearest_others(x, min(SEARCHED, len(x) - 1), distance)
    own = torch.full((len(x),), torch.nan)
    # Classes are taken one by one, as the nearest rows of all need not hold three of the row's own.
    for members in _members(labels):
        if len(members) > 1:
            own[members] = nearest_others(x[members], min(NEAREST, len(members) - 1), distance)[0].mean(1)
    parts = zip(distances.split(_AT_ONCE), labels[places].split(_AT_ONCE), labels.split(_AT_ONCE), strict=True)
    other, suggested = (torch.cat(item) for item in zip(*(_nearest_other_class(*part) for part in parts), strict=True))
    # Equal pictures of two classes are as near to the one as to the other; where none of another is near, it is far.
    scores = torch.where(other.isinf() & ~own.isnan(), 0.0, torch.where(own + other == 0, 0.5, own / (own + other)))
    suggested[scores.isnan()] = -1
    return scores, suggested


def _nearest_other_class(
    distances: Float32[Tensor, "rows k"], classes: Int64[Tensor, "rows k"], labels: Int64[Tensor, " rows"]
) -> tuple[Float32[Tensor, " rows"], Int64[Tensor, " rows"]]:
    """Return the mean distance to the three nearest rows of the nearest other class, and that class."""
    same = classes[:, :, None] == classes[:, None, :]
    rank = same.tril(-1).sum(2)  # how many of its class are nearer
    counted = same & (rank < NEAREST)[:, None, :]
    # What is not among the neighbours is no nearer than the last of them.
    missing = (NEAREST - counted.sum(2)) * distances[:, -1:]
    means = ((counted * distances[:, None, :]).sum(2) + missing) / NEAREST
    best, at = means.masked_fill(classes == labels[:, None], torch.inf).min(1)
    return best, torch.where(best.isfinite(), classes.gather(1, at[:, None])[:, 0], -1)


def _members(labels: Int64[Tensor, " rows"]) -> tuple[Int64[Tensor, " members"], ...]:
    _, counts = labels.unique(return_counts=True)
    return labels.argsort(stable=True).split(counts.tolist())


def nearest_others(
    x: Float32[Tensor, "rows dim"], k: int, distance: Distance, copies: Int64[Tensor, " rows"] | None = None
) -> tuple[Float32[Tensor, "rows k"], Int64[Tensor, "rows k"]]:
    """Find the nearest rows to each, without itself and its copies; infinity and -1 where there are fewer."""
    return nearest_neighbours(
        x,
        x,
        k=k,
        distance=distance,
        exclude=torch.arange(len(x)),
        query_sequences=copies,
        gallery_sequences=copies,
    )


_COMPARED = 5  # nearest rows of each
LIMIT = 3.5  # of Iglewicz and Hoaglin


@take_arrays("embeddings", "copies")
def outlier_scores(
    embeddings: Float[Tensor, "rows dim"],
    *,
    distance: Distance = "cosine",
    copies: Shaped[Tensor, " rows"] | None = None,
) -> Float32[Tensor, " rows"]:
    r"""Score how much farther than usual the nearest rows are: a modified z-score.

    With $d$ the mean distance of each row to its five nearest others, the score is
    $0.6745 (d - \tilde d) / \text{MAD}$, where $\tilde d$ is the median and MAD the median of $|d - \tilde d|$; where
    that is 0, $(d - \tilde d) / (1.2533 \text{MeanAD})$. Above 3.5 a row is called an outlier (Iglewicz and Hoaglin,
    How to Detect and Handle Outliers, 1993).

    Args:
        embeddings: Finite.
        distance: Which distance.
        copies: Rows of one number, from 0, are copies of one picture, which are not compared with each other; below 0
            for none.

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
