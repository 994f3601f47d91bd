"""The one expensive part of every proxy loss, walked over the classes in chunks.

`streamed_scores` gives the values and gradients of `dense_scores` and holds no more than a chunk of
``[classes, proxies, batch]`` similarities. Its gradient is computed in one of three ways, the fastest that the memory
allows (`Plan`):

* where there are few scores they are all kept (three matrix products altogether);
* the log-sum-exp of a class is complete inside its chunk, so class-wise losses form its gradient in the same pass
  (three);
* else the backward computes each chunk again (four).
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from proxemic.losses.scores.buffers import Buffers
from proxemic.losses.scores.compiled import CompileChunks, Compiled
from proxemic.losses.scores.derivative import Backward, with_backward
from proxemic.losses.scores.device import on_gpu
from proxemic.losses.scores.fused import Factors, Fused, fits, plan_for_kernels
from proxemic.losses.scores.plan import Plan, free_memory
from proxemic.losses.scores.products import Products, multiply_in_float32
from proxemic.losses.scores.regularizers import Regularizer
from proxemic.losses.scores.sampling import SamplingWeights
from proxemic.losses.scores.scoring import Elementwise, Scoring, dense_scores, pair_scores
from proxemic.precision import matmul_precision

Grads = tuple[Tensor | None, Tensor | None]  # of queries and proxies
Pooled = tuple[Tensor, Tensor | None]  # scores of classes, and weights of their proxies


class Settings(NamedTuple):
    """What a walk is told besides its tensors."""

    scoring: Scoring
    plan: Plan
    terms: tuple[Regularizer, ...]
    sampling: SamplingWeights
    products: Products
    compiled: bool  # whether the work on a chunk is
    fused: bool  # whether it is done by kernels of ours
    buffers: Buffers

    @property
    def inexact(self) -> bool:
        """Whether the scores of target classes, and their gradients, are computed apart, from the samples alone."""
        return self.scoring.similarity.needs_full_precision or self.products.rounds or self.fused

    @property
    def precision(self) -> AbstractContextManager[None]:
        """Of the products within."""
        return self.products.context(exact=self.scoring.similarity.needs_full_precision)


def streamed_scores(
    embeddings: Float[Tensor, "batch dim"],
    proxies: Float[Tensor, "classes proxies features"],
    labels: Int[Tensor, " batch"],
    scoring: Scoring,
    chunk_size: int | None = None,
    terms: Sequence[Regularizer] = (),
    sampling: SamplingWeights | None = None,
    products: Products | None = None,
    *,
    compiled: CompileChunks = False,
    buffers: Buffers | None = None,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "*batch"], Float[Tensor, ""]]:
    """Positive scores ``[batch]``; reduced negatives, ``[batch]``, or a scalar for class-wise losses; the sum of terms.

    Args:
        embeddings: One per row, float32 or float64.
        proxies: K per class, of the same dtype.
        labels: Target classes; the positive score is 0 where a label is out of [0, classes).
        scoring: What is summed, see `Scoring`.
        chunk_size: Number of classes whose scores are computed at once; ``None`` chooses by `Plan.of`.
        terms: Separable regularisers, computed with each chunk while its proxies are in the cache.
        sampling: What the classes stand for, where there are others.
        products: The precision of the matrix products; the scores of target classes are exact in all.
        compiled: Whether `torch.compile` makes few operations of those on a chunk; ``"triton"`` has kernels of our own,
            where they compute this.
        buffers: The memory of the last step, to be used again.

    >>> x, w = torch.eye(2), torch.eye(3, 2).unsqueeze(1)
    >>> positive, negative, _ = streamed_scores(x, w, torch.tensor([0, 1]), Scoring(scale=1.0))
    >>> positive
    tensor([1., 1.])
    """
    sampling = sampling or SamplingWeights(len(proxies))
    if len(proxies) == 0:
        return _nothing(embeddings, proxies, scoring)
    products = products or Products()
    # What is compiled as a whole has no kernels of ours inside.
    asked = compiled == "triton" and not torch.compiler.is_compiling()
    fused = asked and fits(scoring, embeddings, proxies, products)
    if chunk_size is None:
        free = free_memory(proxies.device) if on_gpu(proxies) else None
        plan = Plan.of(scoring, len(embeddings), *proxies.shape, free=free)
        if fused:
            plan = plan_for_kernels(plan, len(embeddings), proxies, products)
    else:
        plan = Plan(min(chunk_size, len(proxies)), keep=chunk_size >= len(proxies) and not fused)
    if plan.dense:
        return dense_scores(embeddings, proxies, labels, scoring, terms, sampling)
    queries = scoring.similarity.prepare(embeddings)
    buffers = buffers or Buffers()
    settings = Settings(scoring, plan, tuple(terms), sampling, products, compiled is True, fused, buffers)
    return _Streamed.apply(queries, proxies, labels, settings, torch.is_grad_enabled())  # type: ignore[return-value]


def _nothing(embeddings: Tensor, proxies: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor, Tensor]:
    """For no classes: empty sums, with gradients of 0, so that the collectives of the backward still run."""
    zero = 0 * (embeddings.sum() + proxies.sum())
    positive = zero.expand(len(embeddings))
    return positive, positive - torch.inf if scoring.class_reduction is None else zero, zero


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, queries: Tensor, proxies: Tensor, labels: Tensor, settings: Settings, differentiable: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        differentiable = differentiable and any(ctx.needs_input_grad)
        ctx.settings = settings
        scoring, plan, inexact = settings.scoring, settings.plan, settings.inexact
        with torch.autocast(queries.device.type, enabled=False), settings.precision:
            walk = _Walk(queries, proxies, labels, settings)
            walk.measures = proxies.new_empty(proxies.shape[0] * proxies.shape[1], 1)
            if walk.on_gpu:
                scoring.similarity.measure(proxies.flatten(0, 1), walk.measures)
            if inexact:
                with matmul_precision("ieee"):
                    walk.set_target()
            walk.states = [term.make_state(proxies) for term in settings.terms]
            if plan.keep and differentiable:
                walk.kept = settings.buffers.take("similarities", (*proxies.shape[:2], len(queries)), queries)
            grads = _empty_grads(ctx, queries, proxies) if walk.one_pass and differentiable else None
            forward_chunk = _compiled_forward if settings.compiled else _Walk.forward_chunk
            for part in walk.parts:
                forward_chunk(walk, part, grads)
            walk.finish()
        ctx.states, ctx.grads, ctx.pooled = walk.states, grads, walk.kept_pooled
        ctx.save_for_backward(queries, proxies, labels, walk.negative, walk.measures, walk.target, walk.kept)
        return walk.positive, walk.negative if scoring.class_reduction else walk.negative * math.log(2), walk.total

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any, grad_positive: Tensor, grad_negative: Tensor, grad_terms: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        queries, proxies, labels, negative, measures, target, kept = ctx.saved_tensors
        settings: Settings = ctx.settings
        scoring, inexact = settings.scoring, settings.inexact
        # A single pass made it in the forward for a gradient of 1. It is handed on, not copied: a second backward of a
        # retained graph, which is rare, computes it again.
        grads, ctx.grads = ctx.grads, None
        with torch.autocast(queries.device.type, enabled=False), settings.precision:
            walk = _Walk(queries, proxies, labels, settings)
            walk.measures, walk.measured, walk.target, walk.states = measures, True, target, ctx.states
            walk.kept, walk.kept_pooled, walk.filled = kept, ctx.pooled, kept is not None
            # An empty sum has no gradient: exp(−∞ − 0) = 0, where exp(−∞ − −∞) would be nan.
            walk.negative = negative.masked_fill(negative == -torch.inf, 0)
            if grads is None:
                grads = _empty_grads(ctx, queries, proxies)
                if walk.fused is not None and scoring.class_reduction is None:
                    walk.factors = Factors.of(grad_negative * scoring.scale)
                backward_chunk = _compiled_backward if settings.compiled else _Walk.backward_chunk
                for part in walk.parts:
                    backward_chunk(walk, part, grads, grad_positive, grad_negative, grad_terms)
            if walk.one_pass:
                walk.scale(grads, grad_negative, grad_terms)
            if walk.one_pass or inexact:
                with matmul_precision("ieee" if inexact else None):
                    walk.add_target_gradient(grads, grad_positive)
        return grads[0], grads[1], None, None, None


class _Walk:
    """A pass over all chunks of the classes: forward by `forward_chunk`, backward by `backward_chunk`."""

    def __init__(self, queries: Tensor, proxies: Tensor, labels: Tensor, settings: Settings) -> None:
        self.queries, self.proxies, self.labels = queries, proxies, labels
        self.scoring, self.plan, self.terms, self.sampling, self.products, *_ = scoring, plan, *_ = settings
        self.on_gpu, self.inexact = on_gpu(proxies), settings.inexact
        self.unread = self.on_gpu or torch.compiler.is_compiling()  # no number may be read: it would be waited for
        self.fused = None
        if settings.fused:
            self.fused = Fused(queries, labels, scoring, self.products, plan.chunk, proxies.shape[1])
        else:
            self.operand = self.products.operand(queries)
        self.measures = proxies  # of each proxy, once they are computed: on a GPU all at once, else with their chunk
        self.measured = self.on_gpu
        self.one_pass = scoring.class_reduction is not None and not plan.keep
        # Similarities to the target class [batch, proxies], where those of a chunk are inexact.
        self.target: Tensor | None = None
        self.kept: Tensor | None = None  # all similarities, if they are kept
        self.kept_pooled: list[Pooled] = []  # and for each chunk, what pooling made of them
        self.factors: Factors | None = None  # of kernels, for the gradient of the negatives of each sample
        self.filled = False  # whether they have been computed
        self.states: list[Tensor | None] = []  # one per regulariser
        self.positive = queries.new_zeros(len(queries))
        self.total = queries.new_zeros(())
        data_wise = scoring.class_reduction is None
        self.negative = torch.full_like(self.positive, -torch.inf) if data_wise else torch.zeros_like(self.total)
        classes, step = len(proxies), plan.chunk
        self.parts = [slice(start, min(start + step, classes)) for start in range(0, classes, step)]
        # One buffer for all chunks, and results in place: small tensors that outlive a chunk, allocated between large
        # ones that do not, would each leave a hole in the heap.
        if self.fused is None:
            scores = min(step, classes), proxies.shape[1], len(queries)
            self.scratch = settings.buffers.take("chunk", scores, queries)

    def set_target(self) -> None:
        """Compute the similarities to the target classes, or at once the positive scores, from the samples alone."""
        labels = self.labels.clamp(0, len(self.proxies) - 1)
        if self.fused is None:
            self.target = self.scoring.similarity.pairs(self.queries, self.proxies[labels])
        else:
            positive = pair_scores(self.queries, self.proxies[labels], self.scoring)
            self.positive = positive.masked_fill_(labels != self.labels, 0)

    def chunk(self, part: slice) -> "_Chunk | _FusedChunk":
        """The work on some of the classes."""
        return _Chunk(self, part) if self.fused is None else _FusedChunk(self, part, self.fused)

    def forward_chunk(self, part: slice, grads: Grads | None) -> None:
        """Add a chunk to positives, negatives and terms; in a single pass, also their gradient to ``grads``."""
        self.chunk(part).add_scores(grads)
        for term, state in zip(self.terms, self.states, strict=True):
            sampling = self.sampling.part(part)
            value = term.value(self.proxies[part], sampling, None if state is None else state[part])
            self.total.add_(value * term.weight)
        if grads is not None and not self.on_gpu:
            self._add_terms(part, grads[1], 1.0)

    def backward_chunk(
        self, part: slice, grads: Grads, grad_positive: Tensor, grad_negative: Tensor, grad_terms: Tensor
    ) -> None:
        """Add a chunk's gradient; in a single pass, that of the negatives and the terms, for gradients of 1."""
        self.chunk(part).add_gradient(grads, grad_positive, grad_negative)
        if not (self.one_pass and self.on_gpu):
            self._add_terms(part, grads[1], 1.0 if self.one_pass else grad_terms)

    def finish(self) -> None:
        """Add up what chunks have left in parts."""
        if self.fused is not None and self.scoring.class_reduction is None:
            self.negative = _logsumexp2(self.fused.sums)

    def scale(self, grads: Grads, grad_negative: Tensor, grad_terms: Tensor) -> None:
        """Of a single pass: multiply the gradient of negatives and terms, computed for 1, by the incoming ones."""
        # Incoming gradients of 1 are usual, and spare passes over the proxies; a GPU would have to be waited for.
        if self.unread or bool(grad_negative != 1):
            for grad in grads:
                if grad is not None:
                    grad.mul_(grad_negative)
        # On a GPU the gradient of the terms is not there yet.
        missing = grad_terms if self.on_gpu else grad_terms - grad_negative
        if self.terms and (self.unread or bool(missing != 0)):
            for part in self.parts:
                self._add_terms(part, grads[1], missing)

    def measured_rows(self, part: slice) -> tuple[Tensor, Tensor]:
        """The proxies of a chunk, one per row, and what the similarity needs of each."""
        rows, proxies = self.proxies[part].flatten(0, 1), self.proxies.shape[1]
        measures = self.measures[part.start * proxies : part.stop * proxies]
        if not self.measured:
            self.scoring.similarity.measure(rows, measures)
        return rows, measures

    def add_target_gradient(self, grads: Grads, grad_positive: Tensor) -> None:
        """Add the gradient of the positive scores, from the samples and the proxies of their target classes alone."""
        scoring, last = self.scoring, len(self.proxies) - 1
        labels = self.labels.clamp(0, last)
        _, backward = with_backward(lambda x, w: pair_scores(x, w, scoring), self.queries, self.proxies[labels])
        grad_x, grad_w = backward(grad_positive.masked_fill(labels != self.labels, 0))
        if grads[0] is not None:
            grads[0].add_(grad_x)
        if grads[1] is not None:
            grads[1].index_add_(0, labels, grad_w)

    def _add_terms(self, part: slice, grad: Tensor | None, factor: Tensor | float) -> None:
        """Add the gradient of the regularisers to that of the proxies."""
        if grad is not None:
            for term, state in zip(self.terms, self.states, strict=True):
                chunk = None if state is None else state[part]
                sampling = self.sampling.part(part)
                term.add_gradient(grad[part], self.proxies[part], sampling, chunk, factor * term.weight)


_compiled_forward = Compiled(_Walk.forward_chunk)
_compiled_backward = Compiled(_Walk.backward_chunk)


class _Chunk:
    """The scores of a chunk of classes, and where the target classes of the samples are among them."""

    def __init__(self, walk: _Walk, part: slice) -> None:
        self.walk, self.part, self.sampling = walk, part, walk.sampling.part(part)
        self.rows, self.measures = walk.measured_rows(part)
        # An entry for every sample, also where its class is in another chunk: indices of varying length would make a
        # GPU be waited for.
        self.column = (walk.labels - part.start).clamp_(0, part.stop - part.start - 1).unsqueeze(0)
        self.inside = ((walk.labels >= part.start) & (walk.labels < part.stop)).unsqueeze(0)
        self.similarities = self._similarities()
        self.pooled, self.weights = self._pooled()
        self.through_transform: Backward | None = None

    def add_scores(self, grads: Grads | None) -> None:
        """Add positives and negatives; in a single pass, also their gradient to ``grads``."""
        walk, reduction = self.walk, self.walk.scoring.class_reduction
        target = self.pooled.gather(0, self.column).squeeze(0)
        torch.where(self.inside.squeeze(0), target, walk.positive, out=walk.positive)
        if reduction is None:
            torch.logaddexp2(walk.negative, _logsumexp2(self.logits()), out=walk.negative)
            return
        value, grad = self.reduce_classes(reduction, differentiable=grads is not None)
        walk.negative.add_(value)
        if grads is not None and grad is not None:
            self.backward(grad, grads)

    def add_gradient(self, grads: Grads, grad_positive: Tensor, grad_negative: Tensor) -> None:
        """Add the gradient; in a single pass, that of the negatives, for a gradient of 1."""
        walk, reduction = self.walk, self.walk.scoring.class_reduction
        if reduction is None:
            grad = self.logits().sub_(walk.negative).exp2_().mul_(grad_negative * walk.scoring.scale)
        else:
            _, grad = self.reduce_classes(reduction, differentiable=True)
            assert grad is not None
            if not walk.one_pass:
                grad.mul_(grad_negative)
        # Where a chunk's product is inexact near the target class, so is its gradient: `add_target_gradient` adds that.
        target = 0.0 if walk.inexact else grad_positive
        self.backward(grad, grads, None if walk.one_pass else target)

    def _similarities(self) -> Tensor:
        """``[classes, proxies, batch]``, which the backward may overwrite."""
        walk, proxies = self.walk, self.walk.proxies.shape[1]
        scratch = walk.scratch[: self.part.stop - self.part.start]
        if walk.kept is not None and walk.filled:
            return scratch.copy_(walk.kept[self.part])  # the kept ones must outlast this backward
        into = scratch if walk.kept is None else walk.kept[self.part]
        flat = into.flatten(0, 1)
        walk.products.multiply(walk.products.operand(self.rows), walk.operand.transposed(), flat)
        walk.scoring.similarity.from_products(flat, walk.queries, self.measures)
        if walk.target is not None:
            column = self.column.unsqueeze(1).expand(1, proxies, -1)
            exact = torch.where(self.inside, walk.target.T, into.gather(0, column).squeeze(0))
            into.scatter_(0, column, exact.unsqueeze(0))
        return into

    def _pooled(self) -> Pooled:
        """The scores of the classes, and the weights of their proxies, which the backward may overwrite."""
        walk = self.walk
        if self.similarities.shape[1] == 1:
            return self.similarities.squeeze(1), None
        if walk.filled and walk.plan.keep_weights:
            pooled, weights = walk.kept_pooled[self.part.start // walk.plan.chunk]
            return pooled.clone(), None if weights is None else weights.clone()
        pooled = walk.scoring.pooling.forward(self.similarities)
        if walk.kept is not None and walk.plan.keep_weights:
            walk.kept_pooled.append(pooled)
        return pooled

    def logits(self) -> Tensor:
        """``(a·g(S) + bias)/ln 2`` with −∞ for the target class, as powers of 2 are much faster than powers of e."""
        scoring, transformed = self.walk.scoring, self.pooled
        if scoring.transform is not None:
            transformed, self.through_transform = with_backward(scoring.transform, self.pooled)
        logits = transformed * (scoring.scale / math.log(2))
        if (offsets := _offsets(self.sampling, scoring)) is not None:
            logits.add_(offsets.unsqueeze(1))
        return self.put_target(logits, -torch.inf)

    def reduce_classes(self, reduction: Elementwise, *, differentiable: bool) -> tuple[Tensor, Tensor | None]:
        """``Σ_c r(M_c)`` of the chunk's classes, and its gradient in ``g(S)``."""
        logits = self.logits()
        highest = logits.amax(1, keepdim=True).clamp_(min=torch.finfo(logits.dtype).min)
        powers = logits.sub_(highest).exp2_()
        total = powers.sum(1, keepdim=True)
        m = total.log2().add_(highest)
        value, slope = _reduce(m, reduction, self.sampling.weights, differentiable=differentiable)
        if slope is None:
            return value, None
        # A class without negatives has a total of 0 and powers of 0.
        slope = slope.mul_(self.walk.scoring.scale).div_(total.masked_fill_(total == 0, 1))
        return value, powers.mul_(slope)

    def put_target(self, scores: Tensor, value: Tensor | float) -> Tensor:
        """Write ``value`` in place where a sample meets its target class."""
        kept = scores.gather(0, self.column)
        return scores.scatter_(0, self.column, torch.where(self.inside, value, kept))

    def backward(self, grad: Tensor, grads: Grads, target: Tensor | float | None = None) -> None:
        """Add the gradient of the queries and write that of the proxies, from those of ``g(S)`` and of the target."""
        scoring, (grad_queries, grad_proxies) = self.walk.scoring, grads
        if self.through_transform is not None:
            (grad,) = self.through_transform(grad)
        if target is not None:
            self.put_target(grad, target)
        if self.similarities.shape[1] > 1:
            grad = scoring.pooling.backward(grad, self.similarities, self.pooled, self.weights).flatten(0, 1)
        walk, products = self.walk, self.walk.products
        scores = self.similarities.flatten(0, 1)
        slopes, along_proxies, along_queries = scoring.similarity.slopes(grad, scores, walk.queries, self.measures)
        operand = products.operand(slopes)
        if grad_queries is not None:
            products.add(grad_queries, operand.transposed(), products.operand(self.rows))
            if along_queries is not None:
                grad_queries.addcmul_(walk.queries, along_queries)
        if grad_proxies is not None:
            written = products.multiply(operand, walk.operand, grad_proxies[self.part].flatten(0, 1))
            if along_proxies is not None:
                written.addcmul_(self.rows, along_proxies)


class _FusedChunk:
    """The same by kernels, which hold no scores; those of target classes are computed apart."""

    def __init__(self, walk: _Walk, part: slice, fused: Fused) -> None:
        self.walk, self.part, self.fused, self.sampling = walk, part, fused, walk.sampling.part(part)
        self.rows, self.measures = walk.measured_rows(part)
        self.offsets = _offsets(self.sampling, walk.scoring)
        self.units = fused.multiplied(self.rows, self.measures)

    def add_scores(self, grads: Grads | None) -> None:
        """Add negatives; in a single pass, also their gradient to ``grads``."""
        if self.walk.scoring.class_reduction is None:
            self.fused.log_sums(self.units, self.part.start, self.offsets)
        else:
            self.walk.negative.add_(self._reduce_classes(grads))

    def add_gradient(self, grads: Grads, grad_positive: Tensor, grad_negative: Tensor) -> None:
        """Add the gradient of negatives; in a single pass, for a gradient of 1."""
        if self.walk.factors is None:
            self._reduce_classes(grads)
        else:
            self._add(grads, self.walk.negative, self.walk.factors)

    def _reduce_classes(self, grads: Grads | None) -> Tensor:
        """The sum over the classes, with its gradient."""
        scoring = self.walk.scoring
        assert scoring.class_reduction is not None
        m = _logsumexp2(self.fused.log_sums(self.units, self.part.start, self.offsets))
        weights, differentiable = self.sampling.weights, grads is not None
        value, slope = _reduce(m.unsqueeze(1), scoring.class_reduction, weights, differentiable=differentiable)
        if grads is not None and slope is not None:
            factors = Factors.of(slope.squeeze(1) * scoring.scale)
            self._add(grads, m.clamp_(min=torch.finfo(m.dtype).min), factors)
        return value

    def _add(self, grads: Grads, normalizers: Tensor, factors: Factors) -> None:
        """Add the gradient of the queries and write that of the proxies."""
        grad_queries, grad_proxies = grads
        place = self.units, self.part.start, self.offsets
        slopes, along = self.fused.slopes(*place, normalizers, factors.values)
        if grad_queries is not None:
            grad_queries.addcmul_(multiply_in_float32(slopes.T, self.units), factors.unit)
        if grad_proxies is not None:
            # ‖ŵ‖ = 1 removes the part of each gradient along its proxy.
            across = multiply_in_float32(slopes, self.fused.queries)
            across.addcmul_(self.rows, self.measures * along.unsqueeze(1), value=-1)
            torch.mul(across, self.measures * factors.unit, out=grad_proxies[self.part].flatten(0, 1))


def _offsets(sampling: SamplingWeights, scoring: Scoring) -> Tensor | None:
    """What is added to the logits of each class, in powers of 2: its bias, and its weight where classes are summed."""
    offsets = None if sampling.bias is None else sampling.bias / math.log(2)
    if sampling.weights is None or scoring.class_reduction is not None:
        return offsets
    weights = sampling.weights.log2()
    return weights if offsets is None else weights.add_(offsets)


def _reduce(
    m: Tensor, reduction: Elementwise, weights: Tensor | None, *, differentiable: bool
) -> tuple[Tensor, Tensor | None]:
    """``Σ_c r(M_c)`` of binary logarithms of sums, one per row, and its gradient in ``M``."""

    def reduced(m: Tensor) -> Tensor:
        return (reduction(m) if weights is None else reduction(m) * weights.unsqueeze(1)).sum()

    m = m * math.log(2)
    if not differentiable:
        return reduced(m), None
    value, backward = with_backward(reduced, m)
    (slope,) = backward(torch.ones_like(value))
    return value, slope


def _logsumexp2(logits: Tensor) -> Tensor:
    """``log₂ Σ_c 2^logits`` per sample, −∞ for an empty sum; overwrites ``logits``."""
    highest = logits.amax(0).clamp_(min=torch.finfo(logits.dtype).min)
    return logits.sub_(highest).exp2_().sum(0).log2_().add_(highest)


def _empty_grads(ctx: Any, queries: Tensor, proxies: Tensor) -> Grads:
    return (
        torch.zeros_like(queries, memory_format=torch.contiguous_format) if ctx.needs_input_grad[0] else None,
        ctx.settings.buffers.take("gradient", proxies.shape, proxies) if ctx.needs_input_grad[1] else None,
    )
