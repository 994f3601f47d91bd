"""Contributions of the positions of a feature map to the embedding, for embeddings that are means over positions."""

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from proxemic.models.heads import UnitLength
from proxemic.models.model import EmbeddingModel

_POOLINGS = ("avg", "max", "avg+max")
_HEADS = ("none", "linear", "linear+layer_norm")


def is_mean_over_places(model: nn.Module) -> bool:
    """Return whether `place_embeddings` can split the embeddings: if a linear head follows average or max pooling."""
    return (
        isinstance(model, EmbeddingModel)
        and not model.config.takes_vectors
        and model.config.pooling in _POOLINGS
        and model.config.head in _HEADS
    )


@torch.no_grad()
def place_embeddings(
    model: EmbeddingModel, features: Float[Tensor, "batch channels height width"]
) -> Float64[Tensor, "batch dim height width"]:
    r"""Compute the contribution of each position of a feature map to the embedding, which is their mean.

    $$W \Big(\frac{1}{P} \sum_p x_p\Big) + b = \frac{1}{P} \sum_p (W x_p + b)$$

    All positions share the bias equally. With max pooling, a channel belongs to the position of its maximum, or in
    equal parts to several positions. A norm without trained weights is linear except for its divisor, which is taken
    from the pooled features. Embeddings are not scaled to unit length.

    Args:
        model: A network for which `is_mean_over_places` returns True.
        features: Output of its backbone, `[B, F, h, w]`.

    Returns:
        `[B, D, h, w]`, float64.

    Raises:
        ValueError: If embeddings of this network are not means over positions.

    >>> from proxemic.models import ModelConfig, build_model
    >>> model = build_model(ModelConfig(embedding_size=8, in_channels=1, normalize=False, width=4)).eval()
    >>> features = model.backbone(torch.rand(2, 1, 32, 32))
    >>> places = place_embeddings(model, features)
    >>> embeddings = model.embed_features(model.pooling(features))
    >>> places.shape, torch.allclose(places.mean((2, 3)).float(), embeddings, atol=1e-5)
    (torch.Size([2, 8, 4, 4]), True)
    """
    if not is_mean_over_places(model):
        raise ValueError(
            f"the embeddings are not means over positions: pooling must be one of {', '.join(_POOLINGS)}, and "
            f"head one of {', '.join(_HEADS)}"
        )
    x = features.double()
    local = torch.zeros_like(x)
    if "avg" in model.config.pooling:
        local += x
    if "max" in model.config.pooling:
        largest = x == x.amax((2, 3), keepdim=True)
        local += x * largest * (x.shape[2] * x.shape[3]) / largest.sum((2, 3), keepdim=True)
    places = local.movedim(1, 3)  # channels last, as layers take them
    for layer in model.head:
        places = _apply(layer, places)
    return places.movedim(3, 1)


def _apply(
    layer: nn.Module, places: Float64[Tensor, "batch height width channels"]
) -> Float64[Tensor, "batch height width other_channels"]:
    match layer:
        case nn.Linear():
            bias = None if layer.bias is None else layer.bias.double()
            return nn.functional.linear(places, layer.weight.double(), bias)
        case UnitLength():
            return places / places.mean((1, 2), keepdim=True).norm(dim=3, keepdim=True).clamp(min=1e-12)
        case nn.LayerNorm():
            pooled = places.mean((1, 2), keepdim=True)
            divisor = (pooled.var(3, correction=0, keepdim=True) + layer.eps).sqrt()
            return (places - places.mean(3, keepdim=True)) / divisor
        case nn.Identity():
            return places
    raise AssertionError(f"{type(layer).__name__} is not a layer of a linear head")
