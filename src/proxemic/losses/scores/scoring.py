"""Definition of class scores and of the sums of negatives, in ordinary PyTorch.

From class scores ``S_c(x_i)`` a loss needs the positive score ``P_i = S_{y_i}(x_i)`` of each sample, and one of two
sums of the negatives:

* ``N_i = LSE_{c ≠ y_i} a·g(S_c(x_i))``, one log-sum-exp per sample (data-wise losses), or
* ``Σ_c r(M_c)`` with ``M_c = LSE_{i: y_i ≠ c} a·g(S_c(x_i))``, one log-sum-exp per class (class-wise losses).

`dense_scores` computes all of them at once by ordinary autograd: it is the definition and, on a GPU, the fastest way as
long as the scores fit in memory. `proxemic.losses.scores.streaming` computes the same values at any size.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from proxemic.losses.checks import check_positive, shown
from proxemic.losses.scores.derivative import by_hand
from proxemic.losses.scores.pooling import Pooling, SoftmaxPooling
from proxemic.losses.scores.products import Products
from proxemic.losses.scores.regularizers import CenterRegularizer, Regularizer
from proxemic.losses.scores.sampling import SamplingWeights
from proxemic.losses.scores.similarity import Cosine, Similarity, unit, unit_backward, unit_forward

Elementwise = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Scoring:
    """Definition of a class score and of the sum of the negatives.

    Args:
        scale: ``a`` > 0, the factor of every negative score.
        class_reduction: ``None`` for a data-wise loss, which sums the negatives of each sample over the classes. For a
            class-wise loss an elementwise differentiable function ``r``: the negatives of each class are summed over
            the samples, and ``r`` of that log-sum-exp is summed over the classes.
        similarity: Similarity of an embedding and a proxy.
        pooling: Turns the similarities to K proxies into one class score; unused when K = 1.
        transform: ``g``, an elementwise differentiable function of the negatives' class scores ``[classes, batch]``. It
            may hold one entry per sample, ``[batch]``, which gets no gradient. ``None`` is the identity.

    Raises:
        ValueError: If the scale is not positive, or the pooling is not a `Pooling`.
    """

    scale: float
    class_reduction: Elementwise | None = None
    similarity: Similarity = Cosine()
    pooling: Pooling = SoftmaxPooling()
    transform: Elementwise | None = None

    def __post_init__(self) -> None:
        check_positive("scale", self.scale)
        if not isinstance(self.pooling, Pooling):
            raise ValueError(
                f"pooling is {shown(self.pooling)}, but must be a pooling of proxemic.losses, for example "
                "SoftmaxPooling(0.1) or MaxPooling()."
            )

    def pool(self, similarities: Float[Tensor, "*rows proxies"]) -> Float[Tensor, "*rows"]:
        """Compute class scores from the similarities to the K proxies of each class, by ordinary autograd."""
        return self.pooling.dense(similarities) if similarities.shape[-1] > 1 else similarities.squeeze(-1)


def dense_class_scores(
    queries: Float[Tensor, "batch features"], proxies: Float[Tensor, "classes proxies features"], scoring: Scoring
) -> Float[Tensor, "batch classes"]:
    """Compute every class score at once."""
    similarity = scoring.similarity
    with Products(cancels=similarity.needs_full_precision).context():
        similarities = similarity.dense(queries, proxies.flatten(0, 1)).unflatten(1, proxies.shape[:2])
    return scoring.pool(similarities)


def pair_scores(
    queries: Float[Tensor, "batch features"], proxies: Float[Tensor, "batch proxies features"], scoring: Scoring
) -> Float[Tensor, " batch"]:
    """Compute the class score of each query for its own class, whose proxies are given."""
    return scoring.pool(scoring.similarity.pairs(queries, proxies))


def negative_logits(
    scores: Float[Tensor, "batch classes"], scoring: Scoring, sampling: SamplingWeights
) -> Float[Tensor, "batch classes"]:
    """Compute the logit of every class as a negative: its transformed score times the scale, plus its bias."""
    logits = scoring.scale * (scoring.transform(scores.T).T if scoring.transform else scores)
    return logits if sampling.bias is None else logits + sampling.bias


def put_target(
    logits: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"], values: Float[Tensor, " batch"] | float
) -> Float[Tensor, "batch classes"]:
    """Replace the logits of the target classes; labels outside ``[0, classes)`` have no target here."""
    inside, target = _targets(labels, logits.shape[1])
    new = values.unsqueeze(1) if isinstance(values, Tensor) else values
    return logits.scatter(1, target, torch.where(inside, new, logits.gather(1, target)))


def _targets(labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return as columns which labels are in ``[0, classes)``, and all labels clamped to that range."""
    return ((labels >= 0) & (labels < classes)).unsqueeze(1), labels.clamp(0, classes - 1).unsqueeze(1)


def sum_negatives(
    scores: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"], scoring: Scoring, sampling: SamplingWeights
) -> Float[Tensor, " batch"]:
    """Sum the logits of each sample's negatives."""
    logits = put_target(negative_logits(scores, scoring, sampling), labels, 0.0)
    return (logits if sampling.weights is None else logits * sampling.weights).sum(1)


_SUMMED = 2**22
"""Similarities that `streamed_sum_negatives` holds at once."""


def streamed_sum_negatives(
    embeddings: Float[Tensor, "batch dim"],
    proxies: Float[Tensor, "classes proxies features"],
    labels: Int[Tensor, " batch"],
    scoring: Scoring,
    chunk_size: int | None,
    sampling: SamplingWeights,
) -> Float[Tensor, " batch"]:
    """Compute `sum_negatives` one chunk of classes at a time; the backward computes each chunk again."""
    queries = scoring.similarity.prepare(embeddings)

    def add(queries: Tensor, proxies: Tensor, labels: Tensor, sampling: SamplingWeights) -> Tensor:
        return sum_negatives(dense_class_scores(queries, proxies, scoring), labels, scoring, sampling)

    size = chunk_size or max(_SUMMED // (len(queries) * proxies.shape[1]), 1)
    if 0 < len(proxies) <= size:
        return add(queries, proxies, labels, sampling)
    total = torch.zeros_like(queries[:, 0])
    for start in range(0, len(proxies), size):
        part = slice(start, start + size)
        total = total + checkpoint(
            add, queries, proxies[part], labels - start, sampling.part(part), use_reentrant=False
        )
    return total


def reduce_scores(
    scores: Float[Tensor, "batch classes"],
    labels: Int[Tensor, " batch"],
    scoring: Scoring,
    sampling: SamplingWeights | None = None,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "*batch"]]:
    """Return positive scores and reduced negatives of class scores.

    Labels outside ``[0, classes)`` belong to other processes, if there are any; their positive scores are 0.
    """
    sampling = sampling or SamplingWeights(scores.shape[1])
    dim, own = 1 if scoring.class_reduction is None else 0, labels.unsqueeze(1)
    if sampling.group is not None:
        inside, target = _targets(labels, scores.shape[1])
        positive = torch.where(inside, scores.gather(1, target), 0).squeeze(1)
        logits = put_target(negative_logits(scores, scoring, sampling), labels, -torch.inf)
    elif is_bounded(scoring, sampling, *scores.shape):
        positive, negative = _own_and_others(scores, own, scoring.scale, dim)
        return positive, negative if scoring.class_reduction is None else scoring.class_reduction(negative).sum()
    else:
        positive = scores.gather(1, own).squeeze(1)
        logits = negative_logits(scores, scoring, sampling).scatter(1, own, -torch.inf)
    if scoring.class_reduction is None:
        return positive, (logits if sampling.weights is None else logits + sampling.weights.log()).logsumexp(1)
    reduced = scoring.class_reduction(logits.logsumexp(0))
    return positive, (reduced if sampling.weights is None else reduced * sampling.weights).sum()


def is_bounded(scoring: Scoring, sampling: SamplingWeights, batch: int, classes: int) -> bool:
    """Return whether exponentials can be summed without subtracting the maximum: for cosines and a moderate scale."""
    plain = isinstance(scoring.similarity, Cosine) and scoring.transform is None
    return plain and sampling.weights is sampling.bias is None and max(batch, classes) < math.exp(80 - scoring.scale)


def _sums_forward(scores: Tensor, own: Tensor, scale: float, dim: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    powers = (scores * scale).exp_().scatter_(1, own, 0)
    total = powers.sum(dim).clamp_(min=torch.finfo(scores.dtype).tiny)  # of a class without negatives
    return (scores.gather(1, own).squeeze(1), total.log()), (powers, total)


def _sums_backward(grads: Any, needed: object, tensors: Any, kept: Any, scale: float, dim: int) -> list[Tensor | None]:
    (positive, negative), (powers, total) = grads, kept
    slopes = powers * (negative * scale).div_(total).unsqueeze(dim)
    return [slopes.scatter_(1, tensors[1], positive.unsqueeze(1)), None]


_own_and_others = by_hand(
    lambda scores, own, scale, dim: (
        scores.gather(1, own).squeeze(1),
        (scores * scale).scatter(1, own, -torch.inf).logsumexp(dim),
    ),
    _sums_forward,
    _sums_backward,
    tensors=2,
)


def dense_scores(
    embeddings: Float[Tensor, "batch dim"],
    proxies: Float[Tensor, "classes proxies features"],
    labels: Int[Tensor, " batch"],
    scoring: Scoring,
    terms: Sequence[Regularizer] = (),
    sampling: SamplingWeights | None = None,
    products: Products | None = None,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "*batch"], Float[Tensor, ""]]:
    """Compute positive scores, reduced negatives and regularisers at once, in few operations.

    This is the definition of `streamed_scores`, with the same arguments.
    """
    sampling, products = sampling or SamplingWeights(len(proxies)), products or Products()
    directions = None
    if isinstance(scoring.similarity, Cosine):
        similarities, queries, directions = _cosines(embeddings, proxies, products)
        if products.rounds:
            similarities = _with_own(similarities, queries, directions, labels)
        scores = scoring.pool(similarities)
    else:
        scores = dense_class_scores(scoring.similarity.prepare(embeddings), proxies, scoring)
    values = [
        term.of_directions(directions, sampling)
        if isinstance(term, CenterRegularizer) and directions is not None and sampling.weights is None
        else term.apply_to(proxies, sampling)[1]
        for term in terms
    ]
    total = functools.reduce(torch.add, values) if values else proxies.new_zeros(())
    return *reduce_scores(scores, labels, scoring, sampling), total


def _cosines_definition(x: Tensor, w: Tensor, products: Products) -> tuple[Tensor, Tensor, Tensor]:
    queries, directions = unit(x), unit(w)
    return (queries @ directions.flatten(0, 1).T).unflatten(1, w.shape[:2]), queries, directions


def _cosines_forward(x: Tensor, w: Tensor, products: Products) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    (queries, of_queries), (directions, of_directions) = unit_forward(x), unit_forward(w)
    with products.context():
        rows = products.operand(directions.flatten(0, 1))
        cosines = products.multiply(products.operand(queries), rows.transposed()).unflatten(1, w.shape[:2])
    return (cosines, queries, directions), (*of_queries, *of_directions)


def _cosines_backward(
    grads: tuple[Tensor | None, ...], needed: Sequence[bool], tensors: Any, kept: Any, products: Products
) -> list[Tensor | None]:
    (grad, grad_queries, grad_directions), (queries, lengths, directions, proxy_lengths) = grads, kept
    rows, grad_x, grad_w = directions.flatten(0, 1), None, None
    grad_operand = products.operand(queries.new_zeros(len(queries), len(rows)) if grad is None else grad.flatten(1))
    with products.context():
        if needed[0]:
            grad_x = products.multiply(grad_operand, products.operand(rows))
            grad_x = unit_backward(grad_x if grad_queries is None else grad_x + grad_queries, queries, lengths)
        if needed[1]:
            grad_w = products.multiply(grad_operand.transposed(), products.operand(queries)).view_as(directions)
            grad_w = grad_w if grad_directions is None else grad_w + grad_directions
            grad_w = unit_backward(grad_w, directions, proxy_lengths)
    return [grad_x, grad_w]


_cosines = by_hand(_cosines_definition, _cosines_forward, _cosines_backward, tensors=2, materialize=False)


def _with_own(similarities: Tensor, queries: Tensor, directions: Tensor, labels: Tensor) -> Tensor:
    """Replace the similarities to the target classes by exact ones, without rounded operands."""
    inside, target = (target.unsqueeze(2) for target in _targets(labels, len(directions)))
    own = (directions[target[:, 0, 0]] * queries.unsqueeze(1)).sum(2)
    target = target.expand(-1, 1, similarities.shape[2])
    return similarities.scatter(1, target, torch.where(inside, own.unsqueeze(1), similarities.gather(1, target)))
