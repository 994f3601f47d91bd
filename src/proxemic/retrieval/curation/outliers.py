"""Pictures that are like no other."""

import torch
from jaxtyping import Float, Float32, Shaped
from torch import Tensor

from proxemic.metrics import Distance
from proxemic.metrics.arrays import as_integers, take_arrays
from proxemic.retrieval.curation.suspects import nearest_others

NEAREST = 5
LIMIT = 3.5  # of Iglewicz and Hoaglin


@take_arrays("embeddings", "copies")
def outlier_scores(
    embeddings: Float[Tensor, "rows dim"],
    *,
    distance: Distance = "cosine",
    copies: Shaped[Tensor, " rows"] | None = None,
) -> Float32[Tensor, " rows"]:
    r"""How much farther than usual the nearest rows are: a modified z-score.

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
    near, _ = nearest_others(x, min(NEAREST, len(x) - 1), distance, copies)
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
