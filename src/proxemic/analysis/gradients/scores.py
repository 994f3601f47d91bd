"""A proxy loss as a function of its class scores, and how much its gradients change with things other than themselves.

Gradients are compared, not second derivatives taken: a loss may hold a value without gradient (the warp's Δ), through
which autograd's second derivative is not the derivative of the gradient that training follows.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from proxemic.losses import ProxyLoss
from proxemic.losses.scores.sampling import SamplingWeights
from proxemic.losses.scores.scoring import reduce_scores, sum_negatives
from proxemic.losses.scores.similarity import Cosine, unit

# A gradient below this share of the largest may be what a cancellation left over: its changes count in proportion.
_FLOOR = 1e-6


@contextmanager
def at_rest(loss: nn.Module) -> Iterator[None]:
    """Evaluation mode: no running statistic of the loss moves, and no margin is drawn."""
    training = loss.training
    loss.eval()
    try:
        yield
    finally:
        loss.train(training)


def score_gradients(
    loss: ProxyLoss,
    scores: Float[Tensor, "batch classes"],
    labels: Int[Tensor, " batch"],
    embeddings: Float[Tensor, "batch dim"],
) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch dim"]]:
    """The gradients of a loss with respect to given class scores, and to the embeddings that it reads beside them.

    Columns beyond the classes of the loss stand for its first classes again. Raises a `ValueError` if a gradient is not
    finite.
    """
    device, columns = loss.proxies.device, scores.shape[1]
    labels, bias = labels.to(device), loss.class_bias()
    if bias is not None:
        bias = bias.to(device, scores.dtype)[torch.arange(columns, device=device) % loss.num_classes]
    with torch.enable_grad():
        leaves = tuple(tensor.detach().to(device).requires_grad_() for tensor in (scores, embeddings))
        target = leaves[0].detach().gather(1, labels.unsqueeze(1)).squeeze(1)
        scoring = loss.step_scoring(lambda: target, leaves[1].detach())
        sampling = SamplingWeights(columns, bias=bias)
        positive, negative = reduce_scores(leaves[0], labels, scoring, sampling)
        value = loss.objective(positive, negative, labels, leaves[1]).mean()
        if loss.label_smoothing:
            total = sum_negatives(leaves[0], labels, scoring, sampling)
            value = loss.smoothed(value, positive, labels, leaves[1], total).mean()
        by_score, by_embedding = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
    if not (by_score.isfinite().all() and by_embedding.isfinite().all()):
        raise ValueError(f"loss is a {type(loss).__name__} with a gradient that is not finite: check its objective.")
    return by_score.cpu(), by_embedding.cpu()


def relative_change(
    before: Float[Tensor, "batch n"], after: Float[Tensor, "batch n"], largest: Float[Tensor, ""]
) -> Float[Tensor, "batch n"]:
    """``|g' − g| / max(|g|, |g'|)``, where gradients far below the largest count in proportion to it."""
    floor = (_FLOOR * largest).clamp(min=torch.finfo(before.dtype).tiny)
    return (after - before).abs() / torch.maximum(before.abs(), after.abs()).clamp(min=floor)


def uniform(generator: torch.Generator, *shape: int) -> Float[Tensor, "..."]:
    """Random float64 numbers from 0 to 1."""
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def random_scores(
    loss: ProxyLoss, labels: Int[Tensor, " batch"], columns: int, generator: torch.Generator, *, ranges: int
) -> tuple[Float[Tensor, "batch columns"], float]:
    """Class scores from the whole range of the similarity, and one unit of the logits, or 0.25 of a cosine if less.

    Distances have no natural unit: as many ranges of them as given, one or one per row, reach from 1/16 to 256, so that
    a warp anywhere shows.
    """
    rows = len(labels)
    # The negatives of a row near each other and far apart, so that those of a sharp loss compete; its positive
    # anywhere, which makes up for a margin of many units of the logits in some of the rows.
    share = torch.lerp(uniform(generator, rows, 1), uniform(generator, rows, 1), uniform(generator, rows, columns))
    share.scatter_(1, labels.unsqueeze(1), uniform(generator, rows, 1))
    step = 1 / loss.scoring.scale
    if isinstance(loss.scoring.similarity, Cosine):
        step = min(step, 0.25)
        return 1 - (2 - step) * share, step
    return -share * 2 ** (12 * uniform(generator, ranges, 1) - 4), step


def random_embeddings(rows: int, dim: int, generator: torch.Generator) -> Float[Tensor, "rows dim"]:
    """Random directions with lengths from 1 to 256, which is what MagFace and AdaFace read."""
    directions = unit(torch.randn(rows, dim, generator=generator, dtype=torch.float64))
    return directions * 2 ** (8 * uniform(generator, rows, 1))


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
