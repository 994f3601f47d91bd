"""What a walk over the classes does with one chunk of them, by torch's operations or by kernels."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from proxemic.losses.scores.derivative import Backward, with_backward
from proxemic.losses.scores.fused import Factors, Fused
from proxemic.losses.scores.products import multiply_in_float32
from proxemic.losses.scores.sampling import SamplingWeights
from proxemic.losses.scores.scoring import Scoring

if TYPE_CHECKING:
    from proxemic.losses.scores.streaming import Walk

Grads = tuple[Tensor | None, Tensor | None]  # of queries and proxies
Pooled = tuple[Tensor, Tensor | None]  # scores of classes, and weights of their proxies


class Chunk:
    """The scores of a chunk of classes, and where the target classes of the samples are among them."""

    def __init__(self, walk: "Walk", part: slice) -> None:
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
        walk = self.walk
        target = self.pooled.gather(0, self.column).squeeze(0)
        torch.where(self.inside.squeeze(0), target, walk.positive, out=walk.positive)
        if walk.peaks is None:
            torch.logaddexp2(walk.negative, logsumexp2(self.logits()), out=walk.negative)
            return
        logits, peaks = self.logits(), walk.peaks[self.part]
        torch.amax(logits, 1, keepdim=True, out=peaks).clamp_(min=torch.finfo(logits.dtype).min)
        powers = logits.sub_(peaks).exp2_()
        torch.sum(powers, 1, keepdim=True, out=walk.totals[self.part])
        if walk.one_pass:
            walk.reduce_totals(self.part, differentiable=grads is not None)
        if grads is not None and walk.slopes is not None:
            self.backward(powers.mul_(walk.slopes[self.part]), grads)

    def add_gradient(self, grads: Grads, grad_positive: Tensor) -> None:
        """Add the gradient; in a single pass, that of the negatives, for a gradient of 1."""
        walk = self.walk
        assert walk.slopes is not None
        if walk.peaks is None:
            grad = self.logits().sub_(walk.negative).exp2_().mul_(walk.slopes)
        else:
            grad = self.logits().sub_(walk.peaks[self.part]).exp2_().mul_(walk.slopes[self.part])
        # Where a chunk's product is inexact near the target class, so is its gradient: `add_target_gradient` adds that.
        target = 0.0 if walk.inexact else grad_positive
        self.backward(grad, grads, None if walk.one_pass else target)

    def _similarities(self) -> Tensor:
        """``[classes, proxies, batch]``, which the backward may overwrite."""
        walk, proxies = self.walk, self.walk.proxies.shape[1]
        if walk.kept is not None and walk.filled:
            return walk.kept[self.part]
        into = walk.scratch[: self.part.stop - self.part.start] if walk.kept is None else walk.kept[self.part]
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
            return walk.kept_pooled[self.part.start // walk.plan.chunk]
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


class FusedChunk:
    """The same by kernels, which hold no scores; those of target classes are computed apart."""

    def __init__(self, walk: "Walk", part: slice, fused: Fused) -> None:
        self.walk, self.part, self.fused, self.sampling = walk, part, fused, walk.sampling.part(part)
        self.rows, self.measures = walk.measured_rows(part)
        self.offsets = _offsets(self.sampling, walk.scoring)
        self.units = fused.multiplied(self.rows, self.measures)

    def add_scores(self, grads: Grads | None) -> None:
        """Add negatives; in a single pass, also their gradient to ``grads``."""
        walk, sums = self.walk, self.fused.log_sums(self.units, self.part.start, self.offsets)
        if walk.peaks is None:
            return  # each tile of a chunk is added up over the chunks
        logarithms, peaks = logsumexp2(sums).unsqueeze(1), walk.peaks[self.part]
        torch.clamp(logarithms, min=torch.finfo(logarithms.dtype).min, out=peaks)
        walk.reduce_classes(self.part, logarithms, differentiable=grads is not None)
        if grads is not None and walk.slopes is not None:
            self._add_of_classes(grads, peaks, walk.slopes)

    def add_gradient(self, grads: Grads, grad_positive: Tensor) -> None:
        """Add the gradient of negatives; in a single pass, for a gradient of 1."""
        walk = self.walk
        assert walk.slopes is not None
        if walk.factors is not None:
            self._add(grads, walk.negative, walk.factors)
        elif walk.peaks is not None:
            self._add_of_classes(grads, walk.peaks[self.part], walk.slopes)

    def _add_of_classes(self, grads: Grads, normalizers: Tensor, slopes: Tensor) -> None:
        self._add(grads, normalizers.squeeze(1), Factors.of(slopes[self.part].squeeze(1)))

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


def logsumexp2(logits: Tensor) -> Tensor:
    """``log₂ Σ_c 2^logits`` per sample, −∞ for an empty sum; overwrites ``logits``."""
    highest = logits.amax(0).clamp_(min=torch.finfo(logits.dtype).min)
    return logits.sub_(highest).exp2_().sum(0).log2_().add_(highest)
