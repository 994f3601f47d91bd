"""Terms on the proxies alone, added to any proxy loss."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from proxemic.losses.similarity import unit

__all__ = ["CenterRegularizer", "MeanProxyNorm"]


class MeanProxyNorm(nn.Module):
    """``weight · ‖(1/C) Σ_c ŵ_c‖``, the norm of the mean of the unit proxies; all K of a class count when K > 1.

    The smaller it is, the nearer the softmax loss puts its minimiser to the proxy (mean-proxy paper, section 3).

    Args:
        weight: Factor ≥ 0; the paper takes 1.0 on CUB and 0.01 on Cars.

    Raises:
        ValueError: If ``weight`` is negative.

    >>> MeanProxyNorm(weight=1.0)(torch.tensor([[[2.0, 0.0]], [[0.0, 3.0]]]))
    tensor(0.7071)
    """

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = _check_weight("weight", weight)

    def forward(self, proxies: Float[Tensor, "classes proxies dim"]) -> Float[Tensor, ""]:
        mean = unit(proxies.flatten(0, 1)).mean(0)
        return self.weight * _root(mean.square().sum())

    def extra_repr(self) -> str:
        return f"weight={self.weight}"


class CenterRegularizer(nn.Module):
    """``weight · Σ_c Σ_{k<l} ‖ŵ_ck − ŵ_cl‖ / (C K (K − 1))``: lets surplus proxies of a class merge.

    0 for one proxy a class. Its gradient stays finite, 0, between two proxies that coincide (SoftTriple; MPA
    paper, equation 3). SoftTriple's published code adds 1e-5 inside the root instead.

    Args:
        weight: Factor τ ≥ 0; the papers take 0.2.

    Raises:
        ValueError: If ``weight`` is negative.

    >>> CenterRegularizer(weight=1.0)(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))
    tensor(0.7071)
    """

    def __init__(self, weight: float = 0.2) -> None:
        super().__init__()
        self.weight = _check_weight("weight", weight)

    def forward(self, proxies: Float[Tensor, "classes proxies dim"]) -> Float[Tensor, ""]:
        classes, per_class, _ = proxies.shape
        if per_class == 1:
            return proxies.new_zeros(())
        centers = unit(proxies)
        first, second = torch.triu_indices(per_class, per_class, 1, device=proxies.device)
        cosine = (centers @ centers.mT)[:, first, second]
        # Below the rounding of the cosine the difference is noise, and the root would make it a large gradient.
        squared = 2 - 2 * cosine
        squared = torch.where(squared > 8 * torch.finfo(squared.dtype).eps, squared, 0)
        return self.weight * _root(squared).sum() / (classes * per_class * (per_class - 1))

    def extra_repr(self) -> str:
        return f"weight={self.weight}"


def _root(squared: Tensor) -> Tensor:
    """Square root with gradient 0, not infinity, at 0."""
    positive = squared > 0
    return torch.where(positive, torch.where(positive, squared, 1).sqrt(), 0)


def _check_weight(name: str, value: float) -> float:
    if not value >= 0:
        raise ValueError(f"{name} is {value}, but a regulariser's weight must be 0 or more.")
    return value
