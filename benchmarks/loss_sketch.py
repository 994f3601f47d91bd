"""Prototype of the fastest exact step of a proxy loss on a CPU that we know, for comparison with `losses.py`.

It computes ArcFace, SoftTriple, Proxy-Anchor and MPA of float32 cosines with one or two proxies per class, and nothing
else: no weights, sampling, processes or other scores. No maximum is subtracted, so a scale must be at most 80.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

TO_BITS = 1 / math.log(2)


class Settings(NamedTuple):
    """Constants of a loss: ``shift`` is αδ of a class-wise loss, and None for a data-wise one."""

    scale: float
    shift: float | None = None
    center_weight: float = 0.0
    gamma: float = 0.1


def make_sketch(name: str, proxies: Tensor) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return the loss with its default options, a function of embeddings and labels; None if there is no sketch."""
    if proxies.shape[1] > 2:
        return None
    if name in ("ArcFaceLoss", "SoftTripleLoss"):
        arc = name == "ArcFaceLoss"
        settings = Settings(64.0) if arc else Settings(20.0, center_weight=0.2)

        def softmax(x: Tensor, y: Tensor) -> Tensor:
            positive, negative, center = _Step.apply(normalize(x), proxies, y, settings)  # type: ignore[misc]
            wider = torch.cos(positive.clamp(-1 + 1e-7, 1 - 1e-7).acos() + 0.5) if arc else positive - 0.01
            return softplus(negative - settings.scale * wider).mean() + center

        return softmax
    if name in ("ProxyAnchorLoss", "MultiProxyAnchorLoss"):
        settings = Settings(32.0, 3.2, 0.2 if name == "MultiProxyAnchorLoss" else 0.0)

        def anchor(x: Tensor, y: Tensor) -> Tensor:
            positive, negative, center = _Step.apply(normalize(x), proxies, y, settings)  # type: ignore[misc]
            classes, index = y.unique(return_inverse=True)
            sums = torch.zeros(len(classes)).index_add(0, index, torch.exp(-32.0 * (positive - 0.1)))
            return sums.log1p().sum() / len(classes) + negative + center

        return anchor
    return None


class _Step(torch.autograd.Function):
    """Positive scores, the log-sum-exp of each sample's negatives or the sum over the classes, and the regulariser."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, proxies: Tensor, y: Tensor, settings: Settings) -> Any:  # type: ignore[override]
        (classes, k, dim), batch, (scale, shift, center_weight, gamma) = proxies.shape, len(q), settings
        step = max(2**19 // (dim * k), 64)  # classes whose proxies take 2 MB
        held = classes if shift is None else min(step, classes)
        scaled = (q * (scale * TO_BITS)).T
        scores, powers = q.new_empty(held, k, batch), q.new_empty(held, batch)
        share = torch.empty_like(powers) if k == 2 else None
        inverse, pull = q.new_empty(classes, k), q.new_zeros(classes, 1)
        sums, reduced, center = q.new_zeros(batch), q.new_zeros(()), q.new_zeros(())
        grads = None if shift is None else (torch.zeros_like(q), torch.empty_like(proxies))
        targets: dict[int, tuple[list[int], list[int]]] = {}
        for column, label in enumerate(y.tolist()):
            rows, columns = targets.setdefault(label // step, ([], []))
            rows.append(label % step)
            columns.append(column)
        for start in range(0, classes, step):
            part = slice(start, min(start + step, classes))
            room = part if shift is None else slice(0, part.stop - start)
            w, s, e = proxies[part].flatten(0, 1), scores[room], powers[room]
            norms = inverse[part].view(-1, 1)
            torch.linalg.vector_norm(w, dim=1, keepdim=True, out=norms).clamp_(min=1e-12).reciprocal_()
            torch.mm(w, scaled, out=s.view(-1, batch)).mul_(norms)
            if share is None:
                torch.exp2(s.view(-1, batch), out=e)
            else:
                pooled = s[:, 0] - s[:, 1]
                torch.mul(pooled, 1 / (gamma * scale * TO_BITS), out=share[room]).sigmoid_()
                torch.exp2(pooled.mul_(share[room]).add_(s[:, 1]), out=e)
            if k == 2 and center_weight:
                center += _center_terms(proxies[part], inverse[part], pull[part])
            if start // step in targets:
                e[targets[start // step]] = 0
            if shift is None:
                sums += e.sum(0)
            else:  # the gradient is computed in the same pass
                total = e.sum(1, keepdim=True).mul_(math.exp(shift))
                reduced += total.log1p().sum()
                e.mul_(total.add_(1).reciprocal_().mul_(math.exp(shift) * scale / classes))
                own = None if share is None else share[room]
                center_factor = center_weight / (2 * classes)
                _add_gradient(
                    e, s, own, inverse[part], pull[part], proxies[part], q, grads, part, settings, center_factor
                )
        own = torch.bmm(proxies[y], q.unsqueeze(2)).squeeze(2) * inverse[y]
        weights = torch.softmax(own / gamma, 1)
        positive = (own * weights).sum(1)
        ctx.save_for_backward(q, proxies, y, inverse, pull, scores, powers, share, sums, own, weights, positive)
        ctx.settings, ctx.step, ctx.grads = settings, step, grads
        return positive, sums.log() if shift is None else reduced / classes, center * (center_weight / (2 * classes))

    @staticmethod
    def backward(ctx: Any, grad_positive: Tensor, grad_negative: Tensor, grad_center: Tensor) -> Any:  # type: ignore[override]
        q, proxies, y, inverse, pull, scores, powers, share, sums, own, weights, positive = ctx.saved_tensors
        classes, settings = len(proxies), ctx.settings
        grads = ctx.grads or (torch.zeros_like(q), torch.empty_like(proxies))
        if ctx.grads is None:
            slopes = grad_negative * settings.scale / sums
            factor = settings.center_weight * grad_center.item() / (2 * classes)
            for start in range(0, classes, ctx.step):
                part = slice(start, min(start + ctx.step, classes))
                e, kept = powers[part].mul_(slopes), None if share is None else share[part]
                _add_gradient(
                    e, scores[part], kept, inverse[part], pull[part], proxies[part], q, grads, part, settings, factor
                )
        grad = grad_positive.unsqueeze(1) * weights * (1 + (own - positive.unsqueeze(1)) / settings.gamma) * inverse[y]
        w = proxies[y]
        grads[0].add_(torch.bmm(grad.unsqueeze(1), w).squeeze(1))
        along = (grad * own * inverse[y]).unsqueeze(2)
        grads[1].index_add_(0, y, torch.addcmul(grad.unsqueeze(2) * q.unsqueeze(1), w, along, value=-1))
        return *grads, None, None


def _center_terms(proxies: Tensor, inverse: Tensor, pull: Tensor) -> Tensor:
    """Return the sum of ``‖ŵ_1 − ŵ_2‖``, and write its inverse, or 0."""
    cosine = (proxies[:, 0] * proxies[:, 1]).sum(1).mul_(inverse[:, 0]).mul_(inverse[:, 1])
    distance = torch.threshold_(cosine.mul_(-2).add_(2), 1e-6, 0).sqrt_()
    torch.reciprocal(torch.threshold(distance, 0, math.inf), out=pull.view(-1))
    return distance.sum()


def _add_gradient(
    grad: Tensor,
    scores: Tensor,
    share: Tensor | None,
    inverse: Tensor,
    pull: Tensor,
    proxies: Tensor,
    q: Tensor,
    grads: Any,
    part: slice,
    settings: Settings,
    center_factor: float,
) -> None:
    """Add to the gradient of the queries and write that of a chunk's proxies, given that of its class scores."""
    bits, (grad_q, grad_w) = settings.scale * TO_BITS, grads
    if share is not None:  # ∂S/∂s_1 = q_1 (1 + q_2 (s_1 − s_2)/γ), and the two derivatives add up to 1
        difference = (scores[:, 0] - scores[:, 1]).mul_(1 / (settings.gamma * bits))
        first = torch.mul(share, grad)
        bend = difference.mul_(torch.addcmul(first, first, share, value=-1))
        both = torch.empty_like(scores)
        torch.add(first, bend, out=both[:, 0])
        torch.sub(grad, first, out=both[:, 1]).sub_(bend)
        grad = both.flatten(0, 1)
    w, written, norms = proxies.flatten(0, 1), grad_w[part].flatten(0, 1), inverse.view(-1, 1)
    along = scores.view(grad.shape).mul_(grad).sum(1, keepdim=True).mul_(norms).mul_(norms).mul_(-1 / bits)
    grad.mul_(norms)
    grad_q.addmm_(grad.T, w)
    torch.mm(grad, q, out=written)
    if share is not None and center_factor:
        pull = pull * -center_factor
        cosine = torch.where(pull != 0, 1 - (center_factor / pull).square().mul_(0.5), 0)
        along.view(-1, 2).sub_((pull * cosine) * inverse.square())
        cross, pairs = pull * inverse[:, :1] * inverse[:, 1:], grad_w[part]
        pairs[:, 0].addcmul_(proxies[:, 1], cross)
        pairs[:, 1].addcmul_(proxies[:, 0], cross)
    written.addcmul_(w, along)
