"""The one expensive part of every proxy loss, walked over the classes in chunks.

For class scores ``S_c(x_i)`` it gives the positive score ``P_i = S_{y_i}(x_i)`` of each sample, and of the negatives

* ``N_i = LSE_{c ≠ y_i} a·g(S_c(x_i))``, one log-sum-exp a sample (data-wise losses), or
* ``Σ_c push(M_c)`` with ``M_c = LSE_{i: y_i ≠ c} a·g(S_c(x_i))``, one log-sum-exp a class (class-wise losses).

`dense_scores` says so in a few lines of ordinary PyTorch. `streamed_scores` gives the same values and gradients and
holds no more than a chunk of ``[classes, proxies, batch]`` similarities: it folds each chunk into the result and throws
it away. Its gradient is made in one of three ways, the fastest that the memory allows (`Plan`):

* where all scores are few they are kept (three matrix products in all);
* a class's log-sum-exp is complete inside its chunk, so class-wise losses form its gradient in the same pass (three);
* else the backward makes each chunk again (four).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from proxemic.losses.pooling import Pooling, SoftmaxPooling
from proxemic.losses.regularizers import Regularizer
from proxemic.losses.similarity import Cosine, Similarity

__all__ = ["Plan", "Scoring", "dense_class_scores", "dense_scores", "reduce_scores", "streamed_scores"]

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
        transform: ``g``, elementwise and differentiable, on the negatives' class scores; ``None`` is the identity.
    """

    scale: float
    push: Elementwise | None = None
    similarity: Similarity = Cosine()
    pooling: Pooling = SoftmaxPooling()
    transform: Elementwise | None = None


@dataclass(frozen=True)
class Plan:
    """How a problem is walked.

    Args:
        chunk: Classes whose scores are made at once.
        keep: Keep all similarities for the backward, ``batch · classes · proxies`` numbers.
        dense: So small that ordinary autograd, with fewer and larger steps, is faster.
    """

    chunk: int
    keep: bool
    dense: bool = False

    @classmethod
    def of(cls, scoring: Scoring, batch: int, classes: int, proxies: int, dim: int) -> "Plan":
        """The fastest plan for the sizes B, C, K and D, with at most 64 MiB of similarities kept (float32).

        >>> Plan.of(Scoring(scale=20.0), 180, 100, 10, 512)  # CUB: one chunk
        Plan(chunk=100, keep=True, dense=False)
        >>> Plan.of(Scoring(scale=20.0), 1024, 200_000, 4, 128)  # dense scores would take 3.3 GB
        Plan(chunk=512, keep=False, dense=False)
        """
        scores = batch * classes * proxies
        if scores <= _ONE_CHUNK:
            return cls(classes, keep=True, dense=scores * dim <= scoring.similarity.dense_below)
        # A chunk's proxies, its scores and their gradient stay in a processor's cache while they are used.
        rows = max(min(2**20 // dim, 2**21 // batch, 2048), 256)
        return cls(min(max(rows // proxies, 1), classes), keep=scoring.push is None and scores <= _KEPT)


_ONE_CHUNK = 2**18  # scores
_KEPT = 2**24  # scores


def dense_class_scores(
    queries: Float[Tensor, "batch features"],
    proxies: Float[Tensor, "classes proxies features"],
    similarity: Similarity,
    pooling: Pooling,
) -> Float[Tensor, "batch classes"]:
    """Every class score at once, by ordinary autograd."""
    with _full_precision(similarity.cancels):
        similarities = similarity.dense(queries, proxies.flatten(0, 1)).unflatten(1, proxies.shape[:2])
    return pooling.dense(similarities) if proxies.shape[1] > 1 else similarities.squeeze(2)


def reduce_scores(
    scores: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"], scoring: Scoring
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "*batch"]]:
    """Positive scores and reduced negatives of class scores, by ordinary autograd."""
    own = labels.unsqueeze(1)
    positive = scores.gather(1, own).squeeze(1)
    logits = scoring.scale * (scoring.transform(scores) if scoring.transform else scores)
    logits = logits.scatter(1, own, -torch.inf)
    return positive, logits.logsumexp(1) if scoring.push is None else scoring.push(logits.logsumexp(0)).sum()


def dense_scores(
    embeddings: Float[Tensor, "batch dim"],
    proxies: Float[Tensor, "classes proxies features"],
    labels: Int[Tensor, " batch"],
    scoring: Scoring,
    terms: Sequence[Regularizer] = (),
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "*batch"], Float[Tensor, ""]]:
    """Positive scores, reduced negatives and terms, written down plainly: the definition of `streamed_scores`."""
    queries = scoring.similarity.prepare(embeddings)
    scores = dense_class_scores(queries, proxies, scoring.similarity, scoring.pooling)
    return *reduce_scores(scores, labels, scoring), sum((term(proxies) for term in terms), proxies.new_zeros(()))


def streamed_scores(
    embeddings: Float[Tensor, "batch dim"],
    proxies: Float[Tensor, "classes proxies features"],
    labels: Int[Tensor, " batch"],
    scoring: Scoring,
    chunk_size: int | None = None,
    terms: Sequence[Regularizer] = (),
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "*batch"], Float[Tensor, ""]]:
    """Positive scores ``[batch]``; reduced negatives, ``[batch]``, or a scalar for class-wise losses; the sum of terms.

    Args:
        embeddings: One a row, float32 or float64.
        proxies: K a class, of the same dtype.
        labels: Each in [0, classes); not checked here.
        scoring: What is summed, see `Scoring`.
        chunk_size: Classes whose scores are made at once; ``None`` chooses by `Plan.of`.
        terms: Separable regularisers, made with each chunk while its proxies are at hand.

    >>> x, w = torch.eye(2), torch.eye(3, 2).unsqueeze(1)
    >>> positive, negative, _ = streamed_scores(x, w, torch.tensor([0, 1]), Scoring(scale=1.0))
    >>> positive
    tensor([1., 1.])
    """
    if chunk_size is None:
        plan = Plan.of(scoring, len(embeddings), *proxies.shape)
    else:
        plan = Plan(min(chunk_size, len(proxies)), keep=chunk_size >= len(proxies))
    if plan.dense:
        return dense_scores(embeddings, proxies, labels, scoring, terms)
    queries = scoring.similarity.prepare(embeddings)
    return _Streamed.apply(queries, proxies, labels, scoring, plan, tuple(terms))  # type: ignore[return-value]


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        queries: Tensor,
        proxies: Tensor,
        labels: Tensor,
        scoring: Scoring,
        plan: Plan,
        terms: tuple[Regularizer, ...],
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.scoring, ctx.plan, ctx.terms, ctx.states, ctx.grads = scoring, plan, terms, [], None
        differentiable = any(ctx.needs_input_grad)
        with _outside_autograd(queries, scoring):
            walk = _Walk(queries, proxies, labels, scoring, plan, keep=plan.keep and differentiable)
            positive, negative, total = walk.positive, walk.negative, queries.new_zeros(())
            if scoring.push is not None and differentiable and not plan.keep:
                ctx.grads = _empty_grads(ctx, queries, proxies)
            for chunk in walk:
                value, states = chunk.terms(terms)
                total = total + value
                ctx.states.append(states)
                own = chunk.pooled.gather(0, chunk.column).squeeze(0)
                positive = torch.where(chunk.inside.squeeze(0), own, positive)
                logits, graph = chunk.logits()
                if scoring.push is None:
                    negative = torch.logaddexp2(negative, _logsumexp2(logits))
                else:
                    value, grad = _push(logits, scoring.push, scoring.scale)
                    negative = negative + value
                    if ctx.grads is not None:
                        chunk.backward(_through(graph, grad), *ctx.grads)
        kept = () if walk.kept is None else (walk.kept,)
        ctx.save_for_backward(queries, proxies, labels, negative, *(() if walk.own is None else (walk.own,)), *kept)
        ctx.has_own = walk.own is not None
        return positive, negative * math.log(2) if scoring.push is None else negative, total

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any, grad_positive: Tensor, grad_negative: Tensor, grad_terms: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        queries, proxies, labels, negative, *rest = ctx.saved_tensors
        own = rest.pop(0) if ctx.has_own else None
        scoring: Scoring = ctx.scoring
        with _outside_autograd(queries, scoring):
            walk = _Walk(queries, proxies, labels, scoring, ctx.plan, own=own, kept=rest[0] if rest else None)
            if scoring.push is not None and not ctx.plan.keep:
                # Made for a gradient of 1 in the forward pass, and handed on, not copied: a second backward of a
                # retained graph, which is rare, makes it again.
                grads, ctx.grads = ctx.grads, None
                if grads is None:
                    grads = _empty_grads(ctx, queries, proxies)
                    for chunk in walk:
                        logits, graph = chunk.logits()
                        chunk.backward(_through(graph, _push(logits, scoring.push, scoring.scale)[1]), *grads)
                _finish(grads, queries, proxies, labels, scoring, grad_positive, grad_negative)
                for part, states in zip(walk.parts(), ctx.states, strict=True):
                    _add_terms(ctx.terms, states, grads[1], proxies, part, grad_terms)
                return grads[0], grads[1], None, None, None, None
            grads = _empty_grads(ctx, queries, proxies)
            # An empty sum has no gradient: exp(−∞ − 0) = 0, where exp(−∞ − −∞) would be nan.
            total = negative.masked_fill(negative == -torch.inf, 0)
            for chunk, states in zip(walk, ctx.states, strict=True):
                logits, graph = chunk.logits()
                if scoring.push is None:
                    grad = logits.sub_(total).exp2_().mul_(grad_negative * scoring.scale)
                else:
                    grad = _push(logits, scoring.push, scoring.scale)[1].mul_(grad_negative)
                grad = chunk.put_own(_through(graph, grad), grad_positive)
                chunk.backward(grad, *grads)
                _add_terms(ctx.terms, states, grads[1], proxies, chunk.part, grad_terms)
        return grads[0], grads[1], None, None, None, None


class _Chunk:
    """The scores of classes ``start … stop``, and where the samples' own classes lie among them."""

    def __init__(self, walk: "_Walk", part: slice) -> None:
        self.walk = walk
        self.part = part
        start, stop = part.start, part.stop
        self.rows = walk.proxies[self.part].flatten(0, 1)
        # An entry for every sample, also where its class lies in another chunk: no indices of varying length, which
        # would have to be waited for on a GPU.
        self.inside = ((walk.labels >= start) & (walk.labels < stop)).unsqueeze(0)
        self.column = (walk.labels - start).clamp(0, stop - start - 1).unsqueeze(0)
        self.similarities, self.pooled = self._scores()

    def _scores(self) -> tuple[Tensor, Tensor]:
        """Similarities ``[classes, proxies, batch]`` and class scores ``[classes, batch]``: one memory when K = 1."""
        walk, proxies = self.walk, self.walk.proxies.shape[1]
        if walk.kept is not None and walk.filled:
            similarities = walk.kept[self.part].clone()  # a scratch copy: the kept ones must outlast this backward
        else:
            into = walk.queries.new_empty(len(self.rows) // proxies, proxies, len(walk.queries))
            similarities = into if walk.kept is None else walk.kept[self.part]
            walk.scoring.similarity.forward(walk.queries, self.rows, similarities.flatten(0, 1))
            if walk.own is not None:
                column = self.column.unsqueeze(1).expand(1, proxies, -1)
                exact = torch.where(self.inside, walk.own.T, similarities.gather(0, column).squeeze(0))
                similarities.scatter_(0, column, exact.unsqueeze(0))
        return similarities, walk.scoring.pooling.forward(similarities) if proxies > 1 else similarities.squeeze(1)

    def logits(self) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """``a·g(S)/ln 2`` with −∞ for the own class, and the graph of ``g``, if there is one.

        In powers of 2, which a processor raises several times as fast as powers of e.
        """
        scoring, graph, transformed = self.walk.scoring, None, self.pooled
        if scoring.transform is not None:
            with torch.enable_grad():
                leaf = self.pooled.detach().requires_grad_()
                transformed = scoring.transform(leaf)
            graph = (leaf, transformed)
        return self.put_own(transformed.detach() * (scoring.scale / math.log(2)), -torch.inf), graph

    def put_own(self, scores: Tensor, value: Tensor | float) -> Tensor:
        """In place: ``value`` where a sample meets its own class."""
        kept = scores.gather(0, self.column)
        return scores.scatter_(0, self.column, torch.where(self.inside, value, kept))

    def backward(self, grad: Tensor, grad_queries: Tensor | None, grad_proxies: Tensor | None) -> None:
        """From the gradient of the class scores to those of queries (added) and proxies (written)."""
        scoring = self.walk.scoring
        if self.walk.proxies.shape[1] > 1:
            grad = scoring.pooling.backward(grad, self.similarities, self.pooled).flatten(0, 1)
        scoring.similarity.backward(
            grad,
            self.similarities.flatten(0, 1),
            self.walk.queries,
            self.rows,
            grad_queries,
            None if grad_proxies is None else grad_proxies[self.part].flatten(0, 1),
        )

    def terms(self, terms: tuple[Regularizer, ...]) -> tuple[Tensor | float, list[Tensor | None]]:
        """This chunk's part of the regularisers, and what their gradients need."""
        proxies = self.walk.proxies[self.part]
        share = len(proxies) / len(self.walk.proxies)
        results = [(term.value(proxies), term.weight * share) for term in terms]
        return sum((value * factor for (value, _), factor in results), 0.0), [state for (_, state), _ in results]


class _Walk:
    """A pass over all chunks: iterating makes the scores of one after another."""

    def __init__(
        self,
        queries: Tensor,
        proxies: Tensor,
        labels: Tensor,
        scoring: Scoring,
        plan: Plan,
        *,
        keep: bool = False,
        own: Tensor | None = None,
        kept: Tensor | None = None,
    ) -> None:
        self.queries, self.proxies, self.labels, self.scoring, self.plan = queries, proxies, labels, scoring, plan
        self.filled = kept is not None
        self.kept = queries.new_empty(*proxies.shape[:2], len(queries)) if keep else kept
        self.own = own
        if own is None and scoring.similarity.cancels:
            self.own = scoring.similarity.pairs(queries, proxies[labels])
        self.positive = queries.new_zeros(len(queries))
        self.negative = queries.new_full((len(queries),), -torch.inf) if scoring.push is None else queries.new_zeros(())

    def parts(self) -> Iterator[slice]:
        """The classes of each chunk."""
        classes = len(self.proxies)
        for start in range(0, classes, self.plan.chunk):
            yield slice(start, min(start + self.plan.chunk, classes))

    def __iter__(self) -> Iterator[_Chunk]:
        return (_Chunk(self, part) for part in self.parts())


def _logsumexp2(logits: Tensor) -> Tensor:
    """``log₂ Σ_c 2^logits`` of each sample; −∞ where there are none. Overwrites ``logits``."""
    highest = logits.amax(0).clamp_(min=torch.finfo(logits.dtype).min)
    return logits.sub_(highest).exp2_().sum(0).log2_().add_(highest)


def _push(logits: Tensor, push: Elementwise, scale: float) -> tuple[Tensor, Tensor]:
    """``Σ_c push(M_c)`` of the chunk's classes, and its gradient in the transformed scores. Overwrites ``logits``."""
    highest = logits.amax(1, keepdim=True).clamp_(min=torch.finfo(logits.dtype).min)
    powers = logits.sub_(highest).exp2_()
    total = powers.sum(1, keepdim=True)
    with torch.enable_grad():
        m = total.log2().add_(highest).mul_(math.log(2)).requires_grad_()
        value = push(m).sum()
        (slope,) = torch.autograd.grad(value, m)
    # A class without negatives has a total of 0 and no powers to share out.
    return value.detach(), powers.mul_(slope.mul_(scale).div_(total.masked_fill_(total == 0, 1)))


def _through(graph: tuple[Tensor, Tensor] | None, grad: Tensor) -> Tensor:
    """The gradient of the class scores from that of the transformed ones."""
    if graph is None:
        return grad
    leaf, transformed = graph
    return torch.autograd.grad(transformed, leaf, grad)[0]


def _finish(
    grads: tuple[Tensor | None, Tensor | None],
    queries: Tensor,
    proxies: Tensor,
    labels: Tensor,
    scoring: Scoring,
    grad_positive: Tensor,
    grad_negative: Tensor,
) -> None:
    """In place: the gradient of the negatives, made for 1, times what came, plus that of the positives."""
    with torch.enable_grad():
        x, w = queries.detach().requires_grad_(), proxies.detach()[labels].requires_grad_()
        similarities = scoring.similarity.pairs(x, w)
        positive = scoring.pooling.dense(similarities) if w.shape[1] > 1 else similarities.squeeze(1)
        grad_x, grad_w = torch.autograd.grad(positive, (x, w), grad_positive)
    # On a CPU the usual gradient of 1 is seen at once and spares a pass over the proxies; a GPU would have to wait.
    scaled = grad_negative.is_cuda or bool(grad_negative != 1)
    for grad in grads:
        if grad is not None and scaled:
            grad.mul_(grad_negative)
    if grads[0] is not None:
        grads[0].add_(grad_x)
    if grads[1] is not None:
        grads[1].index_add_(0, labels, grad_w)


def _add_terms(
    terms: tuple[Regularizer, ...],
    states: list[Tensor | None],
    grad: Tensor | None,
    proxies: Tensor,
    part: slice,
    factor: Tensor,
) -> None:
    """The gradient of the regularisers onto that of a chunk's proxies, where they are wanted."""
    if grad is not None:
        share = len(proxies[part]) / len(proxies)
        for term, state in zip(terms, states, strict=True):
            term.add_gradient(grad[part], proxies[part], state, factor * (term.weight * share))


def _empty_grads(ctx: Any, queries: Tensor, proxies: Tensor) -> tuple[Tensor | None, Tensor | None]:
    return (
        torch.zeros_like(queries, memory_format=torch.contiguous_format) if ctx.needs_input_grad[0] else None,
        torch.empty_like(proxies, memory_format=torch.contiguous_format) if ctx.needs_input_grad[1] else None,
    )


@contextmanager
def _outside_autograd(like: Tensor, scoring: Scoring) -> Iterator[None]:
    with (
        torch.no_grad(),
        torch.autocast(like.device.type, enabled=False),
        _full_precision(scoring.similarity.cancels),
    ):
        yield


@contextmanager
def _full_precision(wanted: bool) -> Iterator[None]:
    """Matrix products of float32 in float32, whatever the process allows for speed, such as TF32."""
    allowed = torch.get_float32_matmul_precision()
    if not wanted or allowed == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(allowed)
