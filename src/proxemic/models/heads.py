"""Heads, from pooled features `[B, F]` to embeddings `[B, D]`, their initialisation, and pooling."""

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.nn.functional import normalize

from proxemic.models.components import components, mean_and_covariance
from proxemic.models.config import ModelConfig


class UnitLength(nn.Module):
    """Layer that scales features to unit length."""

    def forward(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch features"]:
        return normalize(features.float(), dim=1)


class ResidualHead(nn.Module):
    """Sum of a projection and an MLP whose output is zero at first."""

    def __init__(self, base: nn.Module, mlp: nn.Sequential) -> None:
        super().__init__()
        self.base = base
        self.mlp = mlp
        for parameter in mlp[-1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch dim"]:
        return self.base(features) + self.mlp(features)


def make_head(config: ModelConfig, features: int) -> nn.Sequential:
    """Make the layers after pooling that a configuration describes; raise `ValueError` if its sizes do not fit."""
    size = config.embedding_size
    if config.head == "none" and size != features:
        raise ValueError(
            f"embedding_size is {size} but without a head it must be {features}, the features of "
            f"{config.backbone_name}; set it so, or take head 'linear'"
        )
    if config.head_init == "identity" and size != features:
        raise ValueError(
            f"embedding_size is {size} but for head_init 'identity' it must be {features}, the features of "
            f"{config.backbone_name}; set it so, or take head_init 'pca'"
        )
    norm = nn.LayerNorm(features, elementwise_affine=False) if config.layer_norm else nn.Identity()
    if config.unit_features:
        norm = UnitLength()
    match config.head:
        case "none":
            layers = []
        case "linear":
            layers = [_linear(config, features)]
        case "linear+layer_norm":
            layers = [_linear(config, features), nn.LayerNorm(size, elementwise_affine=False)]
        case "mlp":
            layers = [_mlp(config, features)]
        case "residual":
            is_whole = size == features and config.head_init in (None, "identity")
            layers = [ResidualHead(nn.Identity() if is_whole else _linear(config, features), _mlp(config, features))]
    return nn.Sequential(norm, *layers)


def _linear(config: ModelConfig, features: int) -> nn.Linear:
    linear = nn.Linear(features, config.embedding_size)
    if config.head_init == "kaiming_normal":
        nn.init.kaiming_normal_(linear.weight, mode="fan_out")
        nn.init.zeros_(linear.bias)
    elif config.head_init == "identity":
        nn.init.eye_(linear.weight)
        nn.init.zeros_(linear.bias)
    return linear


def _mlp(config: ModelConfig, features: int) -> nn.Sequential:
    width = config.head_width or features
    return nn.Sequential(nn.Linear(features, width), nn.GELU(), nn.Linear(width, config.embedding_size))


@torch.no_grad()
def begin_at_principal_components(
    head: nn.Sequential, features: Float[Tensor, "images features"], *, whiten: bool
) -> None:
    """Set the linear layer of a head to the principal components of pooled features.

    `make_head` must have made the head. Dimensions beyond the number of features start at zero.
    """
    begin_at_components_of(head, *_mean_and_covariance(head[0](features)), whiten=whiten)


@torch.no_grad()
def begin_at_components_of(
    head: nn.Sequential,
    mean: Float64[Tensor, " features"],
    covariance: Float64[Tensor, "features features"],
    *,
    whiten: bool,
) -> None:
    """Do the same as `begin_at_principal_components`, given the mean and covariance of the features."""
    linear = head[1].base if isinstance(head[1], ResidualHead) else head[1]
    assert isinstance(linear, nn.Linear)
    count = min(linear.out_features, linear.in_features)
    weight, bias = _components(mean, covariance, count, whiten=whiten)
    for parameter, values in ((linear.weight, weight), (linear.bias, bias)):
        parameter.zero_()
        parameter[:count] = values


def principal_components(
    features: Float[Tensor, "images features"], count: int, *, whiten: bool = False
) -> tuple[Float64[Tensor, "components features"], Float64[Tensor, " components"]]:
    r"""Compute the linear layer that projects features onto their first principal components, in float64.

    $$y = W (x - \mu), \qquad b = -W \mu, \qquad w_i = \frac{v_i}{\sqrt{\lambda_i + \bar\lambda}}$$

    Row i of W is the eigenvector $v_i$ of the i-th largest variance $\lambda_i$ of the features, divided as above only
    with ``whiten``: components with more than the mean variance $\bar\lambda$ of all features then have a variance near
    1, and components with less, which are mostly noise, stay smaller. If there are fewer images than components, some
    components have no variance: they are arbitrary directions orthogonal to the others, in which other images may
    differ. The largest entry of each eigenvector is positive.

    Args:
        features: `[images, features]` of at least 2 images.
        count: Number of components, from 1 to the number of features.
        whiten: Divide each component by its standard deviation, regularised as above.

    Returns:
        W `[count, features]` and b `[count]`.

    Raises:
        ValueError: If there are fewer features than ``count``, or they are not finite.

    >>> weight, bias = principal_components(torch.tensor([[0.0, 1.0], [4.0, 1.0], [2.0, 1.0]]), 1)
    >>> weight.tolist(), bias.tolist()
    ([[1.0, 0.0]], [-2.0])
    """
    size = features.shape[1]
    if not 1 <= count <= size:
        raise ValueError(f"count is {count:,}, but {size:,} features have 1 to {size:,} principal components")
    return _components(*_mean_and_covariance(features), count, whiten=whiten)


def _mean_and_covariance(
    features: Float[Tensor, "images features"],
) -> tuple[Float64[Tensor, " features"], Float64[Tensor, "features features"]]:
    mean, covariance = map(torch.from_numpy, mean_and_covariance(features.detach().cpu().numpy()))
    return mean.to(features.device), covariance.to(features.device)


def _components(
    mean: Float64[Tensor, " features"], covariance: Float64[Tensor, "features features"], count: int, *, whiten: bool
) -> tuple[Float64[Tensor, "components features"], Float64[Tensor, " components"]]:
    found = components(mean.cpu().numpy(), covariance.cpu().numpy(), count, whiten=whiten)
    weight, bias = map(torch.from_numpy, found)
    return weight.to(mean.device), bias.to(mean.device)


class AvgPool(nn.Module):
    """Average pooling: the mean over all positions.

    >>> AvgPool()(torch.tensor([[[[1.0, 2.0, 3.0, 6.0]]]]))
    tensor([[3.]])
    """

    def forward(self, features: Float[Tensor, "batch dim height width"]) -> Float[Tensor, "batch dim"]:
        return features.mean((2, 3))


class MaxPool(nn.Module):
    """Maximum pooling: the largest value over all positions.

    >>> MaxPool()(torch.tensor([[[[1.0, 2.0, 3.0, 6.0]]]]))
    tensor([[6.]])
    """

    def forward(self, features: Float[Tensor, "batch dim height width"]) -> Float[Tensor, "batch dim"]:
        return features.amax((2, 3))


class AvgMaxPool(nn.Module):
    """Sum of average and maximum pooling, as in the code of Proxy-Anchor, HIST and the warped softmax.

    >>> AvgMaxPool()(torch.tensor([[[[1.0, 2.0, 3.0, 6.0]]]]))
    tensor([[9.]])
    """

    def forward(self, features: Float[Tensor, "batch dim height width"]) -> Float[Tensor, "batch dim"]:
        return features.mean((2, 3)) + features.amax((2, 3))


class GeM(nn.Module):
    r"""Generalised-mean pooling: the average for p = 1, nearly the maximum for large p.

    $$\Big(\frac{1}{HW} \sum_{hw} \max(x_{hw}, \epsilon)^p\Big)^{1/p}$$

    Source: Radenović et al., Fine-tuning CNN Image Retrieval with No Human Annotation, eq. 3.

    Args:
        p: Exponent, above 0, shared by all channels.
        eps: Minimum of the features, above 0, which keeps the gradient of p finite.
        train_p: Learn p, starting at the given value. With a fixed p of 3, the pooling is called "cubic".

    Raises:
        ValueError: If ``p`` or ``eps`` is not above 0.

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
        # Powers exceed the range of half precision.
        with torch.autocast(features.device.type, enabled=False):
            powers = features.float().clamp(min=self.eps).pow(self.p)
            return powers.mean((2, 3)).pow(1 / self.p).to(features.dtype)
