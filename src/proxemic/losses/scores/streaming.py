"""The expensive part of every proxy loss, computed a chunk of classes at a time.

`streamed_scores` gives the values and gradients of `dense_scores` and holds no more than a chunk of
``[classes, proxies, batch]`` similarities. It computes its gradient in the fastest of three ways that the memory allows
(`Plan`):

* If there are few scores, it keeps them all (three matrix products altogether).
* The log-sum-exp of a class is complete within its chunk, so class-wise losses form its gradient in the same pass
  (three).
* Otherwise the backward computes each chunk again (four).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from proxemic.losses.scores.at_once import scores_at_once
from proxemic.losses.scores.derivative import Backward, first_order, with_backward
from proxemic.losses.scores.device import on_gpu
from proxemic.losses.scores.plan import Plan, gpu_memory
from proxemic.losses.scores.products import Products
from proxemic.losses.scores.regularizers import Regularizer
from proxemic.losses.scores.sampling import SamplingWeights
from proxemic.losses.scores.scoring import Scoring, pair_scores
from proxemic.precision import matmul_precision

Grads = tuple[Tensor | None, Tensor | None]  # of queries and proxies
Pooled = tuple[Tensor, Tensor | None]  # scores of classes, and weights of their proxies


class Settings(NamedTuple):
    """The arguments of a walk besides its tensors."""

    scoring: Scoring
    plan: Plan
    terms: tuple[Regularizer, ...]
    sampling: SamplingWeights
    products: Products


def streamed_scores(
    embeddings: Float[Tensor, "batch dim"],
    proxies: Float[Tensor, "classes proxies features"],
    labels: Int[Tensor, " batch"],
    scoring: Scoring,
    chunk_size: int | None = None,
    terms: Sequence[Regularizer] = (),
    sampling: SamplingWeights | None = None,
    products: Products | None = None,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "*batch"], Float[Tensor, ""]]:
    """Compute positive scores ``[batch]``, reduced negatives, and the sum of terms.

    The negatives are ``[batch]``, or a scalar for class-wise losses.

    Args:
        embeddings: One per row, float32 or float64.
        proxies: K per class, of the same dtype.
        labels: Target classes; the positive score is 0 where a label is out of [0, classes).
        scoring: What is summed, see `Scoring`.
        chunk_size: Number of classes whose scores are computed at once; ``None`` chooses by `Plan.of`.
        terms: Separable regularisers, computed with each chunk while its proxies are in the cache.
        sampling: What the classes stand for, where there are others.
        products: The precision of the matrix products; the scores of target classes are exact in all.

    >>> x, w = torch.eye(2), torch.eye(3, 2).unsqueeze(1)
    >>> positive, negative, _ = streamed_scores(x, w, torch.tensor([0, 1]), Scoring(scale=1.0))
    >>> positive
    tensor([1., 1.])
    """
    sampling = sampling or SamplingWeights(len(proxies))
    if len(proxies) == 0:
        # Empty sums, with gradients of 0, so that the collectives of the backward still run.
        zero = 0 * (embeddings.sum() + proxies.sum())
        positive = zero.expand(len(embeddings))
        return positive, positive - torch.inf if scoring.class_reduction is None else zero, zero
    products = products or Products()
    if chunk_size is None:
        memory = gpu_memory(proxies.device) if on_gpu(proxies) else None
        plan = Plan.of(scoring, len(embeddings), *proxies.shape, memory=memory)
    else:
        plan = Plan(min(chunk_size, len(proxies)), keep=chunk_size >= len(proxies))
    if plan.dense:
        return scores_at_once(embeddings, proxies, labels, scoring, terms, sampling, products)
    queries = scoring.similarity.prepare(embeddings)
    products = replace(products, cancels=scoring.similarity.needs_full_precision)
    settings = Settings(scoring, plan, tuple(terms), sampling, products)
    return _Streamed.apply(queries, proxies, labels, settings, torch.is_grad_enabled())  # type: ignore[return-value]


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, queries: Tensor, proxies: Tensor, labels: Tensor, settings: Settings, differentiable: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        differentiable = differentiable and any(ctx.needs_input_grad)
        ctx.settings, scoring = settings, settings.scoring
        with torch.autocast(queries.device.type, enabled=False), settings.products.context():
            proxy_norms = proxies.new_empty(proxies.shape[0] * proxies.shape[1], 1)
            states = [term.make_state(proxies) for term in settings.terms]
            walk = _Walk(queries, proxies, labels, settings, proxy_norms, states)
            if settings.products.inexact:
                with matmul_precision("ieee"):
                    own = proxies[labels.clamp(0, len(proxies) - 1)]
                    walk.target = scoring.similarity.pairs(queries, own)
            if settings.plan.keep and differentiable:
                walk.cache = queries.new_empty(*proxies.shape[:2], len(queries))
            grads = _empty_grads(ctx, queries, proxies) if walk.one_pass and differentiable else None
            walk.forward(grads, differentiable=differentiable)
        ctx.states, ctx.grads, ctx.cached = states, grads, (walk.cache, walk.cached_pools)
        sums = walk.sums if scoring.class_reduction is None else walk.max_logits
        ctx.save_for_backward(queries, proxies, labels, proxy_norms, walk.target, sums, walk.slopes)
        negative = walk.sums * math.log(2) if scoring.class_reduction is None else walk.reduced
        return walk.positive, negative, walk.total

    @staticmethod
    @first_order
    def backward(  # type: ignore[override]
        ctx: Any, grad_positive: Tensor, grad_negative: Tensor, grad_terms: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        queries, proxies, labels, proxy_norms, target, sums, slopes = ctx.saved_tensors
        settings: Settings = ctx.settings
        # A single pass made the gradient in the forward, for a gradient of 1. It is handed on, and similarities that
        # were kept are overwritten, not copied: a second backward of a retained graph, which is rare, computes them
        # again.
        grads, ctx.grads = ctx.grads, None
        cached, ctx.cached = ctx.cached, (None, [])
        with torch.autocast(queries.device.type, enabled=False), settings.products.context():
            walk = _Walk(queries, proxies, labels, settings, proxy_norms, ctx.states, is_forward=False)
            walk.target, (walk.cache, walk.cached_pools) = target, cached
            if grads is None:
                grads = _empty_grads(ctx, queries, proxies)
                walk.backward(grads, sums, slopes, grad_positive, grad_negative, grad_terms)
            if walk.one_pass:
                walk.scale(grads, grad_negative, grad_terms)
            if walk.one_pass or settings.products.inexact:
                with matmul_precision("ieee" if settings.products.inexact else None):
                    walk.add_target_gradient(grads, grad_positive)
        return grads[0], grads[1], None, None, None


class _Walk:
    """A pass over all chunks of the classes.

    Sums are of powers of 2, which are much faster than powers of e.

    Attributes:
        one_pass: Whether the forward makes the gradient of the negatives.
        target: Similarities to the target class ``[batch, proxies]``, where those of a chunk are inexact.
        cache: All similarities ``[classes, proxies, batch]``, if they are kept for the backward.
        cached_pools: With them, of each chunk, what pooling made of them.
        positive: Scores of the target classes ``[batch]``.
        total: The sum of the regularisers.
        sums: Of a data-wise loss, the binary logarithm of the sum of each sample's negatives ``[batch]``.
        reduced: Of a class-wise loss, the reduced sums of all classes.
        max_logits: Of a class-wise loss, the largest logit of each class ``[classes, 1]``.
        totals: The sums of a class's powers, each divided by the largest ``[classes, 1]``.
        slopes: The derivative of the negatives in each of a class's powers so divided ``[classes, 1]``.
    """

    def __init__(
        self,
        queries: Tensor,
        proxies: Tensor,
        labels: Tensor,
        settings: Settings,
        proxy_norms: Tensor,
        states: list[Tensor | None],
        *,
        is_forward: bool = True,
    ) -> None:
        self.queries, self.proxies, self.labels = queries, proxies, labels
        self.scoring, self.plan, self.terms, self.sampling, self.products = settings
        self.proxy_norms, self.states, self.is_forward = proxy_norms, states, is_forward
        self.operand = self.products.operand(queries)
        data_wise = self.scoring.class_reduction is None
        self.one_pass = not (data_wise or self.plan.keep)
        self.target: Tensor | None = None
        self.cache: Tensor | None = None
        self.cached_pools: list[Pooled] = []
        self.positive, self.total = queries.new_zeros(len(queries)), queries.new_zeros(())
        self.sums, self.reduced = torch.full_like(self.positive, -torch.inf), torch.zeros_like(self.total)
        self.slopes: Tensor | None = None
        if not data_wise:
            self.max_logits, self.totals, self.slopes = (queries.new_empty(len(proxies), 1) for _ in range(3))
        classes, step = len(proxies), self.plan.chunk
        self.parts = [slice(start, min(start + step, classes)) for start in range(0, classes, step)]

    def forward(self, grads: Grads | None, *, differentiable: bool) -> None:
        """Sum positives, negatives and terms; in a single pass, also add the gradient of the last two to ``grads``."""
        buffer = self._buffer()
        for part in self.parts:
            self._forward_chunk(_Chunk(self, part, buffer), grads)
        if not (self.scoring.class_reduction is None or self.one_pass):
            self._reduce_classes(slice(0, len(self.proxies)), differentiable=differentiable)

    def _buffer(self) -> Tensor:
        """Return room for the similarities: the cache, or a buffer that all chunks share.

        Results are written in place: small tensors that outlive a chunk, allocated between large ones that do not,
        would each leave a hole in the heap.
        """
        if self.cache is not None:
            return self.cache
        return self.queries.new_empty(min(self.plan.chunk, len(self.proxies)), self.proxies.shape[1], len(self.queries))

    def _forward_chunk(self, chunk: "_Chunk", grads: Grads | None) -> None:
        part = chunk.part
        target = chunk.pooled.gather(0, chunk.column).squeeze(0)
        torch.where(chunk.inside.squeeze(0), target, self.positive, out=self.positive)
        logits = chunk.logits()
        if self.scoring.class_reduction is None:
            torch.logaddexp2(self.sums, _logsumexp2(logits), out=self.sums)
        else:
            largest = self.max_logits[part]
            torch.amax(logits, 1, keepdim=True, out=largest).clamp_(min=torch.finfo(logits.dtype).min)
            powers = logits.sub_(largest).exp2_()
            torch.sum(powers, 1, keepdim=True, out=self.totals[part])
            if self.one_pass:
                self._reduce_classes(part, differentiable=grads is not None)
            if grads is not None and self.slopes is not None:
                chunk.backward(powers.mul_(self.slopes[part]), grads)
        for term, state in zip(self.terms, self.states, strict=True):
            value = term.value(self.proxies[part], chunk.sampling, None if state is None else state[part])
            self.total.add_(value * term.weight)
        if grads is not None:
            self._add_terms(part, grads[1], 1.0)

    def backward(
        self,
        grads: Grads,
        sums: Tensor,
        slopes: Tensor | None,
        grad_positive: Tensor,
        grad_negative: Tensor,
        grad_terms: Tensor,
    ) -> None:
        """Add the gradient of a forward with these sums; in a single pass, of negatives and terms for gradients of 1.

        ``sums`` are the `sums` of a data-wise loss, and the `max_logits` of a class-wise one.
        """
        if slopes is None:
            # An empty sum has no gradient: exp(−∞ − 0) = 0, where exp(−∞ − −∞) would be nan.
            sums = sums.masked_fill(sums == -torch.inf, 0)
            slopes = grad_negative * self.scoring.scale
        elif not self.one_pass:
            slopes = slopes * grad_negative
        # If a chunk's product is inexact near the target class, so is its gradient: `add_target_gradient` adds that.
        target = None if self.one_pass else 0.0 if self.products.inexact else grad_positive
        buffer = self._buffer()
        for part in self.parts:
            self._backward_chunk(_Chunk(self, part, buffer), grads, sums, slopes, target)
            self._add_terms(part, grads[1], 1.0 if self.one_pass else grad_terms)

    def _backward_chunk(
        self, chunk: "_Chunk", grads: Grads, sums: Tensor, slopes: Tensor, target: Tensor | float | None
    ) -> None:
        own = slice(None) if self.scoring.class_reduction is None else chunk.part
        chunk.backward(chunk.logits().sub_(sums[own]).exp2_().mul_(slopes[own]), grads, target)

    def _reduce_classes(self, part: slice, *, differentiable: bool) -> None:
        """Add ``Σ_c r(M_c)`` to the negatives, and find their derivative in each power, times the scale."""
        reduction, sampling = self.scoring.class_reduction, self.sampling.part(part)
        assert reduction is not None
        assert self.slopes is not None
        totals = self.totals[part]

        def reduced(m: Tensor) -> Tensor:
            return (reduction(m) if sampling.weights is None else reduction(m) * sampling.weights.unsqueeze(1)).sum()

        m = totals.log2().add_(self.max_logits[part]) * math.log(2)
        if not differentiable:
            self.reduced.add_(reduced(m))
            return
        value, backward = with_backward(reduced, m)
        (slopes,) = backward(torch.ones_like(value))
        self.reduced.add_(value)
        torch.mul(slopes, self.scoring.scale, out=self.slopes[part])
        # A class without negatives has a total of 0 and powers of 0.
        self.slopes[part].div_(totals.masked_fill_(totals == 0, 1))

    def scale(self, grads: Grads, grad_negative: Tensor, grad_terms: Tensor) -> None:
        """Multiply a single pass's gradient of negatives and terms, computed for 1, by the incoming ones."""
        # Incoming gradients of 1 are usual, and spare passes over the proxies; a GPU would have to be waited for.
        unread = on_gpu(self.proxies) or torch.compiler.is_compiling()
        if unread or bool(grad_negative != 1):
            for grad in grads:
                if grad is not None:
                    grad.mul_(grad_negative)
        missing = grad_terms - grad_negative
        if self.terms and (unread or bool(missing != 0)):
            for part in self.parts:
                self._add_terms(part, grads[1], missing)

    def add_target_gradient(self, grads: Grads, grad_positive: Tensor) -> None:
        """Add the gradient of the positive scores, from the samples and the proxies of their target classes alone."""
        labels = self.labels.clamp(0, len(self.proxies) - 1)
        _, backward = with_backward(lambda x, w: pair_scores(x, w, self.scoring), self.queries, self.proxies[labels])
        grad_x, grad_w = backward(grad_positive.masked_fill(labels != self.labels, 0))
        if grads[0] is not None:
            grads[0].add_(grad_x)
        if grads[1] is not None:
            grads[1].index_add_(0, labels, grad_w)

    def _add_terms(self, part: slice, grad: Tensor | None, factor: Tensor | float) -> None:
        """Add the gradient of the regularisers to that of the proxies."""
        if grad is not None:
            sampling = self.sampling.part(part)
            for term, state in zip(self.terms, self.states, strict=True):
                own = None if state is None else state[part]
                term.add_gradient(grad[part], self.proxies[part], sampling, own, factor * term.weight)


class _Chunk:
    """The scores of a chunk of classes, and where the target classes of the samples are among them.

    Attributes:
        column: The class of each sample among those of the chunk ``[1, batch]``, also where it is in another chunk:
            indices of varying length would make a GPU be waited for.
        inside: Whether it is in this one ``[1, batch]``.
        similarities: ``[classes, proxies, batch]``, which the backward may overwrite.
        pooled: The scores of the classes ``[classes, batch]``.
        weights: What pooling weighs the proxies by, which the backward may overwrite.
    """

    def __init__(self, walk: _Walk, part: slice, buffer: Tensor) -> None:
        self.walk, self.part, self.sampling = walk, part, walk.sampling.part(part)
        self.rows, per_class = walk.proxies[part].flatten(0, 1), walk.proxies.shape[1]
        self.proxy_norms = walk.proxy_norms[part.start * per_class : part.stop * per_class]
        self.column = (walk.labels - part.start).clamp_(0, part.stop - part.start - 1).unsqueeze(0)
        self.inside = ((walk.labels >= part.start) & (walk.labels < part.stop)).unsqueeze(0)
        self.similarities = buffer[: part.stop - part.start] if walk.cache is None else buffer[part]
        if walk.is_forward:
            walk.scoring.similarity.measure(self.rows, self.proxy_norms)
        if walk.is_forward or walk.cache is None:
            self._fill()
        self.pooled, self.weights = self._pool()
        self.through_transform: Backward | None = None

    def _fill(self) -> None:
        walk, flat = self.walk, self.similarities.flatten(0, 1)
        walk.products.multiply(walk.products.operand(self.rows), walk.operand.transposed(), flat)
        walk.scoring.similarity.from_products(flat, walk.queries, self.proxy_norms)
        if walk.target is not None:
            column = self.column.unsqueeze(1).expand(1, self.similarities.shape[1], -1)
            kept = self.similarities.gather(0, column).squeeze(0)
            self.similarities.scatter_(0, column, torch.where(self.inside, walk.target.T, kept).unsqueeze(0))

    def _pool(self) -> Pooled:
        walk = self.walk
        if self.similarities.shape[1] == 1:
            return self.similarities.squeeze(1), None
        keeps = walk.cache is not None and walk.plan.keep_weights
        if keeps and not walk.is_forward:
            return walk.cached_pools[self.part.start // walk.plan.chunk]
        pooled = walk.scoring.pooling.forward(self.similarities)
        if keeps:
            walk.cached_pools.append(pooled)
        return pooled

    def logits(self) -> Tensor:
        """Return ``(a·g(S) + bias)/ln 2``, with −∞ for the target class."""
        scoring, transformed = self.walk.scoring, self.pooled
        if scoring.transform is not None:
            transformed, self.through_transform = with_backward(scoring.transform, self.pooled)
        logits = transformed * (scoring.scale / math.log(2))
        if (offsets := _offsets(self.sampling, scoring)) is not None:
            logits.add_(offsets.unsqueeze(1))
        return self._put_target(logits, -torch.inf)

    def _put_target(self, scores: Tensor, value: Tensor | float) -> Tensor:
        """Write ``value`` in place where a sample meets its target class."""
        kept = scores.gather(0, self.column)
        return scores.scatter_(0, self.column, torch.where(self.inside, value, kept))

    def backward(self, grad: Tensor, grads: Grads, target: Tensor | float | None = None) -> None:
        """Add the gradient of the queries and write that of the proxies, from those of ``g(S)`` and of the target."""
        scoring, (grad_queries, grad_proxies) = self.walk.scoring, grads
        if self.through_transform is not None:
            (grad,) = self.through_transform(grad)
        if target is not None:
            self._put_target(grad, target)
        if self.similarities.shape[1] > 1:
            grad = scoring.pooling.backward(grad, self.similarities, self.pooled, self.weights).flatten(0, 1)
        walk, products, scores = self.walk, self.walk.products, self.similarities.flatten(0, 1)
        grad_scores, row_correction, query_correction = scoring.similarity.slopes(
            grad, scores, walk.queries, self.proxy_norms
        )
        operand = products.operand(grad_scores)
        if grad_queries is not None:
            products.add(grad_queries, operand.transposed(), products.operand(self.rows))
            if query_correction is not None:
                grad_queries.addcmul_(walk.queries, query_correction)
        if grad_proxies is not None:
            written = products.multiply(operand, walk.operand, grad_proxies[self.part].flatten(0, 1))
            if row_correction is not None:
                written.addcmul_(self.rows, row_correction)


def _offsets(sampling: SamplingWeights, scoring: Scoring) -> Tensor | None:
    """Return what is added to the logits of each class, in powers of 2.

    That is the bias of a class, and its weight where classes are summed.
    """
    offsets = None if sampling.bias is None else sampling.bias / math.log(2)
    if sampling.weights is None or scoring.class_reduction is not None:
        return offsets
    weights = sampling.weights.log2()
    return weights if offsets is None else weights.add_(offsets)


def _logsumexp2(logits: Tensor) -> Tensor:
    """Compute ``log₂ Σ_c 2^logits`` per sample, −∞ for an empty sum; overwrite ``logits``."""
    highest = logits.amax(0).clamp_(min=torch.finfo(logits.dtype).min)
    return logits.sub_(highest).exp2_().sum(0).log2_().add_(highest)


def _empty_grads(ctx: Any, queries: Tensor, proxies: Tensor) -> Grads:
    return (
        torch.zeros_like(queries, memory_format=torch.contiguous_format) if ctx.needs_input_grad[0] else None,
        torch.empty_like(proxies, memory_format=torch.contiguous_format) if ctx.needs_input_grad[1] else None,
    )
