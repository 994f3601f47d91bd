"""What the gradient of a proxy loss takes into account: the six columns of Table 1 of the MPA paper, measured."""

import inspect
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

import proxemic.losses
from proxemic.analysis.gradients.scores import at_rest, batch_labels, gradient_changes
from proxemic.losses import ProxyLoss, WarpedSoftmaxLoss
from proxemic.losses.checks import check_count
from proxemic.threads import cpu_threads

# Rounding changes a gradient by about 1e-13 of itself; what it depends on, by 1e-2 and more in some draw.
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

    A measurement is the largest relative change, 0 to 2, of any gradient when something else changes.

    Args:
        proxies_per_class: K.
        other_samples: Gradient of a sample's class scores, when other samples change.
        shift: Gradient of any class score, when all scores fall by the same amount.
        same_class: Gradient of a positive, when another positive of its class falls.
        other_classes: Gradient of a positive, when positives of other classes fall.
        negatives: Gradient of a negative, when other negatives fall.
        opposite: Gradient of a positive, when negatives fall, or the reverse.
        other_embeddings: Gradient of a sample's embedding where the loss reads it beside the class scores, when other
            samples change.
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
        """A sample's gradient is its own: the other samples of the batch do not change it."""
        return Answer.NO if self.other_samples > _TOLERANCE else Answer.YES

    @property
    def manifold(self) -> Answer:
        """A class has several proxies, which can follow a class of several clusters."""
        return _yes(self.proxies_per_class > 1)

    @property
    def similarity(self) -> Answer:
        """How large the scores are counts, not their differences alone."""
        return _yes(self.shift > _TOLERANCE)

    @property
    def p_p(self) -> Answer:
        """The pull of a sample to its class depends on other such pulls."""
        if self.other_classes > _TOLERANCE:
            return Answer.YES
        return Answer.IN_PAIRS if self.same_class > _TOLERANCE else Answer.NO

    @property
    def n_n(self) -> Answer:
        """The push from a wrong class depends on other such pushes."""
        return _yes(self.negatives > _TOLERANCE)

    @property
    def p_n(self) -> Answer:
        """The pulls depend on negative scores, or the pushes on positive ones."""
        return _yes(self.opposite > _TOLERANCE)

    @property
    def beyond_scores(self) -> bool:
        """Samples also change each other through embeddings that the loss reads beside the scores."""
        return self.other_embeddings > _TOLERANCE

    def answers(self) -> dict[str, Answer]:
        """The six answers by the names of the paper's columns, in their order."""
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

    The gradient of `ProxyLoss.objective` with respect to the class scores ``S_c(x_i)`` is taken in float64 at random
    scores, and again after some of them fell by up to ``1/a``, one unit of the logits ``a·S`` (cosines by at most
    0.25). A gradient depends on what fell if it changes by more than 1e-6 of itself in any sample.

    Regularisers are left out. What a loss computes from the embeddings beside the scores, as `HISTLoss` does its graph,
    is outside the six characteristics: see ``beyond_scores``.

    Args:
        loss: Any proxy loss, with the arguments that are in question.
        samples: Number of samples to draw scores for, at least 1, in batches of 24 (fewer for a loss of fewer than 16
            classes); a few hundred are needed to meet every dependence of a sharp loss or of a distant warp.
        seed: Seed of the draws, 0 to 2⁶³ − 1. It changes the measurements slightly, and no answer.

    Raises:
        ValueError: If an argument is not allowed, or a gradient is not finite.

    Source: Saeki et al., Multi-Proxy Anchor Family Loss for Several Types of Gradients, Table 1.

    >>> from proxemic.losses import ProxyAnchorLoss
    >>> measured = characteristics(ProxyAnchorLoss(10, 4))
    >>> print(*(f"{name}: {answer}" for name, answer in measured.answers().items()), sep=", ")
    stability: no, manifold: no, similarity: yes, P-P: (yes), N-N: yes, P-N: no
    """
    if not isinstance(loss, ProxyLoss):
        raise ValueError(f"loss is a {type(loss).__name__}, but only proxy losses have class scores: pass a ProxyLoss.")
    check_count("samples", samples, 1, "1024 are enough")
    generator = torch.Generator().manual_seed(_check_seed(seed))
    batches = math.ceil(samples / len(batch_labels(loss.num_classes)))
    # Several threads gain nothing on matrices this small, and on a busy machine take ten times as long.
    with cpu_threads(1), at_rest(loss):
        changes = [gradient_changes(loss, generator) for _ in range(batches)]
    return Characteristics(
        loss.proxies_per_class, **{name: max(batch[name] for batch in changes) for name in changes[0]}
    )


def every_proxy_loss(proxies_per_class: int | None = None, *, seed: int = 0) -> dict[str, ProxyLoss]:
    """One of each proxy loss that `proxemic.losses` exports, with 16 classes and 4 dimensions.

    Args:
        proxies_per_class: K ≥ 1 of all; ``None`` takes each loss's default.
        seed: Seed of their initial state, 0 to 2⁶³ − 1.

    Raises:
        ValueError: If an argument is not allowed.

    >>> "ArcFaceLoss" in every_proxy_loss(), "ProxyLoss" in every_proxy_loss()
    (True, False)
    """
    more: dict[str, Any] = {} if proxies_per_class is None else {"proxies_per_class": proxies_per_class}
    losses: dict[str, ProxyLoss] = {}
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(_check_seed(seed))
        for name in sorted(proxemic.losses.__all__):
            kind = getattr(proxemic.losses, name)
            if inspect.isclass(kind) and issubclass(kind, ProxyLoss) and not inspect.isabstract(kind):
                # The warp of the paper's CUB-200-2011 run.
                warp = {"alpha": 28.4, "k1": 0.93, "k2": 1.15} if kind is WarpedSoftmaxLoss else {}
                losses[name] = kind(16, 4, **warp, **more)
    return losses


def _check_seed(seed: int) -> int:
    check_count("seed", seed, 0, "it starts the random numbers")
    if seed >= 2**63:
        raise ValueError(f"seed is {seed}, but must be below 2⁶³: take a smaller one.")
    return seed


def _yes(has: bool) -> Answer:
    return Answer.YES if has else Answer.NO
