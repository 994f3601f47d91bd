"""Which class scores the gradient of another class score depends on: figure 1 of the MPA paper, measured."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from proxemic.analysis.gradients.scores import at_rest, random_embeddings, relative_change, score_gradients
from proxemic.losses import ProxyLoss
from proxemic.losses.checks import check_count
from proxemic.losses.scores.similarity import Cosine

THRESHOLD = 1e-6
"""Rounding changes a gradient by about 1e-13 of itself; a score that enters, by more than this in some draw."""


def score_dependence(
    loss: ProxyLoss, labels: Int[Tensor, " batch"], *, draws: int = 128, seed: int = 0
) -> Float[Tensor, "batch classes batch classes"]:
    """How much ``∂L/∂S_ic``, of embedding i and class c, changes as the one score ``S_kd`` falls: ``[i, c, k, d]``.

    The largest of ``|g' − g| / max(|g|, |g'|)``, 0 to 2, over random scores from the whole range of the loss's
    similarity; a score falls by up to one unit of the logits. First gradients before and after are compared, as a loss
    may hold values without gradient.

    Args:
        loss: Any proxy loss; it is left as it is. What it computes from embeddings beside the scores stays the same.
        labels: Class of each embedding, from 0; the classes are those up to the largest, at least two.
        draws: Number of draws of random scores, at least 1; below a few dozen a sharp loss may hide a dependence.
        seed: Seed of the draws.

    Raises:
        ValueError: If an argument is not allowed.

    Source: Saeki et al., Multi-Proxy Anchor Family Loss for Several Types of Gradients, figure 1 and equations 5 to 18.

    >>> from proxemic.losses import ProxyAnchorLoss
    >>> found = score_dependence(ProxyAnchorLoss(3, 4), torch.tensor([0, 0, 1, 2]), draws=32)
    >>> (found[0, 1] > 1e-6).int()  # a negative of the proxy 1: all the negatives of that proxy
    tensor([[0, 1, 0],
            [0, 1, 0],
            [0, 0, 0],
            [0, 1, 0]], dtype=torch.int32)
    """
    if not isinstance(loss, ProxyLoss):
        raise ValueError(f"loss is a {type(loss).__name__}, but only proxy losses have class scores: pass a ProxyLoss.")
    check_count("draws", draws, 1, "128 are enough")
    check_count("seed", seed, 0, "it starts the random numbers")
    classes = int(labels.max()) + 1 if len(labels) else 0
    if not (2 <= classes <= loss.num_classes and labels.min() >= 0):
        raise ValueError(
            f"labels are {labels.tolist()}, but must name the loss's classes, 0 to {loss.num_classes - 1}, and any "
            "beside 0."
        )
    generator = torch.Generator().manual_seed(seed)
    largest = torch.zeros(len(labels), classes, len(labels), classes, dtype=torch.float64)
    with at_rest(loss):
        for _ in range(draws):
            largest = torch.maximum(largest, _changes(loss, labels, classes, generator))
    return largest


def _changes(
    loss: ProxyLoss, labels: Int[Tensor, " batch"], classes: int, generator: torch.Generator
) -> Float[Tensor, "batch classes batch classes"]:
    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    size, step = (len(labels), classes), 1 / loss.scoring.scale
    # Negatives of an embedding near each other and far apart, so that those of a sharp loss compete; its positive
    # anywhere, to make up for a margin.
    share = torch.lerp(uniform(size[0], 1), uniform(size[0], 1), uniform(*size))
    share.scatter_(1, labels.unsqueeze(1), uniform(size[0], 1))
    if isinstance(loss.scoring.similarity, Cosine):
        step = min(step, 0.25)
        scores = 1 - (2 - step) * share
    else:
        # Minus distances, which have no natural unit: they reach from 1/16 to 256, so that a warp anywhere shows.
        scores = -share * 2 ** (12 * uniform(1, 1) - 4)
    embeddings = random_embeddings(len(labels), loss.embedding_size, generator)
    before, falls = score_gradients(loss, scores, labels, embeddings)[0], step * (1 + uniform(*size)) / 2
    changes = torch.empty(*size, *size, dtype=torch.float64)
    for k, d in torch.cartesian_prod(torch.arange(size[0]), torch.arange(size[1])).tolist():
        lower = scores.clone()
        lower[k, d] -= falls[k, d]
        after = score_gradients(loss, lower, labels, embeddings)[0]
        changes[:, :, k, d] = relative_change(before, after, before.abs().max())
    return changes
