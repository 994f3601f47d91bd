"""Modules of torch around the model of an embedder."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from proxemic.models.outputs import embeddings_in


class Tensors(nn.Module):
    """Pick the embeddings out of the output of a model."""

    def __init__(self, model: nn.Module, keep: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.keep = model, keep

    def forward(self, images: Tensor) -> Tensor:
        return self.keep(embeddings_in(self.model(images)))


class Texts(nn.Module):
    """Map tokens to embeddings, with the same head as for images."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model.embed_features(self.model.backbone.text_features(tokens))
