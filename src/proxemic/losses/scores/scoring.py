"""What a class score is, how the negatives are summed, and the same in a few lines of ordinary PyTorch.

For class scores ``S_c(x_i)`` a loss needs the positive score ``P_i = S_{y_i}(x_i)`` of each sample, and of the others

* ``N_i = LSE_{c ≠ y_i} a·g(S_c(x_i))``, one log-sum-exp a sample (data-wise losses), or
* ``Σ_c push(M_c)`` with ``M_c = LSE_{i: y_i ≠ c} a·g(S_c(x_i))``, one log-sum-exp a class (class-wise losses).

`dense_scores` says so plainly; `proxemic.losses.scores.streaming` gives the same values and gradients at any size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from proxemic.losses.scores.pooling import Pooling, SoftmaxPooling
from proxemic.losses.scores.regularizers import Regularizer
from proxemic.losses.scores.sampling import SamplingWeights
from proxemic.losses.scores.similarity import Cosine, Similarity
from proxemic.precision import full_precision

__all__ = ["Elementwise", "Scoring", "dense_class_scores", "dense_scores", "pair_scores", "reduce_scores"]

Elementwise = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Scoring:
    """What a class score is and how the negatives are summed.

    Args:
        scale: ``a``, the factor in front of every negative score.
        push: ``None`` sums the negatives of each sample over the classes. An elementwise differentiable function sums
            those of each class over the samples, and is itself summed over the classes.
        similarity: Of an embedding and a proxy.
        pooling: From the similarities to K proxies to one class score; unused when K = 1.
        transform: ``g``, elementwise and differentiable, on the negatives' class scores ``[classes, batch]``: may hold
            one number a sample, ``[batch]``, which gets no gradient. ``None`` is the identity.
    """

    scale: float
    push: Elementwise | None = None
    similarity: Similarity = Cosine()
    pooling: Pooling = SoftmaxPooling()
    transform: Elementwise | None = None


def dense_class_scores(
    queries: Float[Tensor, "batch features"],
    proxies: Float[Tensor, "classes proxies features"],
    similarity: Similarity,
    pooling: Pooling,
) -> Float[Tensor, "batch classes"]:
    """Every class score at once, by ordinary autograd."""
    with full_precision(similarity.cancels):
        similarities = similarity.dense(queries, proxies.flatten(0, 1)).unflatten(1, proxies.shape[:2])
    return pooling.dense(similarities) if proxies.shape[1] > 1 else similarities.squeeze(2)


def pair_scores(
    queries: Float[Tensor, "batch features"], proxies: Float[Tensor, "batch proxies features"], scoring: Scoring
) -> Float[Tensor, " batch"]:
    """The class score of each query and one class of its own, given by its proxies, by ordinary autograd."""
    similarities = scoring.similarity.pairs(queries, proxies)
    return scoring.pooling.dense(similarities) if proxies.shape[1] > 1 else similarities.squeeze(1)


def reduce_scores(
    scores: Float[Tensor, "batch classes"],
    labels: Int[Tensor, " batch"],
    scoring: Scoring,
    among: SamplingWeights | None = None,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "*batch"]]:
    """Positive scores and reduced negatives of class scores, by ordinary autograd.

    Args:
        scores: Of the classes at hand.
        labels: Own classes; the positive score is 0 where it is not at hand, out of ``[0, classes)``.
        scoring: What is summed.
        among: How often each class counts in the sums, and its bias; ``None``: once, and none.
    """
    classes = scores.shape[1]
    among = among or SamplingWeights(classes)
    inside = ((labels >= 0) & (labels < classes)).unsqueeze(1)
    own = labels.clamp(0, classes - 1).unsqueeze(1)
    positive = torch.where(inside, scores.gather(1, own), 0).squeeze(1)
    logits = scoring.scale * (scoring.transform(scores.T).T if scoring.transform else scores)
    logits = logits if among.bias is None else logits + among.bias
    logits = logits.scatter(1, own, torch.where(inside, -torch.inf, logits.gather(1, own)))
    if scoring.push is None:
        return positive, (logits if among.weights is None else logits + among.weights.log()).logsumexp(1)
    pushes = scoring.push(logits.logsumexp(0))
    return positive, (pushes if among.weights is None else pushes * among.weights).sum()


def dense_scores(
    embeddings: Float[Tensor, "batch dim"],
    proxies: Float[Tensor, "classes proxies features"],
    labels: Int[Tensor, " batch"],
    scoring: Scoring,
    terms: Sequence[Regularizer] = (),
    among: SamplingWeights | None = None,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "*batch"], Float[Tensor, ""]]:
    """Positive scores, reduced negatives and terms, written down plainly: the definition of `streamed_scores`."""
    among = among or SamplingWeights(len(proxies))
    queries = scoring.similarity.prepare(embeddings)
    scores = dense_class_scores(queries, proxies, scoring.similarity, scoring.pooling)
    total = sum((term.through(proxies, among)[1] for term in terms), proxies.new_zeros(()))
    return *reduce_scores(scores, labels, scoring, among), total
