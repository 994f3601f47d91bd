"""Regularisers: functions of the proxies that are added to any proxy loss, one chunk of classes at a time."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from proxemic.losses.checks import check_number
from proxemic.losses.described import Described
from proxemic.losses.scores.derivative import by_hand, first_order, with_backward
from proxemic.losses.scores.sampling import SamplingWeights
from proxemic.losses.scores.similarity import inverse_length

Proxies = Float[Tensor, "classes proxies dim"]


class Regularizer(Described, ABC):
    """Base class of ``weight ·`` a function of the proxies, exact even if classes are sampled or sharded.

    A subclass implements `value`; autograd computes the gradient. A subclass may instead implement the gradient in
    closed form as `add_gradient`, using what `value` has kept in the state of `make_state`. This saves the memory of
    unit copies of the proxies and of a second gradient.

    Args:
        weight: Factor ≥ 0.

    Raises:
        ValueError: If ``weight`` is negative.

    >>> class SquaredLength(Regularizer):
    ...     separable = True  # a mean over classes
    ...
    ...     def value(self, proxies, sampling, state=None):
    ...         return sampling.sum(proxies.square().sum((1, 2))) / sampling.total
    >>> SquaredLength(0.5)(torch.tensor([[[1.0, 0.0]], [[0.0, 3.0]]]))
    tensor(2.5000)
    """

    separable: ClassVar[bool] = False
    """Whether the term is a mean over classes.

    If so, `value` of some classes is their part of the term, and each chunk of classes contributes its part. Otherwise
    `value` is the whole term, equal on all processes.
    """

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = check_number("weight", weight, "a regulariser's weight must be 0 or more", least=0)

    def forward(self, proxies: Proxies) -> Float[Tensor, ""]:
        """Compute the weighted term."""
        return self.apply_to(proxies)[1]

    def apply_to(self, proxies: Proxies, sampling: SamplingWeights | None = None) -> tuple[Proxies, Float[Tensor, ""]]:
        """Return the weighted term, and proxies to use instead of the argument: both gradients then share memory."""
        return _Apply.apply(proxies, self, sampling or SamplingWeights(len(proxies)))  # type: ignore[return-value]

    @abstractmethod
    def value(
        self, proxies: Proxies, sampling: SamplingWeights, state: Float[Tensor, "*state"] | None = None
    ) -> Float[Tensor, ""]:
        """Compute the term without its weight.

        Args:
            proxies: All proxies, or those of the sampled classes, of a shard or of a chunk.
            sampling: How many of all classes these proxies stand for.
            state: What `make_state` returned, to be filled for `add_gradient`.
        """

    def make_state(self, proxies: Proxies) -> Float[Tensor, "*state"] | None:
        """Allocate what `value` keeps for `add_gradient`; a separable term has one entry per class."""
        return None

    def add_gradient(
        self,
        grad: Proxies,
        proxies: Proxies,
        sampling: SamplingWeights,
        state: Float[Tensor, "*state"] | None,
        factor: Float[Tensor, ""] | float,
    ) -> None:
        """Add ``factor ·`` the gradient of the unweighted term to ``grad``; uses autograd unless overridden."""
        value, backward = with_backward(lambda rows: self.value(rows, sampling), proxies)
        (slope,) = backward(torch.ones_like(value))
        grad.add_(slope * factor)


class MeanProxyNorm(Regularizer):
    """``weight · ‖(1/C) Σ_c ŵ_c‖``, the norm of the mean of all unit proxies.

    The smaller this norm, the nearer to its proxy is the minimiser of the softmax loss (mean-proxy paper, section 3).

    Args:
        weight: Factor ≥ 0; the paper uses 1.0 on CUB and 0.01 on Cars.

    >>> MeanProxyNorm(weight=1.0)(torch.tensor([[[2.0, 0.0]], [[0.0, 3.0]]]))
    tensor(0.7071)
    """

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__(weight)

    def make_state(self, proxies: Tensor) -> Tensor:
        return proxies.new_zeros(proxies.shape[2])  # the mean

    def value(self, proxies: Tensor, sampling: SamplingWeights, state: Tensor | None = None) -> Tensor:
        mean = self.make_state(proxies) if state is None else state
        for part in _parts(proxies):
            scale = inverse_length(torch.linalg.vector_norm(proxies[part], dim=2))
            if sampling.weights is not None:
                scale.mul_(sampling.weights[part].unsqueeze(1))
            mean.addmv_(proxies[part].flatten(0, 1).T, scale.flatten())
        if sampling.group is not None:
            dist.all_reduce(mean, group=sampling.group)
        mean.div_(sampling.total * proxies.shape[1])
        return mean.norm()

    def add_gradient(
        self, grad: Tensor, proxies: Tensor, sampling: SamplingWeights, state: Tensor | None, factor: Tensor | float
    ) -> None:
        assert state is not None
        # Every ŵ has the gradient mean/(‖mean‖·CK); w has the part of it that is orthogonal to w, over ‖w‖.
        direction = state * (inverse_length(state.norm()) * factor / (sampling.total * proxies.shape[1]))
        for part in _parts(proxies):
            rows = proxies[part]
            inverse = inverse_length(torch.linalg.vector_norm(rows, dim=2)).unsqueeze(2)
            scale = inverse if sampling.weights is None else inverse * sampling.weights[part].view(-1, 1, 1)
            along = (rows @ direction).unsqueeze(2).mul_(inverse.square())
            grad[part].addcmul_(scale, direction).addcmul_(rows, along.mul_(scale), value=-1)


class CenterRegularizer(Regularizer):
    """``weight · Σ_c Σ_{k<l} ‖ŵ_ck − ŵ_cl‖ / (C K (K − 1))``: lets surplus proxies of a class merge.

    SoftTriple; MPA paper, equation 3. It is 0 with one proxy per class. The gradient between two coinciding proxies is
    0 (SoftTriple's published code adds 1e-5 inside the root instead). In float32, proxies coincide within about 1e-3
    radians, where ``2 − 2cos`` is only rounding.

    Args:
        weight: Factor τ ≥ 0; the papers use 0.2.

    >>> CenterRegularizer(weight=1.0)(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))
    tensor(0.7071)
    """

    separable = True

    def __init__(self, weight: float = 0.2) -> None:
        super().__init__(weight)

    def make_state(self, proxies: Tensor) -> Tensor | None:
        classes, per_class, _ = proxies.shape
        # With many proxies per class it would be large compared with the proxies; it is then computed again.
        is_kept = per_class < 8 or proxies.numel() <= 2**20
        return proxies.new_empty(classes, per_class, per_class) if per_class > 1 and is_kept else None

    def value(self, proxies: Tensor, sampling: SamplingWeights, state: Tensor | None = None) -> Tensor:
        total = proxies.new_zeros(())
        for part in _parts(proxies) if proxies.shape[1] > 1 else ():
            gram = torch.bmm(proxies[part], proxies[part].mT)
            total.add_(self.of_gram(gram, sampling.part(part), None if state is None else state[part]))
        return total

    def of_gram(
        self,
        gram: Float[Tensor, "classes proxies proxies"],
        sampling: SamplingWeights,
        state: Float[Tensor, "classes proxies proxies"] | None,
    ) -> Float[Tensor, ""]:
        """Compute `value` from the inner products of the proxies of each class."""
        lengths, mixing = _center_terms(gram)
        if state is not None:
            state.copy_(mixing)
        per_class = gram.shape[1]
        return sampling.sum(lengths) / (2 * sampling.total * per_class * (per_class - 1))  # each pair is summed twice

    def of_directions(self, directions: Proxies, sampling: SamplingWeights) -> Float[Tensor, ""]:
        """Compute the weighted term from the unit proxies of all classes, in few operations."""
        per_class = directions.shape[1]
        if per_class == 1:
            return directions.new_zeros(())
        return _center_lengths(directions, self.weight / (2 * sampling.total * per_class * (per_class - 1)))

    def add_gradient(
        self,
        grad: Tensor,
        proxies: Tensor,
        sampling: SamplingWeights,
        state: Tensor | None,
        factor: Tensor | float,
        row_factors: Float[Tensor, "classes proxies"] | None = None,
    ) -> None:
        """Add the gradient, and ``row_factors ·`` the proxies in the same pass."""
        per_class = proxies.shape[1]
        if per_class == 1:
            return
        factor = factor / (sampling.total * per_class * (per_class - 1))
        for part in _parts(proxies):
            rows = proxies[part]
            mixing = (_center_terms(torch.bmm(rows, rows.mT))[1] if state is None else state[part]) * factor
            if sampling.weights is not None:
                mixing.mul_(sampling.weights[part].view(-1, 1, 1))
            if row_factors is not None:
                mixing.diagonal(dim1=1, dim2=2).add_(row_factors[part])
            grad[part].baddbmm_(mixing, rows)


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, proxies: Tensor, regularizer: Regularizer, sampling: SamplingWeights
    ) -> tuple[Tensor, Tensor]:
        state = regularizer.make_state(proxies)
        value = regularizer.value(proxies, sampling, state)
        ctx.save_for_backward(proxies, state)
        ctx.regularizer, ctx.sampling = regularizer, sampling
        ctx.set_materialize_grads(False)
        return proxies.view_as(proxies), value * regularizer.weight

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor | None, grad_value: Tensor | None) -> tuple[Tensor | None, None, None]:  # type: ignore[override]
        proxies, state = ctx.saved_tensors
        if grad_value is None:
            return grad, None, None
        # In place, as the loss has computed the incoming gradient for this function only.
        grad = torch.zeros_like(proxies) if grad is None else grad.contiguous()
        ctx.regularizer.add_gradient(grad, proxies, ctx.sampling, state, grad_value * ctx.regularizer.weight)
        return grad, None, None


def _parts(proxies: Tensor) -> Iterator[slice]:
    """Yield slices of classes whose proxies fit in a processor's cache; on a GPU, one slice of all classes."""
    classes, per_class, dim = proxies.shape
    step = max(2**19 // (per_class * dim), 1)
    if proxies.is_cuda or classes <= step:
        yield slice(None)
    else:
        for start in range(0, classes, step):
            yield slice(start, start + step)


def _squared_distances(cosines: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Return ``2 − 2 cos`` and the inverse of its root, set to 0 on the diagonal and below the rounding of the cosines.

    There ``2 − 2 cos`` is noise, which the root would turn into a large gradient. The diagonal is that of the
    dimensions ``first`` and ``first + 1``.
    """
    squared = torch.rsub(cosines, 2, alpha=2)
    squared.diagonal(dim1=first, dim2=first + 1).zero_()
    return squared, torch.threshold(squared, 8 * torch.finfo(squared.dtype).eps, math.inf).rsqrt_()


def _lengths_definition(directions: Tensor, factor: float) -> Tensor:
    cosines = torch.bmm(directions, directions.mT)
    apart = _squared_distances(cosines.detach(), 1)[1] > 0
    return factor * torch.where(apart, torch.where(apart, 2 - 2 * cosines, 1).sqrt(), 0).sum()


def _lengths_forward(directions: Tensor, factor: float) -> tuple[Tensor, tuple[Tensor]]:
    squared, inverse = _squared_distances(torch.bmm(directions, directions.mT), 1)
    return squared.mul_(inverse).sum() * factor, (inverse,)


def _lengths_backward(grad: Tensor, needed: object, tensors: Any, kept: Any, factor: float) -> list[Tensor]:
    # Each pair is summed twice: ∂√(2 − 2c)/∂c = −1/√(2 − 2c).
    return [torch.bmm(kept[0] * (grad * (-2 * factor)), tensors[0])]


_center_lengths = by_hand(_lengths_definition, _lengths_forward, _lengths_backward)


def _center_terms(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``Σ_kl ‖ŵ_k − ŵ_l‖`` of each class, and the matrix that turns its proxies into half the gradient."""
    gram = gram.movedim(0, 2).contiguous()  # the operations below run over the classes, not over 2 proxies
    scale = inverse_length(gram.diagonal(dim1=0, dim2=1).T.sqrt())
    scales = scale.unsqueeze(0) * scale.unsqueeze(1)
    cosine = (gram * scales).nan_to_num_(nan=0)  # ∞ · 0 if a length overflows
    squared, inverse = _squared_distances(cosine, 0)
    lengths = squared.mul_(inverse).sum((0, 1))
    # ∂√(2 − 2c)/∂c = −1/√(2 − 2c); then ŵ_k's gradient is a sum over the other ŵ_l, less its part along ŵ_k.
    along = cosine.mul_(inverse).sum(1)
    mixing = inverse.mul_(scales).neg_()
    mixing.diagonal(dim1=0, dim2=1).T.add_(along.mul_(scale.square_()))
    return lengths, mixing.movedim(2, 0).contiguous()
