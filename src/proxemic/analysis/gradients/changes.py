"""How much the gradients of a proxy loss change with things other than themselves.

Class scores are drawn at random, some of them are changed, and the gradients of the *others* are compared before and
after. Gradients are compared, not second derivatives taken: a loss may hold a value without gradient (the warp's Δ),
through which autograd's second derivative is not the derivative of the gradient that training follows.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from proxemic.analysis.gradients.scores import random_embeddings, relative_change, score_gradients
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
    """The largest relative changes in one batch; the names are those of `Characteristics`.

    Raises:
        ValueError: If a gradient is not finite.
    """
    draw = _Draw.of(loss, generator)
    scores, embeddings = draw.gradients(draw.scores, draw.embeddings)
    labels, first = draw.labels, len(draw.labels.unique())
    positive = torch.zeros_like(draw.scores, dtype=torch.bool).scatter(1, labels.unsqueeze(1), value=True)
    sample = torch.arange(len(labels)).unsqueeze(1)
    again, single = sample >= first, (sample >= len(labels) - first) & (sample < first)
    # Half of the negatives of every sample and of every class.
    half = ~positive & ((sample + torch.arange(draw.scores.shape[1])) % 2 == 0)

    def change(moved: Tensor, watched: Tensor) -> float:
        return _largest_change(scores, draw.gradients(draw.scores - draw.falls * moved, draw.embeddings)[0], watched)

    there = draw.gradients(draw.scores - draw.falls * again, torch.where(again, draw.other_embeddings, draw.embeddings))
    lower, _ = draw.gradients(draw.scores - draw.step, draw.embeddings)
    return {
        "other_samples": _largest_change(scores, there[0], ~again),
        "other_embeddings": _largest_change(embeddings, there[1], ~again),
        "shift": _largest_change(scores, lower, torch.ones_like(again)),
        "same_class": change(positive & again, positive & ~again & ~single),
        "other_classes": change(positive & ~single, positive & single),
        "negatives": change(half, ~positive & ~half),
        "opposite": max(change(~positive, positive), change(positive, ~positive)),
    }


@dataclass(frozen=True)
class _Draw:
    """Random scores and embeddings, and how far the scores may fall."""

    loss: ProxyLoss
    labels: Int[Tensor, " batch"]
    scores: Float[Tensor, "batch classes"]
    falls: Float[Tensor, "batch classes"]
    step: float
    embeddings: Float[Tensor, "batch dim"]
    other_embeddings: Float[Tensor, "batch dim"]

    @classmethod
    def of(cls, loss: ProxyLoss, generator: torch.Generator) -> "_Draw":
        def uniform(*shape: int) -> Tensor:
            return torch.rand(shape, generator=generator, dtype=torch.float64)

        labels = batch_labels(loss.num_classes)
        size = (len(labels), len(labels) + 4)  # negatives also from classes without a sample
        # Negatives near each other and far apart; a positive anywhere, which makes up for a margin of many units of the
        # logits in some of the samples, or a little below the highest negative.
        target = labels.unsqueeze(1)
        share = torch.lerp(uniform(size[0], 1), uniform(size[0], 1), uniform(*size))
        share.scatter_(1, target, uniform(size[0], 1))
        step, lowest = 1 / loss.scoring.scale, -torch.inf
        if isinstance(loss.scoring.similarity, Cosine):
            step = min(step, 0.25)
            lowest = step - 1
            scores = 1 - (2 - step) * share
        else:
            # Minus distances, which have no natural unit: they reach from 1/16 to 256, so that a warp anywhere shows.
            scores = -share * 2 ** (12 * uniform(size[0], 1) - 4)
        below = scores.scatter(1, target, -torch.inf).amax(1, keepdim=True) - 8 * step * uniform(size[0], 1)
        near = torch.where(uniform(size[0], 1) < 0.5, below.clamp(min=lowest), scores.gather(1, target))
        scores = scores.scatter(1, target, near)
        falls = step * uniform(*size)
        embeddings = [random_embeddings(len(labels), loss.embedding_size, generator) for _ in range(2)]
        return cls(loss, labels, scores, falls, step, *embeddings)

    def gradients(self, scores: Tensor, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        return score_gradients(self.loss, scores, self.labels, embeddings)


def _largest_change(
    before: Float[Tensor, "batch n"], after: Float[Tensor, "batch n"], watched: Bool[Tensor, "batch #n"]
) -> float:
    """``max |g' − g| / max(|g|, |g'|)`` over the watched gradients."""
    largest = torch.maximum(before.abs(), after.abs()).amax()
    return relative_change(before, after, largest)[watched.expand_as(before)].amax().item()
