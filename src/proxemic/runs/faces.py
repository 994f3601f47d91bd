"""Embed faces, each from an image and its mirror image."""

import copy
from dataclasses import replace

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from proxemic.models import EmbeddingModel


class FlipSum(nn.Module):
    """Sum a network's embeddings of an image and of its mirror image.

    If the network scales embeddings to unit length, only the sum is scaled, as in insightface's
    `recognition/arcface_torch/eval/verification.py`.
    """

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model = copy.copy(model)
        self.model.config = replace(model.config, normalize=False)
        self.normalize = model.config.normalize

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim"]:
        embeddings = self.model(images) + self.model(images.flip(-1))
        return normalize(embeddings, dim=1) if self.normalize else embeddings
