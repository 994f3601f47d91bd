"""What a class score is, how the negatives are summed, and the same computation in a few lines of ordinary PyTorch.

For class scores ``S_c(x_i)`` a loss needs the positive score ``P_i = S_{y_i}(x_i)`` per sample, and of the negatives

* ``N_i = LSE_{c ≠ y_i} a·g(S_c(x_i))``, one log-sum-exp per sample (data-wise losses), or
* ``Σ_c r(M_c)`` with ``M_c = LSE_{i: y_i ≠ c} a·g(S_c(x_i))``, one log-sum-exp per class (class-wise losses).

`dense_scores` computes them plainly; `proxemic.losses.scores.streaming` gives the same values at any size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from proxemic.losses.checks import check_positive, shown
from proxemic.losses.scores.pooling import Pooling, SoftmaxPooling
from proxemic.losses.scores.products import Products
from proxemic.losses.scores.regularizers import Regularizer
from proxemic.losses.scores.sampling import SamplingWeights
from proxemic.losses.scores.similarity import Cosine, Similarity

Elementwise = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Scoring:
    """What a class score is and how the negatives are summed.

    Args:
        scale: ``a`` > 0, the factor of every negative score.
        class_reduction: ``None`` sums the negatives of each sample over the classes (data-wise). An elementwise
            differentiable function ``r`` sums those of each class over the samples, and is itself summed over the
            classes (class-wise).
        similarity: Of an embedding and a proxy.
        pooling: From the similarities to K proxies to one class score; unused when K = 1.
        transform: ``g``, elementwise and differentiable, on the negatives' class scores ``[classes, batch]``: may hold
            one number per sample, ``[batch]``, which gets no gradient. ``None`` is the identity.

    Raises:
        ValueError: If the scale is not positive, or the pooling is none.
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


def dense_class_scores(
    queries: Float[Tensor, "batch features"],
    proxies: Float[Tensor, "classes proxies features"],
    similarity: Similarity,
    pooling: Pooling,
) -> Float[Tensor, "batch classes"]:
    """Every class score at once, by ordinary autograd."""
    with Products(cancels=similarity.needs_full_precision).context():
        similarities = similarity.dense(queries, proxies.flatten(0, 1)).unflatten(1, proxies.shape[:2])
    return pooling.dense(similarities) if proxies.shape[1] > 1 else similarities.squeeze(2)


def pair_scores(
    queries: Float[Tensor, "batch features"], proxies: Float[Tensor, "batch proxies features"], scoring: Scoring
) -> Float[Tensor, " batch"]:
    """Compute the class score of each query for its own class, whose proxies are given, by ordinary autograd."""
    similarities = scoring.similarity.pairs(queries, proxies)
    return scoring.pooling.dense(similarities) if proxies.shape[1] > 1 else similarities.squeeze(1)


def negative_logits(
    scores: Float[Tensor, "batch classes"], scoring: Scoring, sampling: SamplingWeights
) -> Float[Tensor, "batch classes"]:
    """Compute the logit that every class has as a negative: its transformed and scaled score, and its bias."""
    logits = scoring.scale * (scoring.transform(scores.T).T if scoring.transform else scores)
    return logits if sampling.bias is None else logits + sampling.bias


def put_target(
    logits: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"], values: Float[Tensor, " batch"] | float
) -> Float[Tensor, "batch classes"]:
    """Replace the logits of the target classes; labels out of ``[0, classes)`` have none."""
    classes = logits.shape[1]
    inside = ((labels >= 0) & (labels < classes)).unsqueeze(1)
    target = labels.clamp(0, classes - 1).unsqueeze(1)
    new = values.unsqueeze(1) if isinstance(values, Tensor) else values
    return logits.scatter(1, target, torch.where(inside, new, logits.gather(1, target)))


def sum_negatives(
    scores: Float[Tensor, "batch classes"],
    labels: Int[Tensor, " batch"],
    scoring: Scoring,
    sampling: SamplingWeights,
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
    """Compute `sum_negatives` a chunk of classes at a time; the backward computes each chunk again."""
    queries = scoring.similarity.prepare(embeddings)
    total = torch.zeros_like(queries[:, 0])
    if len(proxies) == 0:  # more processes than shards
        return total

    def add(queries: Tensor, proxies: Tensor, labels: Tensor, sampling: SamplingWeights) -> Tensor:
        scores = dense_class_scores(queries, proxies, scoring.similarity, scoring.pooling)
        return sum_negatives(scores, labels, scoring, sampling)

    size = chunk_size or max(_SUMMED // (len(queries) * proxies.shape[1]), 1)
    if len(proxies) <= size:
        return add(queries, proxies, labels, sampling)
    for number, part in enumerate(proxies.split(size)):
        start = number * size
        rows = sampling.part(slice(start, start + size))
        total = total + checkpoint(add, queries, part, labels - start, rows, use_reentrant=False)
    return total


def reduce_scores(
    scores: Float[Tensor, "batch classes"],
    labels: Int[Tensor, " batch"],
    scoring: Scoring,
    sampling: SamplingWeights | None = None,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "*batch"]]:
    """Positive scores, 0 for labels out of ``[0, classes)``, and reduced negatives of class scores, by autograd."""
    classes = scores.shape[1]
    sampling = sampling or SamplingWeights(classes)
    inside = ((labels >= 0) & (labels < classes)).unsqueeze(1)
    target = labels.clamp(0, classes - 1).unsqueeze(1)
    positive = torch.where(inside, scores.gather(1, target), 0).squeeze(1)
    logits = put_target(negative_logits(scores, scoring, sampling), labels, -torch.inf)
    if scoring.class_reduction is None:
        return positive, (logits if sampling.weights is None else logits + sampling.weights.log()).logsumexp(1)
    reduced = scoring.class_reduction(logits.logsumexp(0))
    return positive, (reduced if sampling.weights is None else reduced * sampling.weights).sum()


def dense_scores(
    embeddings: Float[Tensor, "batch dim"],
    proxies: Float[Tensor, "classes proxies features"],
    labels: Int[Tensor, " batch"],
    scoring: Scoring,
    terms: Sequence[Regularizer] = (),
    sampling: SamplingWeights | None = None,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "*batch"], Float[Tensor, ""]]:
    """Positive scores, reduced negatives and regularisers, written plainly: the definition of `streamed_scores`."""
    sampling = sampling or SamplingWeights(len(proxies))
    queries = scoring.similarity.prepare(embeddings)
    scores = dense_class_scores(queries, proxies, scoring.similarity, scoring.pooling)
    total = sum((term.apply_to(proxies, sampling)[1] for term in terms), proxies.new_zeros(()))
    return *reduce_scores(scores, labels, scoring, sampling), total
