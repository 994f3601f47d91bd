"""Pooling: one score per class from the similarities to its K proxies."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from proxemic.losses.checks import check_number
from proxemic.losses.scores.derivative import by_hand

Similarities = Float[Tensor, "classes proxies batch"]
ClassScores = Float[Tensor, "classes batch"]
Weights = Float[Tensor, "classes weights batch"]  # of the proxies, or of all but the last


class Pooling(ABC):
    """Base class of poolings: the K similarities of a class become its score, which for K = 1 is the similarity."""

    @abstractmethod
    def dense(self, similarities: Float[Tensor, "*rows proxies"]) -> Float[Tensor, "*rows"]:
        """Compute the class scores by ordinary autograd: the definition of the pooling."""

    @abstractmethod
    def forward(self, similarities: Similarities) -> tuple[ClassScores, Weights | None]:
        """Compute `dense` for one chunk, outside autograd, and the proxies' weights if `backward` needs them."""

    @abstractmethod
    def backward(
        self, grad: ClassScores, similarities: Similarities, pooled: ClassScores, weights: Weights | None
    ) -> Similarities:
        """Compute the gradient of the similarities from the gradient of the class scores.

        This may overwrite all arguments except the similarities.
        """


def _pooled_forward(similarities: Tensor, gamma: float) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    weights = torch.softmax(similarities / gamma, -1)
    pooled = (weights * similarities).sum(-1)
    return pooled, (weights, pooled)


def _pooled_backward(grad: Tensor, needed: object, tensors: Any, kept: Any, gamma: float) -> list[Tensor]:
    # ∂S/∂s_k = q_k (1 + (s_k − S)/γ)
    (similarities,), (weights, pooled) = tensors, kept
    slopes = torch.addcmul(weights, weights, similarities - pooled.unsqueeze(-1), value=1 / gamma)
    return [slopes.mul_(grad.unsqueeze(-1))]


_softmax_pooled = by_hand(lambda *arguments: _pooled_forward(*arguments)[0], _pooled_forward, _pooled_backward)


@dataclass(frozen=True)
class SoftmaxPooling(Pooling):
    """``S = Σ_k q_k s_k`` with ``q = softmax(s / γ)`` (SoftTriple; MPA paper, equation 1).

    Args:
        gamma: Softness γ > 0, in units of the similarity: near 0 only the nearest proxy counts, near ∞ all do equally.

    >>> SoftmaxPooling(0.1).dense(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor([0.5000, 1.0000])
    """

    gamma: float = 0.1

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma, "the softness of the pooling must be positive, for example 0.1", above=0)

    def dense(self, similarities: Float[Tensor, "*rows proxies"]) -> Float[Tensor, "*rows"]:
        return _softmax_pooled(similarities, self.gamma)

    def forward(self, similarities: Similarities) -> tuple[ClassScores, Weights]:
        if similarities.shape[1] == 2:  # q_1 = sigmoid((s_1 − s_2)/γ) and S = s_2 + q_1 (s_1 − s_2)
            first, second = similarities.unbind(1)
            difference = first - second
            share = (difference / self.gamma).sigmoid_()
            return torch.addcmul(second, share, difference), share.unsqueeze(1)
        # e^{(s − max s)/γ} as a power of 2, which is several times faster than a power of e.
        weights = similarities - similarities.amax(1, keepdim=True)
        weights.mul_(1 / (math.log(2) * self.gamma)).exp2_()
        weights.div_(weights.sum(1, keepdim=True))
        if _at_once(similarities):
            return (weights * similarities).sum(1), weights
        # One proxy at a time, here and in the backward: this saves a third buffer of the size of the similarities.
        pooled = torch.zeros_like(similarities[:, 0])
        for share, similarity in zip(weights.unbind(1), similarities.unbind(1), strict=True):
            pooled.addcmul_(share, similarity)
        return pooled, weights

    def backward(
        self, grad: ClassScores, similarities: Similarities, pooled: ClassScores, weights: Weights | None
    ) -> Similarities:
        assert weights is not None
        # ∂S/∂s_k = q_k (1 + (s_k − S)/γ)
        if similarities.shape[1] == 2:  # the two derivatives add up to 1
            share = weights.squeeze(1)
            slope = torch.addcmul(share, share, pooled.sub_(similarities[:, 0]), value=-1 / self.gamma)
            if torch.compiler.is_compiling():  # which takes no `out` that is not contiguous
                first = grad * slope
                return torch.stack([first, grad - first], dim=1)
            grads = torch.empty_like(similarities)
            torch.sub(grad, torch.mul(grad, slope, out=grads[:, 0]), out=grads[:, 1])
            return grads
        constant = pooled.mul_(-1 / self.gamma).add_(1).mul_(grad)
        if _at_once(similarities):
            constant, grad = constant.unsqueeze(1), grad.unsqueeze(1)
            return weights.mul_(torch.addcmul(constant, grad, similarities, value=1 / self.gamma))
        for share, similarity in zip(weights.unbind(1), similarities.unbind(1), strict=True):
            share.mul_(torch.addcmul(constant, grad, similarity, value=1 / self.gamma))
        return weights


def _at_once(similarities: Tensor) -> bool:
    """Return whether to use few large operations, as on a GPU, instead of one per proxy, which fits a CPU's cache."""
    return similarities.is_cuda or torch.compiler.is_compiling()


@dataclass(frozen=True)
class MaxPooling(Pooling):
    """``S = max_k s_k``: only the nearest proxy counts, as in sub-center ArcFace; of several equal ones, one does.

    >>> MaxPooling().dense(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor([0.5000, 1.0000])
    """

    def dense(self, similarities: Float[Tensor, "*rows proxies"]) -> Float[Tensor, "*rows"]:
        return similarities.max(-1).values

    def forward(self, similarities: Similarities) -> tuple[ClassScores, None]:
        return similarities.amax(1), None

    def backward(
        self, grad: ClassScores, similarities: Similarities, pooled: ClassScores, weights: Weights | None
    ) -> Similarities:
        nearest = similarities.max(1, keepdim=True).indices
        return torch.zeros_like(similarities).scatter_(1, nearest, grad.unsqueeze(1))


@dataclass(frozen=True)
class MeanPooling(Pooling):
    """``S = (1/K) Σ_k s_k``: all proxies count equally.

    >>> MeanPooling().dense(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor([0.5000, 0.5000])
    """

    def dense(self, similarities: Float[Tensor, "*rows proxies"]) -> Float[Tensor, "*rows"]:
        return similarities.mean(-1)

    def forward(self, similarities: Similarities) -> tuple[ClassScores, None]:
        return similarities.mean(1), None

    def backward(
        self, grad: ClassScores, similarities: Similarities, pooled: ClassScores, weights: Weights | None
    ) -> Similarities:
        share = grad / similarities.shape[1]
        return share.unsqueeze(1).expand_as(similarities).contiguous()
