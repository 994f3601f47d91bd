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

from proxemic.losses.scores.buffers import Buffers
from proxemic.losses.scores.chunks import Chunk, FusedChunk, Grads, Pooled, logsumexp2
from proxemic.losses.scores.compiled import CompileChunks, Compiled
from proxemic.losses.scores.derivative import first_order, with_backward
from proxemic.losses.scores.device import on_gpu
from proxemic.losses.scores.fused import Factors, Fused, fits, plan_for_kernels
from proxemic.losses.scores.plan import Plan, free_memory
from proxemic.losses.scores.products import Products
from proxemic.losses.scores.regularizers import Regularizer
from proxemic.losses.scores.sampling import SamplingWeights
from proxemic.losses.scores.scoring import Scoring, dense_scores, pair_scores
from proxemic.precision import matmul_precision


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
            walk = Walk(queries, proxies, labels, settings)
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
            walk.make_room()
            forward_chunk = _compiled_forward if settings.compiled else Walk.forward_chunk
            for part in walk.parts:
                forward_chunk(walk, part, grads)
            walk.finish(differentiable=differentiable)
        ctx.states, ctx.grads, ctx.kept = walk.states, grads, (walk.kept, walk.kept_pooled)
        sums = walk.negative if walk.peaks is None else walk.peaks
        ctx.save_for_backward(queries, proxies, labels, walk.measures, walk.target, sums, walk.slopes)
        return walk.positive, walk.negative if scoring.class_reduction else walk.negative * math.log(2), walk.total

    @staticmethod
    @first_order
    def backward(  # type: ignore[override]
        ctx: Any, grad_positive: Tensor, grad_negative: Tensor, grad_terms: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        queries, proxies, labels, measures, target, sums, slopes = ctx.saved_tensors
        settings: Settings = ctx.settings
        inexact = settings.inexact
        # A single pass made the gradient in the forward, for a gradient of 1. It is handed on, and similarities that
        # were kept are overwritten, not copied: a second backward of a retained graph, which is rare, computes them
        # again.
        grads, ctx.grads = ctx.grads, None
        kept, ctx.kept = ctx.kept, (None, [])
        with torch.autocast(queries.device.type, enabled=False), settings.precision:
            walk = Walk(queries, proxies, labels, settings)
            walk.measures, walk.measured, walk.target, walk.states = measures, True, target, ctx.states
            walk.kept, walk.kept_pooled = kept
            walk.filled = walk.kept is not None
            if grads is None:
                grads = _empty_grads(ctx, queries, proxies)
                walk.make_room()
                walk.set_slopes(sums, slopes, grad_negative)
                backward_chunk = _compiled_backward if settings.compiled else Walk.backward_chunk
                for part in walk.parts:
                    backward_chunk(walk, part, grads, grad_positive, grad_terms)
            if walk.one_pass:
                walk.scale(grads, grad_negative, grad_terms)
            if walk.one_pass or inexact:
                with matmul_precision("ieee" if inexact else None):
                    walk.add_target_gradient(grads, grad_positive)
        return grads[0], grads[1], None, None, None


class Walk:
    """A pass over all chunks of the classes: forward by `forward_chunk`, backward by `backward_chunk`."""

    def __init__(self, queries: Tensor, proxies: Tensor, labels: Tensor, settings: Settings) -> None:
        self.queries, self.proxies, self.labels, self.settings = queries, proxies, labels, settings
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
        self.filled = False  # whether they have been computed
        self.states: list[Tensor | None] = []  # one per regulariser
        self.positive = queries.new_zeros(len(queries))
        self.total = queries.new_zeros(())
        # Sums of powers of 2, of samples as logarithms; of classes as their largest terms and the rest.
        data_wise = scoring.class_reduction is None
        self.negative = torch.full_like(self.positive, -torch.inf) if data_wise else torch.zeros_like(self.total)
        self.peaks: Tensor | None = None
        self.slopes: Tensor | None = None  # of the loss in the sums, by which the powers are multiplied
        if not data_wise:
            self.peaks, self.totals, self.slopes = (queries.new_empty(len(proxies), 1) for _ in range(3))
        self.factors: Factors | None = None  # the same of samples for kernels
        classes, step = len(proxies), plan.chunk
        self.parts = [slice(start, min(start + step, classes)) for start in range(0, classes, step)]
        self.scratch = proxies  # for similarities, once it is made

    def make_room(self) -> None:
        """Have room for the similarities of a chunk, unless all are kept.

        One buffer for all chunks, and results in place: small tensors that outlive a chunk, allocated between large
        ones that do not, would each leave a hole in the heap.
        """
        if self.fused is None and self.kept is None:
            scores = min(self.plan.chunk, len(self.proxies)), self.proxies.shape[1], len(self.queries)
            self.scratch = self.settings.buffers.take("chunk", scores, self.queries)

    def set_target(self) -> None:
        """Compute the similarities to the target classes, or at once the positive scores, from the samples alone."""
        labels = self.labels.clamp(0, len(self.proxies) - 1)
        if self.fused is None:
            self.target = self.scoring.similarity.pairs(self.queries, self.proxies[labels])
        else:
            positive = pair_scores(self.queries, self.proxies[labels], self.scoring)
            self.positive = positive.masked_fill_(labels != self.labels, 0)

    def chunk(self, part: slice) -> Chunk | FusedChunk:
        """The work on some of the classes."""
        return Chunk(self, part) if self.fused is None else FusedChunk(self, part, self.fused)

    def forward_chunk(self, part: slice, grads: Grads | None) -> None:
        """Add a chunk to positives, negatives and terms; in a single pass, also their gradient to ``grads``."""
        self.chunk(part).add_scores(grads)
        for term, state in zip(self.terms, self.states, strict=True):
            sampling = self.sampling.part(part)
            value = term.value(self.proxies[part], sampling, None if state is None else state[part])
            self.total.add_(value * term.weight)
        if grads is not None and not self.on_gpu:
            self._add_terms(part, grads[1], 1.0)

    def backward_chunk(self, part: slice, grads: Grads, grad_positive: Tensor, grad_terms: Tensor) -> None:
        """Add a chunk's gradient; in a single pass, that of the negatives and the terms, for gradients of 1."""
        self.chunk(part).add_gradient(grads, grad_positive)
        if not (self.one_pass and self.on_gpu):
            self._add_terms(part, grads[1], 1.0 if self.one_pass else grad_terms)

    def finish(self, *, differentiable: bool) -> None:
        """Add up what chunks have left in parts."""
        if self.peaks is None and self.fused is not None:
            self.negative = logsumexp2(self.fused.sums)
        elif self.peaks is not None and not self.one_pass:
            self.reduce_totals(slice(0, len(self.proxies)), differentiable=differentiable)

    def reduce_totals(self, part: slice, *, differentiable: bool) -> None:
        """`reduce_classes` of sums whose largest terms are apart."""
        assert self.peaks is not None
        assert self.slopes is not None
        totals = self.totals[part]
        self.reduce_classes(part, totals.log2().add_(self.peaks[part]), differentiable=differentiable)
        if differentiable:  # a class without negatives has a total of 0 and powers of 0
            self.slopes[part].div_(totals.masked_fill_(totals == 0, 1))

    def reduce_classes(self, part: slice, logarithms: Tensor, *, differentiable: bool) -> None:
        """Add ``Σ_c r(M_c)`` to the negatives, and find its slope in each M, times the scale of the scores."""
        reduction, sampling = self.scoring.class_reduction, self.sampling.part(part)
        assert reduction is not None
        assert self.slopes is not None

        def reduced(m: Tensor) -> Tensor:
            return (reduction(m) if sampling.weights is None else reduction(m) * sampling.weights.unsqueeze(1)).sum()

        m = logarithms * math.log(2)
        if not differentiable:
            self.negative.add_(reduced(m))
            return
        value, backward = with_backward(reduced, m)
        (slopes,) = backward(torch.ones_like(value))
        self.negative.add_(value)
        torch.mul(slopes, self.scoring.scale, out=self.slopes[part])

    def set_slopes(self, sums: Tensor, slopes: Tensor | None, grad_negative: Tensor) -> None:
        """Take the sums of the forward, and the slope of the loss in each; in a single pass, for a gradient of 1."""
        if slopes is None:
            # An empty sum has no gradient: exp(−∞ − 0) = 0, where exp(−∞ − −∞) would be nan.
            self.negative = sums.masked_fill(sums == -torch.inf, 0)
            slopes = grad_negative * self.scoring.scale
        else:
            self.peaks = sums
            slopes = slopes if self.one_pass else slopes * grad_negative
        self.slopes = slopes
        if self.fused is not None and self.peaks is None:
            self.factors = Factors.of(slopes)

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


_compiled_forward = Compiled(Walk.forward_chunk)
_compiled_backward = Compiled(Walk.backward_chunk)


def _empty_grads(ctx: Any, queries: Tensor, proxies: Tensor) -> Grads:
    return (
        torch.zeros_like(queries, memory_format=torch.contiguous_format) if ctx.needs_input_grad[0] else None,
        ctx.settings.buffers.take("gradient", proxies.shape, proxies) if ctx.needs_input_grad[1] else None,
    )
