"""One score a class from the similarities to its K proxies."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["SoftmaxPooling"]


@dataclass(frozen=True)
class SoftmaxPooling:
    """``S = Σ_k q_k s_k`` with ``q = softmax(s / γ)`` (SoftTriple; MPA paper, equation 1).

    Args:
        gamma: Softness γ > 0, in units of the similarity: near 0 the nearest proxy alone counts, near ∞ all alike.

    Raises:
        ValueError: If ``gamma`` is not positive.

    >>> SoftmaxPooling(0.1).forward(torch.tensor([[[0.5, 0.5], [1.0, 0.0]]]))
    tensor([[0.5000, 1.0000]])
    """

    gamma: float = 0.1

    def __post_init__(self) -> None:
        if not self.gamma > 0:
            raise ValueError(f"gamma is {self.gamma}, but the softness of the pooling must be positive, as 0.1 is.")

    def forward(self, similarities: Float[Tensor, "batch classes proxies"]) -> Float[Tensor, "batch classes"]:
        """The class scores, by operations that autograd can follow."""
        return (torch.softmax(similarities / self.gamma, dim=-1) * similarities).sum(-1)

    def backward(
        self,
        grad: Float[Tensor, "batch classes"],
        similarities: Float[Tensor, "batch classes proxies"],
        pooled: Float[Tensor, "batch classes"],
    ) -> Float[Tensor, "batch classes proxies"]:
        """The gradient of the similarities from that of the class scores: ``∂S/∂s_k = q_k (1 + (s_k − S)/γ)``."""
        share = torch.softmax(similarities / self.gamma, dim=-1)
        slope = (similarities - pooled.unsqueeze(-1)).div_(self.gamma).add_(1)
        return share.mul_(slope).mul_(grad.unsqueeze(-1))
