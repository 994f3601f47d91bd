"""Evaluate the network before training, by its pooled features and with its new head."""

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from proxemic.data import ImageSet
from proxemic.models import EmbeddingModel
from proxemic.models.model import without_head
from proxemic.runs.evaluate import EvaluationConfig, evaluate_embeddings

Start = Literal["start", "untrained"]
"""The network before training: without a head, by its pooled features, or with its new head."""


class SideBySide(nn.ModuleList):
    """Concatenate the embeddings of several networks, so that each image is read only once."""

    def forward(
        self, inputs: Float[Tensor, "batch channels height width"] | Float[Tensor, "batch features"]
    ) -> Float[Tensor, "batch dims"]:
        return torch.cat([network(inputs) for network in self], dim=1)


class BothStarts(nn.Module):
    """Concatenate the pooled features of a network and its embeddings."""

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model, self.bare = model, without_head(model)
        self.widths = {"start": self.bare.config.embedding_size, "untrained": model.config.embedding_size}

    def forward(
        self, inputs: Float[Tensor, "batch channels height width"] | Float[Tensor, "batch features"]
    ) -> Float[Tensor, "batch dims"]:
        features = inputs if inputs.ndim == 2 else self.model.features(inputs)
        return torch.cat([self.bare.embed_features(features), self.model.embed_features(features)], dim=1)


def evaluate_starts(
    embeddings: Mapping[str, Float[Tensor, "images dim"]], images: ImageSet, config: EvaluationConfig
) -> dict[str, dict[str, float]]:
    """Evaluate each set of embeddings; skip those that are not finite, as some untrained networks give."""
    finite = {name: embedding for name, embedding in embeddings.items() if bool(embedding.isfinite().all())}
    return {name: dict(evaluate_embeddings(item, images, config)) for name, item in finite.items()}


def better_start(values: Mapping[str, Mapping[str, float]], metric: str) -> str:
    """Return the better start; on a tie the one with a head, as its proxies can be used; empty without any start."""
    return max(reversed([*values]), key=lambda name: values[name][metric], default="")
