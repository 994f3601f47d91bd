"""The expensive part of every proxy loss, computed one chunk of classes at a time.

`streamed_scores` has the values and gradients of `dense_scores` but holds only one chunk of
``[classes, proxies, batch]`` similarities. It computes the gradient in the fastest of three ways that memory allows
(`Plan`):

* It keeps all scores if there are few (three matrix products in total).
* A class-wise loss computes the gradient in the forward pass, as the log-sum-exp of a class is complete within its
  chunk (three).
* Otherwise the backward computes each chunk again (four).
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from proxemic.losses.scores.derivative import Backward, first_order, with_backward
from proxemic.losses.scores.plan import Plan
from proxemic.losses.scores.products import Operand, Products
from proxemic.losses.scores.regularizers import CenterRegularizer, Regularizer
from proxemic.losses.scores.sampling import SamplingWeights
from proxemic.losses.scores.scoring import Scoring, dense_scores, is_bounded, pair_scores
from proxemic.precision import matmul_precision

Grads = tuple[Tensor | None, Tensor | None]  # gradients of queries and proxies
Pooled = tuple[Tensor, Tensor | None]  # class scores, and the weights of their proxies
Compiler = Callable[..., Callable[..., Any]]  # takes a function and further arguments of `torch.compile`


def compiler(*args: Any, **keywords: Any) -> Compiler:
    """Return `torch.compile` with these arguments, cached so that each function is compiled once."""
    return functools.cache(lambda function, **more: torch.compile(function, *args, **keywords | more))


class Settings(NamedTuple):
    """The arguments of `_Walk` that are not tensors."""

    scoring: Scoring
    plan: Plan
    terms: tuple[Regularizer, ...]
    sampling: SamplingWeights
    products: Products
    compiler: Compiler | None


def streamed_scores(
    embeddings: Float[Tensor, "batch dim"],
    proxies: Float[Tensor, "classes proxies features"],
    labels: Int[Tensor, " batch"],
    scoring: Scoring,
    chunk_size: int | None = None,
    terms: Sequence[Regularizer] = (),
    sampling: SamplingWeights | None = None,
    products: Products | None = None,
    compiler: Compiler | None = None,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "*batch"], Float[Tensor, ""]]:
    """Compute positive scores ``[batch]``, reduced negatives, and the sum of the regularisers.

    The reduced negatives are ``[batch]``, or a scalar for class-wise losses.

    Args:
        embeddings: The batch, float32 or float64.
        proxies: K per class, with the same dtype.
        labels: Target classes; the positive score is 0 if a label is outside [0, classes).
        scoring: Definition of the scores and sums.
        chunk_size: Number of classes whose scores are computed at once; ``None`` lets `Plan.of` choose.
        terms: Separable regularisers, computed with each chunk while its proxies are in the cache.
        sampling: How many classes each row of the proxies stands for, if they are not all classes.
        products: Precision of the matrix products; the scores of target classes are always exact.
        compiler: Compiles the computation of a chunk, once for chunks of any size.

    >>> x, w = torch.eye(2), torch.eye(3, 2).unsqueeze(1)
    >>> positive, negative, _ = streamed_scores(x, w, torch.tensor([0, 1]), Scoring(scale=1.0))
    >>> positive
    tensor([1., 1.])
    """
    sampling, products = sampling or SamplingWeights(len(proxies)), products or Products()
    if len(proxies) == 0:
        # Empty sums, with gradients of 0, so that the collectives of the backward still run.
        zero = 0 * (embeddings.sum() + proxies.sum())
        positive = zero.expand(len(embeddings))
        return positive, positive - torch.inf if scoring.class_reduction is None else zero, zero
    plan = Plan.of_step(scoring, embeddings, proxies, chunk_size)
    if plan.dense:
        return dense_scores(embeddings, proxies, labels, scoring, terms, sampling, products)
    queries = scoring.similarity.prepare(embeddings)
    products = replace(products, cancels=scoring.similarity.needs_full_precision)
    settings = Settings(scoring, plan, tuple(terms), sampling, products, compiler)
    return _Streamed.apply(queries, proxies, labels, settings, torch.is_grad_enabled())  # type: ignore[return-value]


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, queries: Tensor, proxies: Tensor, labels: Tensor, settings: Settings, differentiable: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        differentiable = differentiable and any(ctx.needs_input_grad)
        ctx.settings, products = settings, settings.products
        with torch.autocast(queries.device.type, enabled=False), products.context():
            norms = proxies.new_empty(proxies.shape[0] * proxies.shape[1], 1)
            ctx.states = [term.make_state(proxies) for term in settings.terms]
            walk = _Walk(queries, proxies, labels, settings, norms, ctx.states)
            if settings.plan.keep and differentiable:
                walk.cache = queries.new_empty(*proxies.shape[:2], len(queries))
            ctx.grads = _empty_grads(ctx, queries, proxies) if walk.one_pass and differentiable else None
            positive, references, slopes, reduced, total = walk.forward(ctx.grads, differentiable=differentiable)
            if products.inexact:
                target = labels.clamp(0, len(proxies) - 1)
                with matmul_precision("ieee"):
                    positive = pair_scores(queries, proxies[target], settings.scoring).masked_fill_(target != labels, 0)
        ctx.cached = walk.cache, walk.cached_pools
        ctx.save_for_backward(queries, proxies, labels, norms, references, slopes)
        return positive, references * math.log(2) if slopes is None else reduced, total

    @staticmethod
    @first_order
    def backward(  # type: ignore[override]
        ctx: Any, grad_positive: Tensor, grad_negative: Tensor, grad_terms: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        queries, proxies, labels, norms, references, slopes = ctx.saved_tensors
        products = ctx.settings.products
        # A single pass has computed the gradient in the forward, for an incoming gradient of 1. It is handed on, and
        # kept similarities are overwritten, not copied: the rare second backward of a retained graph recomputes them.
        grads, ctx.grads = ctx.grads, None
        cached, ctx.cached = ctx.cached, (None, [])
        with torch.autocast(queries.device.type, enabled=False), products.context():
            walk = _Walk(queries, proxies, labels, ctx.settings, norms, ctx.states)
            walk.cache, walk.cached_pools = cached
            if grads is None:
                grads = _empty_grads(ctx, queries, proxies)
                walk.backward(grads, references, slopes, grad_positive, grad_negative, grad_terms)
            if walk.one_pass:
                walk.scale(grads, grad_negative, grad_terms)
            if walk.one_pass or products.inexact:
                with matmul_precision("ieee" if products.inexact else None):
                    walk.add_target_gradient(grads, grad_positive)
        return grads[0], grads[1], None, None, None


class _Chunk(NamedTuple):
    """Some classes and the batch. Only tensors differ between chunks, so that one compiled graph serves all."""

    scoring: Scoring
    products: Products
    rows: Tensor  # the proxies [classes, proxies, features]
    norms: Tensor  # what `Similarity.measure` has computed for each proxy [classes · proxies, 1]
    queries: Tensor
    operand: Operand  # the queries, prepared for the products
    column: Tensor  # target class of each sample within the chunk [1, batch], clamped: a mask would wait for a GPU
    inside: Tensor  # whether the target class is in the chunk [1, batch]
    excluded: Tensor  # added to the logits of `column`: −∞ if the target class is in the chunk, otherwise 0 [1, batch]
    bounded: bool  # whether powers of the logits can be summed without subtracting the largest
    offset: Tensor | None  # added to the logits of each class [classes, 1]
    weights: Tensor | None  # factors of the reduced sum of each class [classes, 1]


class _Walk:
    """A pass over all chunks of the classes.

    Attributes:
        one_pass: Whether the forward computes the gradient of the negatives.
        cache: All similarities ``[classes, proxies, batch]``, if they are kept for the backward.
        cached_pools: The pooled scores and weights of each chunk, if they are kept as well.
    """

    def __init__(
        self,
        queries: Tensor,
        proxies: Tensor,
        labels: Tensor,
        settings: Settings,
        norms: Tensor,
        states: list[Tensor | None],
    ) -> None:
        self.queries, self.proxies, self.labels, self.norms, self.states = queries, proxies, labels, norms, states
        self.scoring, self.plan, self.terms, self.sampling, self.products, self.compiler = settings
        self.operand = self.products.operand(queries)
        self.excluded = queries.new_tensor(-torch.inf)
        self.data_wise = self.scoring.class_reduction is None
        self.one_pass = not (self.data_wise or self.plan.keep)
        self.bounded = is_bounded(self.scoring, self.sampling, len(queries), len(proxies))
        self.cache: Tensor | None = None
        self.cached_pools: list[Pooled] = []
        self.buffer: Tensor | None = None
        classes, step = len(proxies), self.plan.chunk
        self.parts = [slice(start, min(start + step, classes)) for start in range(0, classes, step)]

    def forward(
        self, grads: Grads | None, *, differentiable: bool
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
        """Compute the sums; a single pass also writes the gradient of negatives and terms, for a gradient of 1.

        The derivative of the negatives with respect to a logit is ``slope · 2^(logit − reference)``.

        Returns:
            Five tensors. The positive scores ``[batch]``. The references: for a data-wise loss the binary logarithm of
            the sum of each sample's negatives ``[batch]``, for a class-wise one the largest logit of each class
            ``[classes, 1]``. The slopes: ``None``, or those of each class ``[classes, 1]``. The reduced sum over all
            classes. The sum of the regularisers.
        """
        batch, classes = len(self.queries), len(self.proxies)
        # Results are written in place: small tensors that outlive a chunk would fragment the heap, as they would be
        # allocated between large ones that do not.
        positive, reduced, total = (self.queries.new_zeros(shape) for shape in ((batch,), (), ()))
        references = self.queries.new_full((batch,) if self.data_wise else (classes, 1), -torch.inf)
        slopes = None if self.data_wise else torch.empty_like(references)
        for part in self.parts:
            chunk, similarities = self._chunk(part), self._room(part)
            self._measure(part, chunk, total)
            own, *sums, pooled, row_correction = self._body(_forward_chunk)(
                chunk, similarities, self._part_of(grads, part), differentiable
            )
            torch.where(chunk.inside.squeeze(0), own, positive, out=positive)
            if slopes is None:
                torch.logaddexp2(references, sums[0], out=references)
            else:
                reduced.add_(sums[0])
                references[part], slopes[part] = sums[1:]
            if self.cache is not None and self.plan.keep_weights:
                self.cached_pools.append(pooled)
            del own, sums, pooled
            if grads is not None:
                self._finish(part, grads[1], 1.0, row_correction)
        return positive, references, slopes, reduced, total

    def backward(
        self,
        grads: Grads,
        references: Tensor,
        slopes: Tensor | None,
        grad_positive: Tensor,
        grad_negative: Tensor,
        grad_terms: Tensor,
    ) -> None:
        """Write the gradient of `forward`, given its references and slopes; in a single pass, as `forward` does."""
        if slopes is None:
            # An empty sum has no gradient: exp(−∞ − 0) = 0, where exp(−∞ − −∞) would be nan.
            references = references.masked_fill(references == -torch.inf, 0)
            slopes = grad_negative * self.scoring.scale
        elif not self.one_pass:
            slopes = slopes * grad_negative
        # If a chunk's products are inexact, so is the gradient of the target scores: `add_target_gradient` adds it.
        target = None if self.one_pass or self.products.inexact else grad_positive
        for number, part in enumerate(self.parts):
            own = slice(None) if self.data_wise else part
            pooled = self.cached_pools[number] if self.cached_pools else None
            similarities, derivative = self._room(part), (references[own], slopes[own])
            row_correction = self._body(_backward_chunk)(
                self._chunk(part),
                similarities,
                self.cache is None,
                pooled,
                derivative,
                target,
                self._part_of(grads, part),
            )
            self._finish(part, grads[1], 1.0 if self.one_pass else grad_terms, row_correction)

    def scale(self, grads: Grads, grad_negative: Tensor, grad_terms: Tensor) -> None:
        """Multiply the gradient of a single pass, computed for an incoming gradient of 1, by the incoming ones."""
        # An incoming gradient of 1 is usual and saves passes over the proxies; to read it would wait for a GPU.
        unread = self.proxies.is_cuda or torch.compiler.is_compiling()
        if unread or bool(grad_negative != 1):
            for grad in grads:
                if grad is not None:
                    grad.mul_(grad_negative)
        missing = grad_terms - grad_negative
        if self.terms and (unread or bool(missing != 0)):
            for part in self.parts:
                self._finish(part, grads[1], missing)

    def add_target_gradient(self, grads: Grads, grad_positive: Tensor) -> None:
        """Add the gradient of the positive scores, which needs only the samples and their target classes' proxies."""
        labels = self.labels.clamp(0, len(self.proxies) - 1)
        _, backward = with_backward(lambda x, w: pair_scores(x, w, self.scoring), self.queries, self.proxies[labels])
        grad_x, grad_w = backward(grad_positive.masked_fill(labels != self.labels, 0))
        if grads[0] is not None:
            grads[0].add_(grad_x)
        if grads[1] is not None:
            grads[1].index_add_(0, labels, grad_w)

    def _measure(self, part: slice, chunk: _Chunk, total: Tensor) -> None:
        """Write the norms of a chunk's proxies, and add its part of the regularisers to their total."""
        gram = None
        if chunk.rows.shape[1] > 1 and any(isinstance(term, CenterRegularizer) for term in self.terms):
            gram = torch.bmm(chunk.rows, chunk.rows.mT)
        lengths = None if gram is None else gram.diagonal(dim1=1, dim2=2).sqrt().view(-1, 1)
        self.scoring.similarity.measure(chunk.rows.flatten(0, 1), chunk.norms, lengths)
        for term, state, sampling in self._terms_of(part):
            if gram is not None and isinstance(term, CenterRegularizer):
                value = term.of_gram(gram, sampling, state)
            else:
                value = term.value(chunk.rows, sampling, state)
            total.add_(value * term.weight)

    def _finish(
        self, part: slice, grad: Tensor | None, factor: Tensor | float, row_correction: Tensor | None = None
    ) -> None:
        """Add ``row_correction ·`` the proxies of a chunk and the gradient of the regularisers to their gradient."""
        if grad is None:
            return
        grad, rows = grad[part], self.proxies[part]
        correction = None if row_correction is None else row_correction.view(rows.shape[:2])
        for term, state, sampling in self._terms_of(part):
            if isinstance(term, CenterRegularizer) and rows.shape[1] > 1:
                term.add_gradient(grad, rows, sampling, state, factor * term.weight, correction)
                correction = None
            else:
                term.add_gradient(grad, rows, sampling, state, factor * term.weight)
        if correction is not None:
            grad.addcmul_(rows, correction.unsqueeze(2))

    def _terms_of(self, part: slice) -> Iterator[tuple[Regularizer, Tensor | None, SamplingWeights]]:
        for term, state in zip(self.terms, self.states, strict=True):
            yield term, None if state is None else state[part], self.sampling.part(part)

    def _chunk(self, part: slice) -> _Chunk:
        per_class, sampling = self.proxies.shape[1], self.sampling.part(part)
        offset, weights = sampling.bias, sampling.weights
        if weights is not None and self.data_wise:
            offset, weights = weights.log() if offset is None else weights.log().add_(offset), None
        labels = (self.labels - part.start).unsqueeze(0)
        column = labels.clamp(0, part.stop - part.start - 1)
        inside = column == labels
        return _Chunk(
            self.scoring,
            self.products,
            self.proxies[part],
            self.norms[part.start * per_class : part.stop * per_class],
            self.queries,
            self.operand,
            column,
            inside,
            torch.where(inside, self.excluded, 0),
            self.bounded,
            None if offset is None else offset.unsqueeze(1),
            None if weights is None else weights.unsqueeze(1),
        )

    def _room(self, part: slice) -> Tensor:
        """Return memory for a chunk's similarities: its part of the cache, or a buffer that all chunks share."""
        if self.cache is not None:
            return self.cache[part]
        if self.buffer is None:
            self.buffer = self.queries.new_empty(part.stop - part.start, self.proxies.shape[1], len(self.queries))
        return self.buffer[: part.stop - part.start]

    def _part_of(self, grads: Grads | None, part: slice) -> Grads | None:
        return None if grads is None else (grads[0], None if grads[1] is None else grads[1][part])

    def _body(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function if self.compiler is None else self.compiler(function, dynamic=True)


def _forward_chunk(chunk: _Chunk, similarities: Tensor, grads: Grads | None, differentiable: bool) -> tuple[Any, ...]:
    """Return the scores of the target classes, sums of the negatives, pooled scores, and what `_add_gradient` returns.

    The sums add powers of 2, which are much faster to compute than powers of e.
    """
    scoring = chunk.scoring
    _fill(chunk, similarities)
    pooled = _pool(chunk, similarities)
    own = pooled[0].gather(0, chunk.column).squeeze(0)
    logits, through_transform = _logits(chunk, pooled[0])
    dim = 0 if scoring.class_reduction is None else 1
    if chunk.bounded:
        highest = logits.new_zeros((1, logits.shape[1]) if dim == 0 else (len(logits), 1))
        powers = logits.exp2_()
    else:
        # The largest logit, but finite: −∞ − −∞ would be NaN.
        highest = logits.amax(dim, keepdim=True).clamp_(min=torch.finfo(logits.dtype).min)
        powers = logits.sub_(highest).exp2_()
    totals = powers.sum(dim, keepdim=True)
    if scoring.class_reduction is None:
        return own, totals.log2_().add_(highest).squeeze(0), pooled, None
    reduced, slopes = _reduce(chunk, totals, highest, differentiable)
    row_correction = None
    if grads is not None:
        row_correction = _add_gradient(chunk, similarities, pooled, through_transform, powers.mul_(slopes), grads)
    return own, reduced, highest, slopes, pooled, row_correction


def _backward_chunk(
    chunk: _Chunk,
    similarities: Tensor,
    is_empty: bool,
    pooled: Pooled | None,
    derivative: tuple[Tensor, Tensor],
    target: Tensor | None,
    grads: Grads,
) -> Tensor | None:
    """Write the gradient of the negatives from references and slopes, and of the target scores if `target` is given."""
    if is_empty:
        _fill(chunk, similarities)
    pooled = _pool(chunk, similarities) if pooled is None else pooled
    reference, slopes = derivative
    logits, through_transform = _logits(chunk, pooled[0], reference)
    return _add_gradient(chunk, similarities, pooled, through_transform, logits.exp2_().mul_(slopes), grads, target)


def _fill(chunk: _Chunk, similarities: Tensor) -> None:
    """Write the similarities of all proxies."""
    flat, products = similarities.flatten(0, 1), chunk.products
    products.multiply(products.operand(chunk.rows.flatten(0, 1)), chunk.operand.transposed(), flat)
    chunk.scoring.similarity.from_products(flat, chunk.queries, chunk.norms)


def _pool(chunk: _Chunk, similarities: Tensor) -> Pooled:
    if similarities.shape[1] == 1:
        return similarities.squeeze(1), None
    return chunk.scoring.pooling.forward(similarities)


def _logits(chunk: _Chunk, scores: Tensor, reference: Tensor | None = None) -> tuple[Tensor, Backward | None]:
    """Return ``(a·g(S) + bias)/ln 2 − reference``, with −∞ for the target class, and the backward of g."""
    scoring, through_transform = chunk.scoring, None
    if scoring.transform is not None:
        scores, through_transform = with_backward(scoring.transform, scores)
    scale = scoring.scale / math.log(2)
    if reference is not None and chunk.bounded:
        logits = torch.add(-reference, scores, alpha=scale)
    else:  # rounded as in the forward: of large scores, what one fused operation leaves would be no longer below 0
        logits = scores * scale
        if chunk.offset is not None:
            logits.add_(chunk.offset / math.log(2))
        if reference is not None:
            logits.sub_(reference)
    return logits.scatter_add_(0, chunk.column, chunk.excluded), through_transform


def _reduce(chunk: _Chunk, totals: Tensor, highest: Tensor, differentiable: bool) -> tuple[Tensor, Tensor]:
    """Return ``Σ_c r(M_c)`` and its derivative in each class's powers, times the scale; overwrite the totals."""
    reduction, scale = chunk.scoring.class_reduction, chunk.scoring.scale
    assert reduction is not None
    m = totals.log2().add_(highest).mul_(math.log(2))
    if not differentiable:  # inference mode, for example, cannot compute a derivative
        values, slopes = reduction(m), m
    else:
        values, backward = with_backward(reduction, m)
        (slopes,) = backward(torch.full_like(m, scale) if chunk.weights is None else chunk.weights * scale)
        # A class without negatives has a total of 0 and powers of 0.
        slopes.div_(totals.clamp_(min=torch.finfo(totals.dtype).tiny))
    return (values if chunk.weights is None else values * chunk.weights).sum(), slopes


def _add_gradient(
    chunk: _Chunk,
    similarities: Tensor,
    pooled: Pooled,
    through_transform: Backward | None,
    grad: Tensor,
    grads: Grads,
    target: Tensor | None = None,
) -> Tensor | None:
    """Add to the gradient of the queries and write the gradient of the proxies, given the gradient of ``g(S)``.

    Overwrites similarities, scores and weights. Returns factors ``[classes · proxies, 1]`` of the proxies, which have
    still to be added to their gradient; ``None`` stands for 0.
    """
    if through_transform is not None:
        (grad,) = through_transform(grad)
    if target is not None:
        grad.scatter_add_(0, chunk.column, chunk.inside * target)
    if similarities.shape[1] > 1:
        grad = chunk.scoring.pooling.backward(grad, similarities, *pooled).flatten(0, 1)
    (grad_queries, grad_proxies), rows, products = grads, chunk.rows.flatten(0, 1), chunk.products
    grad_scores, row_correction, query_correction = chunk.scoring.similarity.slopes(
        grad, similarities.flatten(0, 1), chunk.queries, chunk.norms
    )
    operand = products.operand(grad_scores)
    if grad_queries is not None:
        products.add(grad_queries, operand.transposed(), products.operand(rows))
        if query_correction is not None:
            grad_queries.addcmul_(chunk.queries, query_correction)
    if grad_proxies is not None:
        products.multiply(operand, chunk.operand, grad_proxies.flatten(0, 1))
    return row_correction


def _empty_grads(ctx: Any, queries: Tensor, proxies: Tensor) -> Grads:
    return (
        torch.zeros_like(queries, memory_format=torch.contiguous_format) if ctx.needs_input_grad[0] else None,
        torch.empty_like(proxies, memory_format=torch.contiguous_format) if ctx.needs_input_grad[1] else None,
    )
