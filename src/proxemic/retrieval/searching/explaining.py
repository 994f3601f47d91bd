"""Explain why two images are near: how much each location contributes to their similarity."""

from dataclasses import dataclass
from math import isqrt
from typing import Literal

import torch
from jaxtyping import Float, Float64
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, normalize

from proxemic.analysis.similarity_maps import gradient_map, similarity_maps
from proxemic.data import Preprocessing
from proxemic.errors import UserError
from proxemic.models import EmbeddingModel, is_mean_over_places, place_embeddings
from proxemic.retrieval.vectors.embedder import Embedder
from proxemic.retrieval.vectors.preparation import Picture

_CELLS = 14  # along each side of a map that is made of pixels


@dataclass(frozen=True, eq=False)
class Explanation:
    """Contributions of the locations of two images to their similarity.

    Args:
        similarity: The cosine of their embeddings, in [-1, 1], after the mean was subtracted if one was given.
        method: ``exact``: the contributions to either image add up to the similarity. ``gradients``: they are an
            approximation, see `proxemic.analysis.gradient_map`.
        maps: The contribution of each location of the first image, and of the second.
        pictures: Both images as the network sees them, after resize and crop; the maps cover these.
    """

    similarity: float
    method: Literal["exact", "gradients"]
    maps: tuple[Float64[Tensor, "height width"], Float64[Tensor, "other_height other_width"]]
    pictures: tuple[Image.Image, Image.Image]


def explain_similarity(
    embedder: Embedder, first: Picture, second: Picture, *, mean: Float[Tensor, " dim"] | None = None
) -> Explanation:
    """Divide the similarity of two images among their locations.

    With average or max pooling and a linear head, the similarity is a sum over pairs of locations, and the maps are
    exact. For other networks, they are gradients times activations of the last feature map. A network without a feature
    map is explained by its pixels, in a grid of 14 by 14 locations. If a network of your own scales embeddings to unit
    length itself, its maps add up to zero.

    Args:
        embedder: The model. It computes in float32, whatever its precision; an embedder that keeps the first dimensions
            of an embedding (`Embedder.first`) compares these alone.
        first: An image, as `Embedder.embed` takes it.
        second: The other image.
        mean: Mean of unit embeddings. It is subtracted from both embeddings, so that the maps show what the two have in
            common beyond what all images have; None explains the cosine itself.

    Returns:
        The similarity, and a map of contributions for each image.

    Raises:
        UnreadableImageError: If an image cannot be read.
        UserError: If the model takes vectors, or runs in ONNX Runtime, which has no gradients.

    >>> from torchvision.transforms.v2.functional import pil_to_tensor
    >>> embedder = Embedder(nn.Flatten(), lambda image: pil_to_tensor(image.resize((28, 28))) / 255)
    >>> red = explain_similarity(embedder, Image.new("RGB", (9, 9), "red"), Image.new("RGB", (9, 9), "red"))
    >>> red.method, round(red.similarity, 4), red.maps[0].shape, round(float(red.maps[0].sum()), 4)
    ('gradients', 1.0, torch.Size([14, 14]), 1.0)
    """
    if embedder.takes_vectors:
        raise UserError(f"{embedder.path or 'The model'} takes vectors, which have no locations to explain.")
    images = [embedder.prepare(picture)[None].to(embedder.device) for picture in (first, second)]
    seen = _as_seen(embedder, first, images[0]), _as_seen(embedder, second, images[1])
    model = embedder.model
    if isinstance(model, EmbeddingModel) and is_mean_over_places(model):
        with torch.no_grad():
            grids = [_as_grid(model.backbone(image)) for image in images]
        if grids[0] is not None and grids[1] is not None:
            one, other = (place_embeddings(model, grid)[0, : embedder.dim].cpu() for grid in grids if grid is not None)
            if mean is not None:
                one, other = (_centred(value, mean) for value in (one, other))
            exact = similarity_maps(one, other)
            return Explanation(exact.similarity, "exact", (exact.first, exact.second), seen)
    with torch.enable_grad():
        (one_map, one), (other_map, other) = (_embed_with_map(embedder, image) for image in images)
        if not (one.requires_grad and other.requires_grad):
            raise UserError(
                f"{embedder.path or 'The model'} gives no gradients, as in ONNX Runtime: explain with "
                "the run that it was exported from."
            )
        targets = [
            value.detach() if mean is None else normalize(value.detach(), dim=0) - mean.to(value)
            for value in (one, other)
        ]
        maps = _gradients(one_map, one, targets[1]), _gradients(other_map, other, targets[0])
    similarity = float(torch.cosine_similarity(*(target.double() for target in targets), dim=0))
    return Explanation(similarity, "gradients", maps, seen)


def _centred(
    vectors: Float[Tensor, "dim height width"], mean: Float[Tensor, " dim"]
) -> Float64[Tensor, "dim height width"]:
    """Scale the vectors of locations so that their mean has unit length, and subtract the mean of all images."""
    unit = vectors.double() / vectors.double().mean((1, 2)).norm().clamp(min=1e-12)
    return unit - mean.double()[:, None, None]


def _embed_with_map(
    embedder: Embedder, image: Float[Tensor, "1 channels height width"]
) -> tuple[Float[Tensor, "1 dim rows columns"], Float[Tensor, " size"]]:
    """Return the last feature map with several locations, or else the pixels, and the embedding computed from it."""
    image = image.requires_grad_()
    found = [image]

    def keep(layer: nn.Module, given: object, output: object) -> None:
        if isinstance(output, Tensor) and output.requires_grad and _as_grid(output) is not None:
            found.append(output)

    model = embedder.model
    hooks = [layer.register_forward_hook(keep) for layer in model.modules()]
    try:
        # Of unit length, its gradient along itself would be zero, and the contributions would cancel.
        if isinstance(model, EmbeddingModel):
            embedding = model.head(model.features(image))[0, : embedder.dim].float()
        else:
            embedding = embedder.network(image)[0].float()
    finally:
        for hook in hooks:
            hook.remove()
    return found[-1], embedding


def _gradients(
    activation: Float[Tensor, "1 dim rows columns"], embedding: Float[Tensor, " size"], other: Float[Tensor, " size"]
) -> Float64[Tensor, "height width"]:
    grid = _as_grid(gradient_map(activation, embedding, other)[:, None])
    assert grid is not None
    if activation.is_leaf:  # the pixels
        height, width = grid.shape[2:]
        cells = min(height, _CELLS), min(width, _CELLS)
        grid = adaptive_avg_pool2d(grid, cells) * (height * width / (cells[0] * cells[1]))
    return grid[0, 0].cpu()


def _as_seen(embedder: Embedder, picture: Picture, prepared: Float[Tensor, "1 channels height width"]) -> Image.Image:
    """Show what the network sees: the prepared image, or its values scaled from black to white."""
    if isinstance(embedder.transform, Preprocessing) and not isinstance(picture, Tensor):
        return embedder.transform.fit()(picture).convert("RGB")
    from torchvision.transforms.v2.functional import to_pil_image  # a second of time

    image = prepared[0].detach().float().cpu()
    low, high = image.aminmax()
    image = (image - low) / (high - low).clamp(min=1e-12)
    return to_pil_image(image if len(image) in (1, 3) else image[:1]).convert("RGB")


def _as_grid(features: Tensor) -> Float[Tensor, "batch channels height width"] | None:
    """Reshape a feature map to a grid over the image; return None if it has a single location or is not a grid."""
    if features.ndim != 4:
        return None
    batch, channels, height, width = features.shape
    if width == 1 and height > 1:  # the patches of a transformer
        side = isqrt(height)
        return features.reshape(batch, channels, side, side) if side * side == height else None
    return features if height * width > 1 else None
