"""Measure what the gradient of a proxy loss depends on: the six columns of Table 1 of the MPA paper.

Gradients at different scores are compared. Second derivatives would not do: a loss may contain a value without gradient
(the warp's Δ), so that autograd's second derivative is not the derivative of the gradient that training follows.
"""

import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

import proxemic.losses
from proxemic.losses import ProxyLoss, WarpedSoftmaxLoss
from proxemic.losses.checks import check_count
from proxemic.losses.scores.sampling import SamplingWeights
from proxemic.losses.scores.scoring import reduce_scores, sum_negatives
from proxemic.losses.scores.similarity import Cosine, unit
from proxemic.threads import cpu_threads

# A gradient below this fraction of the largest may be rounding error of a cancellation: its changes count less.
_FLOOR = 1e-6


@contextmanager
def at_rest(loss: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode, in which a loss updates no running statistics and draws no margins."""
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
    """Compute the gradients of a loss with respect to class scores, and to embeddings that the loss also reads.

    Columns beyond the number of classes repeat the first classes. `ValueError` is raised if a gradient is not finite.
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
    """Compute ``|g' − g| / max(|g|, |g'|)``, with a floor of `_FLOOR` times the largest in the denominator."""
    floor = (_FLOOR * largest).clamp(min=torch.finfo(before.dtype).tiny)
    return (after - before).abs() / torch.maximum(before.abs(), after.abs()).clamp(min=floor)


def uniform(generator: torch.Generator, *shape: int) -> Float[Tensor, "..."]:
    """Draw random float64 values from 0 to 1."""
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def random_scores(
    loss: ProxyLoss, labels: Int[Tensor, " batch"], columns: int, generator: torch.Generator, *, ranges: int
) -> tuple[Float[Tensor, "batch columns"], float]:
    """Draw class scores from the whole range of the similarity; return also one unit of the logits (at most 0.25).

    Distances have no natural unit: each of the ``ranges`` (1, or one per sample) reaches to a distance from 1/16 to
    256, so that a warp at any distance shows.
    """
    rows = len(labels)
    # The negatives of a sample are near each other or far apart, so that negatives of a sharp loss compete. The
    # positive is anywhere, so that some samples exceed a margin of many units of the logits.
    share = torch.lerp(uniform(generator, rows, 1), uniform(generator, rows, 1), uniform(generator, rows, columns))
    share.scatter_(1, labels.unsqueeze(1), uniform(generator, rows, 1))
    step = 1 / loss.scoring.scale
    if isinstance(loss.scoring.similarity, Cosine):
        step = min(step, 0.25)
        return 1 - (2 - step) * share, step
    return -share * 2 ** (12 * uniform(generator, ranges, 1) - 4), step


def random_embeddings(rows: int, dim: int, generator: torch.Generator) -> Float[Tensor, "rows dim"]:
    """Draw random directions with lengths from 1 to 256, which MagFace and AdaFace read."""
    directions = unit(torch.randn(rows, dim, generator=generator, dtype=torch.float64))
    return directions * 2 ** (8 * uniform(generator, rows, 1))


def batch_labels(num_classes: int) -> Int[Tensor, " batch"]:
    """Return up to 16 classes, and the first half of them again: classes with one sample and with two."""
    classes = torch.arange(min(num_classes, 16))
    return torch.cat((classes, classes[: len(classes) // 2]))


def gradient_changes(loss: ProxyLoss, generator: torch.Generator) -> dict[str, float]:
    """Measure the largest relative changes in a random batch, by field name of `Characteristics`."""
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
    """Draw scores; return the scores, how far each one falls, and how far all fall together."""
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
    """Compute ``max |g' − g| / max(|g|, |g'|)`` over the watched gradients."""
    largest = torch.maximum(before.abs(), after.abs()).amax()
    return relative_change(before, after, largest)[watched.expand_as(before)].amax().item()


# Rounding changes a gradient by a factor of about 1e-13; a real dependence, by 1e-2 or more in some draw.
_TOLERANCE = 1e-6


class Answer(StrEnum):
    """Whether a loss has a characteristic."""

    NO = "no"
    IN_PAIRS = "(yes)"
    """Only where the batch holds two samples of a class."""
    YES = "yes"


@dataclass(frozen=True)
class Characteristics:
    """The six characteristics of a loss, and the measurements that they follow from.

    A measurement is the largest relative change (0 to 2) of a gradient when something else changes.

    Args:
        proxies_per_class: Number K of proxies per class.
        other_samples: Gradient of a sample's class scores, when other samples change.
        shift: Gradient of any class score, when all scores fall by the same amount.
        same_class: Gradient of a positive, when another positive of its class falls.
        other_classes: Gradient of a positive, when positives of other classes fall.
        negatives: Gradient of a negative, when other negatives fall.
        opposite: Gradient of a positive, when negatives fall, or the reverse.
        other_embeddings: Gradient of a sample's embedding, if the loss reads embeddings in addition to class scores,
            when other samples change.
    """

    proxies_per_class: int
    other_samples: float
    shift: float
    same_class: float
    other_classes: float
    negatives: float
    opposite: float
    other_embeddings: float

    @property
    def stability(self) -> Answer:
        """Whether a sample's gradient does not depend on the other samples of the batch."""
        return Answer.NO if self.other_samples > _TOLERANCE else Answer.YES

    @property
    def manifold(self) -> Answer:
        """Whether a class has several proxies, which can follow several clusters."""
        return _yes(self.proxies_per_class > 1)

    @property
    def similarity(self) -> Answer:
        """Whether the gradient depends on the scores, not only on their differences."""
        return _yes(self.shift > _TOLERANCE)

    @property
    def p_p(self) -> Answer:
        """Whether the gradient of a positive score depends on other positive scores."""
        if self.other_classes > _TOLERANCE:
            return Answer.YES
        return Answer.IN_PAIRS if self.same_class > _TOLERANCE else Answer.NO

    @property
    def n_n(self) -> Answer:
        """Whether the gradient of a negative score depends on other negative scores."""
        return _yes(self.negatives > _TOLERANCE)

    @property
    def p_n(self) -> Answer:
        """Whether gradients of positive scores depend on negative scores, or the reverse."""
        return _yes(self.opposite > _TOLERANCE)

    @property
    def beyond_scores(self) -> bool:
        """Whether samples also influence each other through embeddings that the loss reads in addition to scores."""
        return self.other_embeddings > _TOLERANCE

    def answers(self) -> dict[str, Answer]:
        """Return the six answers by column name of the paper, in its order."""
        return {
            "stability": self.stability,
            "manifold": self.manifold,
            "similarity": self.similarity,
            "P-P": self.p_p,
            "N-N": self.n_n,
            "P-N": self.p_n,
        }


def characteristics(loss: ProxyLoss, *, samples: int = 1024, seed: int = 0) -> Characteristics:
    """Measure which of the six characteristics of the MPA paper's Table 1 a loss has.

    The gradient of `ProxyLoss.objective` with respect to the class scores ``S_c(x_i)`` is computed in float64 at random
    scores, and again after some scores fall by up to ``1/a``, one unit of the logits ``a·S`` (cosines by at most 0.25).
    A gradient depends on the changed scores if its relative change exceeds 1e-6 in some sample.

    Regularisers are ignored. Dependences through embeddings that a loss reads in addition to scores, such as the graph
    of `HISTLoss`, do not count among the six characteristics: see ``beyond_scores``.

    Args:
        loss: Any proxy loss.
        samples: Number of samples to draw scores for, at least 1, in batches of 24 (fewer if the loss has fewer than 16
            classes). A few hundred are needed to meet every dependence of a sharp loss or of a distant warp.
        seed: Seed of the draws, 0 to 2⁶³ − 1. It changes measurements slightly, and no answer.

    Raises:
        ValueError: If an argument is not allowed, or a gradient is not finite.

    Source: Saeki et al., Multi-Proxy Anchor Family Loss for Several Types of Gradients, Table 1.

    >>> from proxemic.losses import ProxyAnchorLoss
    >>> measured = characteristics(ProxyAnchorLoss(10, 4), samples=192)
    >>> print(*(f"{name}: {answer}" for name, answer in measured.answers().items()), sep=", ")
    stability: no, manifold: no, similarity: yes, P-P: (yes), N-N: yes, P-N: no
    """
    check_count("samples", samples, 1, "1024 are enough")
    generator = torch.Generator().manual_seed(seed)
    batches = math.ceil(samples / len(batch_labels(loss.num_classes)))
    # Several threads gain nothing on such small matrices, and take ten times as long on a busy machine.
    with cpu_threads(1), at_rest(loss):
        changes = [gradient_changes(loss, generator) for _ in range(batches)]
    return Characteristics(
        loss.proxies_per_class, **{name: max(batch[name] for batch in changes) for name in changes[0]}
    )


def every_proxy_loss(proxies_per_class: int | None = None, *, seed: int = 0) -> dict[str, ProxyLoss]:
    """Build one of each proxy loss that `proxemic.losses` exports, with 16 classes and 4 dimensions.

    Args:
        proxies_per_class: Number K ≥ 1 of proxies per class; None takes each loss's default.
        seed: Seed of their initial state, 0 to 2⁶³ − 1.

    Raises:
        ValueError: If an argument is not allowed.

    >>> "ArcFaceLoss" in every_proxy_loss(), "ProxyLoss" in every_proxy_loss()
    (True, False)
    """
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed is {seed}, but must be 0 or more and below 2⁶³: take another.")
    more: dict[str, Any] = {} if proxies_per_class is None else {"proxies_per_class": proxies_per_class}
    losses: dict[str, ProxyLoss] = {}
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        for name in sorted(proxemic.losses.__all__):
            kind = getattr(proxemic.losses, name)
            if inspect.isclass(kind) and issubclass(kind, ProxyLoss) and not inspect.isabstract(kind):
                # The warp of the paper's CUB-200-2011 run.
                warp = {"alpha": 28.4, "k1": 0.93, "k2": 1.15} if kind is WarpedSoftmaxLoss else {}
                losses[name] = kind(16, 4, **warp, **more)
    return losses


def _yes(has: bool) -> Answer:
    return Answer.YES if has else Answer.NO
