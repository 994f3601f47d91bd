"""Pooling of a feature map over its places: `[B, C, H, W]` to `[B, C]`."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class AvgPool(nn.Module):
    """The mean over all places.

    >>> AvgPool()(torch.tensor([[[[1.0, 2.0, 3.0, 6.0]]]]))
    tensor([[3.]])
    """

    def forward(self, features: Float[Tensor, "batch dim height width"]) -> Float[Tensor, "batch dim"]:
        return features.mean((2, 3))


class MaxPool(nn.Module):
    """The largest value over all places.

    >>> MaxPool()(torch.tensor([[[[1.0, 2.0, 3.0, 6.0]]]]))
    tensor([[6.]])
    """

    def forward(self, features: Float[Tensor, "batch dim height width"]) -> Float[Tensor, "batch dim"]:
        return features.amax((2, 3))


class AvgMaxPool(nn.Module):
    """The sum of average and max pooling, as in the code of Proxy-Anchor, HIST and the warped softmax.

    >>> AvgMaxPool()(torch.tensor([[[[1.0, 2.0, 3.0, 6.0]]]]))
    tensor([[9.]])
    """

    def forward(self, features: Float[Tensor, "batch dim height width"]) -> Float[Tensor, "batch dim"]:
        return features.mean((2, 3)) + features.amax((2, 3))


class GeM(nn.Module):
    r"""Generalised mean: the average for p = 1, towards the maximum for large p.

    $$\Big(\frac{1}{HW} \sum_{hw} \max(x_{hw}, \epsilon)^p\Big)^{1/p}$$

    Source: Radenović et al., Fine-tuning CNN Image Retrieval with No Human Annotation, eq. 3.

    Args:
        p: Exponent, above 0, shared by all channels.
        eps: Minimum of the features, above 0, which keeps the gradient of p finite.
        train_p: Whether p is learned, starting at this value; fixed at 3, the pooling is called "cubic".

    Raises:
        ValueError: If an argument is out of its range.

    >>> GeM(p=2.0)(torch.tensor([[[[1.0, 7.0]]]]))
    tensor([[5.]], grad_fn=<PowBackward1>)
    """

    def __init__(self, p: float = 3.0, eps: float = 1e-6, *, train_p: bool = True) -> None:
        super().__init__()
        if not (p > 0 and eps > 0):
            raise ValueError(f"p is {p} and eps {eps}, but both must be above 0")
        self.p = nn.Parameter(torch.tensor(float(p))) if train_p else float(p)
        self.eps = eps

    def forward(self, features: Float[Tensor, "batch dim height width"]) -> Float[Tensor, "batch dim"]:
        # The powers exceed the range of half precision.
        with torch.autocast(features.device.type, enabled=False):
            powers = features.float().clamp(min=self.eps).pow(self.p)
            return powers.mean((2, 3)).pow(1 / self.p).to(features.dtype)
