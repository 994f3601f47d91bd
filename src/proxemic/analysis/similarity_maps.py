"""Map which positions of two images make them similar, by exact contributions to the similarity or by gradients."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor


@dataclass(frozen=True, eq=False)
class SimilarityMaps:
    """The contributions of the positions of two images to their cosine similarity.

    Args:
        similarity: Cosine of the two embeddings, in [-1, 1].
        pairs: Contribution of each pair of positions, one of each image; their sum is the similarity.
    """

    similarity: float
    pairs: Float64[Tensor, "height width other_height other_width"]

    @property
    def first(self) -> Float64[Tensor, "height width"]:
        """The contributions of the first image's positions; their sum is the similarity."""
        return self.pairs.sum((2, 3))

    @property
    def second(self) -> Float64[Tensor, "height width"]:
        """The contributions of the second image's positions; their sum is the similarity."""
        return self.pairs.sum((0, 1))


@torch.no_grad()
def similarity_maps(
    first: Float[Tensor, "dim height width"], second: Float[Tensor, "dims other_height other_width"]
) -> SimilarityMaps:
    r"""Split the cosine of two embeddings, each a mean over positions, into contributions of pairs of positions.

    $$\cos(f, g) = \sum_p \sum_q \frac{\langle f_p, g_q \rangle}{P \, Q \, \|f\| \, \|g\|}, \qquad
    f = \frac1P \sum_p f_p, \quad g = \frac1Q \sum_q g_q$$

    This is exact for average pooling and a linear head, because a mean and a linear layer commute: the vector of a
    position is $f_p = W x_p + b$, which `proxemic.models.place_embeddings` computes. Positions with negative
    contributions make the images less similar. Computed in float64. A zero vector has a similarity of 0 to all others.

    Args:
        first: Vectors of the positions of one image, whose mean is the embedding of the image up to a positive factor.
        second: Vectors of the positions of the other image.

    Raises:
        ValueError: If there are no positions, or the vectors have different dimensions.

    Source: Stylianou, Souvenir and Pless, Visualizing Deep Similarity Networks, WACV 2019.

    >>> left = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])  # one row of two places, of two dimensions
    >>> maps = similarity_maps(left, torch.tensor([[[1.0]], [[0.0]]]))
    >>> round(maps.similarity, 4), [round(value, 4) for value in maps.first[0].tolist()]
    (0.7071, [0.7071, 0.0])
    """
    if first.shape[0] != second.shape[0] or not first.numel() or not second.numel():
        raise ValueError(
            f"first has shape {list(first.shape)} and second {list(second.shape)}, but both must be [dim, height, "
            "width] with the same dim, and 1 or more positions"
        )
    one, other = _shares(first), _shares(second)
    pairs = torch.einsum("dhw,dij->hwij", one, other)
    return SimilarityMaps(float(one.sum((1, 2)) @ other.sum((1, 2))), pairs)


def gradient_map(
    activation: Float[Tensor, "*batch dim height width"],
    embedding: Float[Tensor, " size"],
    other: Float[Tensor, " size"],
) -> Float64[Tensor, "*batch height width"]:
    r"""Approximate the map of a network whose embedding is not a mean over positions by gradient times activation.

    $$m_p = \Big\langle x_p, \frac{\partial}{\partial x_p} \frac{\langle f(x), g \rangle}{\|f\| \, \|g\|} \Big\rangle$$

    Both norms are held fixed; otherwise the contributions would cancel, because a cosine does not depend on the length
    of an embedding. For a linear network without a bias, this is the exact map of `similarity_maps`; for others it is
    a local approximation, which need not add up to the similarity.

    Args:
        activation: Feature map from which the embedding is computed.
        embedding: Embedding with its autograd graph, before it is scaled to unit length.
        other: Embedding of the other image.

    Raises:
        ValueError: If the embedding does not depend on the activation.

    >>> x = torch.tensor([[[3.0, 1.0]]], requires_grad=True)
    >>> [round(value, 4) for value in gradient_map(x, x.mean((1, 2)), torch.tensor([2.0]))[0].tolist()]
    [0.75, 0.25]
    """
    unit = other.detach() / other.detach().norm().clamp(min=1e-12)
    score = embedding @ unit / embedding.detach().norm().clamp(min=1e-12)
    try:
        (gradient,) = torch.autograd.grad(score, activation, retain_graph=True)
    except RuntimeError as error:
        raise ValueError(f"the embedding has no gradient with respect to the activation: {error}") from error
    return (activation.detach().double() * gradient.double()).sum(-3)


def _shares(vectors: Float[Tensor, "dim height width"]) -> Float64[Tensor, "dim height width"]:
    """Scale the vectors of positions so that their sum has unit length."""
    vectors = vectors.double()
    return vectors / vectors.sum((1, 2)).norm().clamp(min=torch.finfo(torch.float64).tiny)
