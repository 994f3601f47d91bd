"""How much the gradients of a proxy loss change with things other than themselves.

Class scores are drawn at random, some of them are changed, and the gradients of the *others* are compared before and
after. Gradients are compared, not second derivatives taken: a loss may hold a value without gradient (the warp's Δ),
through which autograd's second derivative is not the derivative of the gradient that training follows.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from proxemic.analysis.gradients.scores import (
    random_embeddings,
    random_scores,
    relative_change,
    score_gradients,
    uniform,
)
from proxemic.losses import ProxyLoss
from proxemic.losses.scores.similarity import Cosine


def batch_labels(num_classes: int) -> Int[Tensor, " batch"]:
    """Up to 16 classes once, then the first half of them again: classes with one sample and with two.

    >>> batch_labels(4)
    tensor([0, 1, 2, 3, 0, 1])
    """
    classes = torch.arange(min(num_classes, 16))
    return torch.cat((classes, classes[: len(classes) // 2]))


def gradient_changes(loss: ProxyLoss, generator: torch.Generator) -> dict[str, float]:
    """The largest relative changes in one random batch, by the names of the fields of `Characteristics`."""
    labels = batch_labels(loss.num_classes)
    scores, falls, step = _draw(loss, labels, generator)
    here, there = (random_embeddings(len(labels), loss.embedding_size, generator) for _ in range(2))
    by_score, by_embedding = score_gradients(loss, scores, labels, here)
    first = len(labels.unique())
    positive = torch.zeros_like(scores, dtype=torch.bool).scatter(1, labels.unsqueeze(1), value=True)
    sample = torch.arange(len(labels)).unsqueeze(1)
    again, single = sample >= first, (sample >= len(labels) - first) & (sample < first)
    # Half of the negatives of every sample and of every class.
    half = ~positive & ((sample + torch.arange(scores.shape[1])) % 2 == 0)

    def change(moved: Tensor, watched: Tensor) -> float:
        after, _ = score_gradients(loss, scores - falls * moved, labels, here)
        return _largest_change(by_score, after, watched)

    others = score_gradients(loss, scores - falls * again, labels, torch.where(again, there, here))
    lower, _ = score_gradients(loss, scores - step, labels, here)
    return {
        "other_samples": _largest_change(by_score, others[0], ~again),
        "other_embeddings": _largest_change(by_embedding, others[1], ~again),
        "shift": _largest_change(by_score, lower, torch.ones_like(again)),
        "same_class": change(positive & again, positive & ~again & ~single),
        "other_classes": change(positive & ~single, positive & single),
        "negatives": change(half, ~positive & ~half),
        "opposite": max(change(~positive, positive), change(positive, ~positive)),
    }


def _draw(
    loss: ProxyLoss, labels: Int[Tensor, " batch"], generator: torch.Generator
) -> tuple[Float[Tensor, "batch columns"], Float[Tensor, "batch columns"], float]:
    """Scores, how far each of them may fall, and how far all may."""
    rows, columns = len(labels), len(labels) + 4  # negatives also from classes without a sample
    scores, step = random_scores(loss, labels, columns, generator, ranges=rows)
    # Half of the positives a little below the highest negative.
    target = labels.unsqueeze(1)
    below = scores.scatter(1, target, -torch.inf).amax(1, keepdim=True) - 8 * step * uniform(generator, rows, 1)
    if isinstance(loss.scoring.similarity, Cosine):
        below = below.clamp(min=step - 1)
    near = torch.where(uniform(generator, rows, 1) < 0.5, below, scores.gather(1, target))
    return scores.scatter(1, target, near), step * uniform(generator, rows, columns), step


def _largest_change(
    before: Float[Tensor, "batch n"], after: Float[Tensor, "batch n"], watched: Bool[Tensor, "batch #n"]
) -> float:
    """``max |g' − g| / max(|g|, |g'|)`` over the watched gradients."""
    largest = torch.maximum(before.abs(), after.abs()).amax()
    return relative_change(before, after, largest)[watched.expand_as(before)].amax().item()
