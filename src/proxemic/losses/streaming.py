"""The one expensive part of every proxy loss, walked over the classes in chunks.

For class scores ``S_c(x_i)`` it gives the positive score ``P_i = S_{y_i}(x_i)`` of each sample, and the
log-sum-exp of ``a·g(S)`` over what is negative:

* ``over="classes"``: ``N_i = LSE_{c ≠ y_i} a·g(S_c(x_i))``, one a sample (data-wise losses);
* ``over="samples"``: ``M_c = LSE_{i: y_i ≠ c} a·g(S_c(x_i))``, one a class (class-wise losses).

`dense_scores` says so in six lines of ordinary PyTorch. `streamed_scores` gives the same values and gradients and
never holds more than a chunk of ``[batch, chunk, proxies]`` similarities: it folds each chunk into the result and
throws it away, and its backward makes each chunk again. A chunk that holds all classes is kept instead.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from proxemic.losses.pooling import SoftmaxPooling
from proxemic.losses.similarity import Cosine, Similarity

__all__ = ["Over", "Scoring", "default_chunk_size", "dense_class_scores", "dense_scores", "streamed_scores"]

Over = Literal["classes", "samples"]


@dataclass(frozen=True)
class Scoring:
    """What a class score is and how the negatives are summed.

    Args:
        scale: ``a``, the factor in front of every negative score.
        over: Sum the negatives of a sample over ``"classes"``, or of a class over ``"samples"``.
        similarity: Of an embedding and a proxy.
        pooling: From the similarities to K proxies to one class score; unused when K = 1.
        transform: ``g``, elementwise and differentiable, on the negatives' class scores; ``None`` is the identity.
    """

    scale: float
    over: Over
    similarity: Similarity = Cosine()
    pooling: SoftmaxPooling = SoftmaxPooling()
    transform: Callable[[Tensor], Tensor] | None = None


def default_chunk_size(batch: int, classes: int, proxies: int, dim: int) -> int:
    """Classes a chunk, so that its scores and its proxies stay in the processor's cache.

    All classes where their scores are few: then nothing is computed twice.

    >>> default_chunk_size(180, 100, 10, 512), default_chunk_size(32, 11318, 1, 512)
    (100, 2048)
    """
    if batch * classes * proxies <= 2**18:
        return classes
    rows = min(max(2**20 // max(batch, dim), 256), 8192)
    return min(max(rows // proxies, 1), classes)


def dense_class_scores(
    queries: Float[Tensor, "batch dim"],
    proxies: Float[Tensor, "classes proxies dim"],
    similarity: Similarity,
    pooling: SoftmaxPooling,
) -> Float[Tensor, "batch classes"]:
    """Every class score at once, by ordinary autograd."""
    similarities = similarity.dense(queries, proxies.flatten(0, 1)).unflatten(1, proxies.shape[:2])
    return pooling.forward(similarities) if proxies.shape[1] > 1 else similarities.squeeze(2)


def dense_scores(
    embeddings: Float[Tensor, "batch dim"],
    proxies: Float[Tensor, "classes proxies dim"],
    labels: Int[Tensor, " batch"],
    scoring: Scoring,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " negatives"]]:
    """Positive scores and log-sum-exp of the negatives, written down plainly: the definition of `streamed_scores`."""
    queries = scoring.similarity.prepare(embeddings)
    scores = dense_class_scores(queries, proxies, scoring.similarity, scoring.pooling)
    own = labels.unsqueeze(1)
    positive = scores.gather(1, own).squeeze(1)
    logits = scoring.scale * (scoring.transform(scores) if scoring.transform else scores)
    logits = logits.scatter(1, own, -torch.inf)
    return positive, logits.logsumexp(1 if scoring.over == "classes" else 0)


def streamed_scores(
    embeddings: Float[Tensor, "batch dim"],
    proxies: Float[Tensor, "classes proxies dim"],
    labels: Int[Tensor, " batch"],
    scoring: Scoring,
    chunk_size: int | None = None,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " negatives"]]:
    """Positive scores ``[batch]`` and log-sum-exp of the negatives, ``[batch]`` or ``[classes]``, in chunks of classes.

    Args:
        embeddings: One a row, float32 or float64.
        proxies: K a class, of the same dtype.
        labels: Each in [0, classes); not checked here.
        scoring: What is summed, see `Scoring`.
        chunk_size: Classes held at once; ``None`` chooses by `default_chunk_size`.

    >>> x, w = torch.eye(2), torch.eye(3, 2).unsqueeze(1)
    >>> positive, negative = streamed_scores(x, w, torch.tensor([0, 1]), Scoring(scale=1.0, over="classes"))
    >>> positive
    tensor([1., 1.])
    """
    queries = scoring.similarity.prepare(embeddings)
    chunk_size = chunk_size or default_chunk_size(len(queries), *proxies.shape)
    return _StreamedScores.apply(queries, proxies, labels, scoring, chunk_size)  # type: ignore[return-value]


class _Chunk:
    """Classes ``start … stop`` and where the samples' own classes lie among them."""

    def __init__(self, proxies: Tensor, labels: Tensor, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self.rows = proxies[start:stop].flatten(0, 1)
        # A column for every sample, also where its class lies in another chunk: no indices of varying length,
        # which would have to be waited for on a GPU.
        self.inside = ((labels >= start) & (labels < stop)).unsqueeze(1)
        self.column = (labels - start).clamp(0, stop - start - 1).unsqueeze(1)

    def put_own(self, scores: Tensor, value: Tensor | float) -> Tensor:
        """In place: ``value`` where a sample meets its own class."""
        kept = scores.gather(1, self.column)
        return scores.scatter_(1, self.column, torch.where(self.inside, value, kept))


def _chunks(proxies: Tensor, labels: Tensor, size: int) -> Iterator[_Chunk]:
    classes = len(proxies)
    for start in range(0, classes, size):
        yield _Chunk(proxies, labels, start, min(start + size, classes))


class _StreamedScores(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, queries: Tensor, proxies: Tensor, labels: Tensor, scoring: Scoring, size: int
    ) -> tuple[Tensor, Tensor]:
        by_class = scoring.over == "samples"
        positive = queries.new_zeros(len(queries))
        negative = queries.new_full((len(proxies) if by_class else len(queries),), -torch.inf)
        own = scoring.similarity.own(queries, proxies[labels])
        kept: tuple[Tensor, ...] = ()
        with torch.autocast(queries.device.type, enabled=False):
            for chunk in _chunks(proxies, labels, size):
                similarities, pooled = _scores(queries, chunk, own, scoring, proxies.shape[1])
                own_score = pooled.gather(1, chunk.column).squeeze(1)
                positive = torch.where(chunk.inside.squeeze(1), own_score, positive)
                logits = _transformed(pooled, scoring).mul(scoring.scale)
                chunk.put_own(logits, -torch.inf)
                if by_class:
                    negative[chunk.start : chunk.stop] = logits.logsumexp(0)
                else:
                    negative = torch.logaddexp(negative, logits.logsumexp(1))
                if size >= len(proxies) and any(ctx.needs_input_grad):
                    kept = (similarities, pooled)
        ctx.save_for_backward(queries, proxies, labels, negative, *(() if own is None else (own,)), *kept)
        ctx.scoring, ctx.size, ctx.has_own = scoring, size, own is not None
        return positive, negative

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any, grad_positive: Tensor, grad_negative: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        queries, proxies, labels, negative, *rest = ctx.saved_tensors
        own = rest.pop(0) if ctx.has_own else None
        scoring: Scoring = ctx.scoring
        grad_queries = torch.zeros_like(queries) if ctx.needs_input_grad[0] else None
        grad_proxies = (
            torch.empty_like(proxies, memory_format=torch.contiguous_format) if ctx.needs_input_grad[1] else None
        )
        # An empty sum has no gradient: exp(−∞ − 0) = 0, where exp(−∞ − −∞) would be nan.
        negative = negative.masked_fill(negative == -torch.inf, 0)
        by_class = scoring.over == "samples"
        with torch.autocast(queries.device.type, enabled=False):
            for chunk in _chunks(proxies, labels, ctx.size):
                similarities, pooled = rest or _scores(queries, chunk, own, scoring, proxies.shape[1])
                part = slice(chunk.start, chunk.stop)
                total = negative[part] if by_class else negative.unsqueeze(1)
                grad_total = grad_negative[part] if by_class else grad_negative.unsqueeze(1)
                with torch.enable_grad():
                    leaf = pooled.detach().requires_grad_(scoring.transform is not None)
                    transformed = _transformed(leaf, scoring)
                logits = transformed.detach().mul(scoring.scale)
                chunk.put_own(logits, -torch.inf)
                grad = logits.sub_(total).exp_().mul_(grad_total * scoring.scale)
                if scoring.transform is not None:
                    (grad,) = torch.autograd.grad(transformed, leaf, grad)
                chunk.put_own(grad, grad_positive.unsqueeze(1))
                if proxies.shape[1] > 1:
                    spread = similarities.unflatten(1, (-1, proxies.shape[1]))
                    grad = scoring.pooling.backward(grad, spread, pooled).flatten(1)
                scoring.similarity.backward(
                    grad,
                    similarities,
                    queries,
                    chunk.rows,
                    grad_queries,
                    None if grad_proxies is None else grad_proxies[part].flatten(0, 1),
                )
        return grad_queries, grad_proxies, None, None, None


def _scores(
    queries: Tensor, chunk: _Chunk, own: Tensor | None, scoring: Scoring, proxies_per_class: int
) -> tuple[Tensor, Tensor]:
    """Similarities ``[batch, chunk·proxies]`` and class scores ``[batch, chunk]``, the same tensor when K = 1."""
    similarities = scoring.similarity.forward(queries, chunk.rows)
    spread = similarities.unflatten(1, (-1, proxies_per_class))
    if own is not None:
        column = chunk.column.unsqueeze(2).expand(-1, 1, proxies_per_class)
        exact = torch.where(chunk.inside.unsqueeze(2), own.unsqueeze(1), spread.gather(1, column))
        spread.scatter_(1, column, exact)
    return similarities, scoring.pooling.forward(spread) if proxies_per_class > 1 else similarities


def _transformed(pooled: Tensor, scoring: Scoring) -> Tensor:
    return pooled if scoring.transform is None else scoring.transform(pooled)
