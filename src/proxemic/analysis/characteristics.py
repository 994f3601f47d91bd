"""What the gradient of a proxy loss takes into account: the six columns of Table 1 of the MPA paper, measured.

Class scores are drawn at random, some of them are changed, and the gradients of the *others* are compared before and
after. Gradients are compared, not second derivatives taken: a loss may hold a value without gradient (the warp's Δ),
through which autograd's second derivative is not the derivative of the gradient that training follows.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Bool, Float
from torch import Tensor

import proxemic.losses
from proxemic.losses import ProxyLoss, WarpedSoftmaxLoss
from proxemic.losses.checks import check_count
from proxemic.losses.similarity import Cosine, Similarity, unit
from proxemic.losses.streaming import reduce_scores

__all__ = ["Answer", "Characteristics", "characteristics", "every_proxy_loss"]

_LABELS = torch.tensor([0, 0, 1])  # a class with two samples and one with one
_CLASSES = 6  # some of them without a sample

# Rounding changes a gradient by about 1e-13 of itself; what a gradient depends on, by 1e-2 in some draw.
_TOLERANCE = 1e-6
# A gradient below this share of the largest may be what a cancellation left over: its changes count in proportion.
_FLOOR = 1e-6


class Answer(StrEnum):
    """Whether a loss has a characteristic."""

    NO = "no"
    IN_PAIRS = "(yes)"
    """Only where the batch holds two samples of a class."""
    YES = "yes"


@dataclass(frozen=True)
class Characteristics:
    """The six characteristics of a loss, and the measurements that they follow from.

    A measurement is the largest relative change, 0 to 2, that any gradient made when other things changed.

    Args:
        proxies_per_class: K.
        other_samples: Of a sample's class scores, when other samples change.
        shift: Of any class score, when all scores fall by the same amount.
        same_class: Of a positive, when another positive of its class falls.
        other_classes: Of a positive, when positives of other classes fall.
        negatives: Of a negative, when other negatives fall.
        opposite: Of a positive, when negatives fall, or the reverse.
        other_embeddings: Of a sample's embedding where the loss reads it beside the class scores, when other samples
            change.
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
        """Samples also change each other through embeddings that the loss reads itself, which the six do not see."""
        return self.other_embeddings > _TOLERANCE

    def answers(self) -> dict[str, Answer]:
        """The six, by the names and in the order of the paper's columns."""
        return {
            "stability": self.stability,
            "manifold": self.manifold,
            "similarity": self.similarity,
            "P-P": self.p_p,
            "N-N": self.n_n,
            "P-N": self.p_n,
        }


def characteristics(loss: ProxyLoss, *, draws: int = 64, seed: int = 0) -> Characteristics:
    """Measure which of the six characteristics of the MPA paper's Table 1 a loss has.

    The gradient of `ProxyLoss.objective` with respect to the class scores ``S_c(x_i)``, in float64, at random scores
    over the whole range of the loss's similarity and again after some of them fell by up to ``1/a``, one unit of the
    logits ``a·S`` (cosines by at most 0.25). A gradient changed if it did so by more than 1e-6 of itself in any draw:
    sharp losses (a = 64) are saturated in most draws, but in float64 a dependence shows through e⁻¹³, and some of the
    draws are not saturated at all.

    Proxies and regularisers play no part but for K. What a loss computes from the embeddings beside the scores, as
    `HISTLoss` its graph, is told apart by ``beyond_scores``.

    Args:
        loss: Any proxy loss, with the arguments that are in question; it is left as it is.
        draws: Random scores to try, at least 1; fewer than 16 may miss a dependence.
        seed: Of the draws, from 0; the answers do not depend on it, the measurements slightly.

    Raises:
        ValueError: If an argument is not allowed, or a gradient is not finite.

    Source: Saeki et al., Multi-Proxy Anchor Family Loss for Several Types of Gradients, Table 1.

    >>> from proxemic.losses import ProxyAnchorLoss
    >>> found = characteristics(ProxyAnchorLoss(10, 4))
    >>> print(*(f"{name}: {answer}" for name, answer in found.answers().items()), sep=", ")
    stability: no, manifold: no, similarity: yes, P-P: (yes), N-N: yes, P-N: no
    """
    if not isinstance(loss, ProxyLoss):
        raise ValueError(f"loss is a {type(loss).__name__}, but only proxy losses have class scores: pass a ProxyLoss.")
    check_count("draws", draws, 1, "64 are enough")
    check_count("seed", seed, 0, "it starts the random numbers")
    generator = torch.Generator().manual_seed(seed % 2**63)
    tables = torch.stack([torch.stack(list(_changes(loss, generator))) for _ in range(draws)])
    stability, embeddings, shift, same, other, negatives, pull, push = tables.amax(0).tolist()
    return Characteristics(
        loss.proxies_per_class, stability, shift, same, other, negatives, max(pull, push), embeddings
    )


def every_proxy_loss(proxies_per_class: int | None = None) -> dict[str, ProxyLoss]:
    """One of each proxy loss that `proxemic.losses` exports, of 8 classes in 4 dimensions.

    Args:
        proxies_per_class: K ≥ 1 of all; ``None`` takes each loss's default.

    Raises:
        ValueError: If K is not allowed.
    """
    exported = {name: getattr(proxemic.losses, name) for name in sorted(proxemic.losses.__all__)}
    more = {} if proxies_per_class is None else {"proxies_per_class": proxies_per_class}
    return {
        name: kind(8, 4, **_REQUIRED.get(kind, {}), **more)
        for name, kind in exported.items()
        if inspect.isclass(kind) and issubclass(kind, ProxyLoss) and not inspect.isabstract(kind)
    }


# The paper's values for CUB: what has no default.
_REQUIRED = {WarpedSoftmaxLoss: {"alpha": 28.4, "k1": 0.93, "k2": 1.15}}


def _changes(loss: ProxyLoss, generator: torch.Generator) -> Iterator[Float[Tensor, ""]]:
    """The changes of one draw."""
    step = 1 / loss.scoring.scale
    if isinstance(loss.scoring.similarity, Cosine):
        step = min(step, 0.25)
    scores = _draw_scores(loss.scoring.similarity, step, generator)
    embeddings, others = _draw_embeddings(loss, generator), _draw_embeddings(loss, generator)
    falls = step * torch.rand(scores.shape, generator=generator, dtype=scores.dtype)
    at_scores, at_embeddings = _gradients(loss, scores, embeddings)

    positive = torch.zeros_like(scores, dtype=torch.bool).scatter(1, _LABELS.unsqueeze(1), value=True)
    first, last = torch.zeros(2, *scores.shape, dtype=torch.bool)
    first[0], last[-1] = True, True
    # Half of the negatives of every sample and of every class.
    half = (torch.arange(len(_LABELS)).unsqueeze(1) + torch.arange(_CLASSES)) % 2 == 0

    def change(moved: Bool[Tensor, "batch classes"], watched: Bool[Tensor, "batch classes"]) -> Float[Tensor, ""]:
        return _largest_change(at_scores, _gradients(loss, scores - falls * moved, embeddings)[0], watched)

    one_other = torch.where(first[:, :1], others, embeddings)
    then_scores, then_embeddings = _gradients(loss, scores - falls * first, one_other)
    yield _largest_change(at_scores, then_scores, ~first)
    yield _largest_change(at_embeddings, then_embeddings, ~first[:, :1].expand_as(at_embeddings))
    yield _largest_change(at_scores, _gradients(loss, scores - step, embeddings)[0], torch.ones_like(first))
    yield change(positive & first, positive & ~first & ~last)
    yield change(positive & last, positive & ~last)
    yield change(~positive & half, ~positive & ~half)
    yield change(~positive, positive)
    yield change(positive, ~positive)


def _draw_scores(similarity: Similarity, step: float, generator: torch.Generator) -> Float[Tensor, "batch classes"]:
    """Scores from which a step down stays in the similarity's range."""
    share = torch.rand(len(_LABELS), _CLASSES, generator=generator, dtype=torch.float64)
    if isinstance(similarity, Cosine):
        return 1 - (2 - step) * share
    # Minus distances, which have no natural unit: a draw reaches from 1/16 to 256, so that warps at any of them show.
    reach = 2 ** (12 * torch.rand((), generator=generator, dtype=torch.float64) - 4)
    return -reach * share


def _draw_embeddings(loss: ProxyLoss, generator: torch.Generator) -> Float[Tensor, "batch dim"]:
    """Random directions with lengths from 1 to 256, which is what MagFace reads."""
    shape = (len(_LABELS), loss.embedding_size)
    directions = unit(torch.randn(shape, generator=generator, dtype=torch.float64))
    return directions * 2 ** (8 * torch.rand(shape[0], 1, generator=generator, dtype=torch.float64))


def _gradients(
    loss: ProxyLoss, scores: Float[Tensor, "batch classes"], embeddings: Float[Tensor, "batch dim"]
) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch dim"]]:
    """Of the objective with respect to the class scores, and to the embeddings beside them."""
    device = loss.proxies.device
    labels = _LABELS.to(device)
    with torch.enable_grad():
        leaves = (scores.to(device).detach().requires_grad_(), embeddings.to(device).detach().requires_grad_())
        positive, negative = reduce_scores(leaves[0], labels, loss.scoring)
        value = loss.objective(positive, negative, labels, leaves[1])
        at_scores, at_embeddings = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
    if not (at_scores.isfinite().all() and at_embeddings.isfinite().all()):
        raise ValueError(f"loss is a {type(loss).__name__} with a gradient that is not finite: check its objective.")
    return at_scores.cpu(), at_embeddings.cpu()


def _largest_change(
    before: Float[Tensor, "batch n"], after: Float[Tensor, "batch n"], watched: Bool[Tensor, "batch n"]
) -> Float[Tensor, ""]:
    """``max |g' − g| / max(|g|, |g'|)`` over the watched gradients."""
    largest = torch.maximum(before.abs(), after.abs())
    floor = (_FLOOR * largest.amax()).clamp(min=torch.finfo(largest.dtype).tiny)
    return ((after - before).abs() / largest.clamp(min=floor))[watched].amax()


def _yes(found: bool) -> Answer:
    return Answer.YES if found else Answer.NO
