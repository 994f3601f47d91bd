"""A network of the user's class as a backbone."""

import inspect
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from proxemic.models.config import SIZE, ModelConfig
from proxemic.models.weights_files import load_weights_file


class CustomBackbone(nn.Module):
    """Wrapper of a network from images to features `[B, F]` or `[B, F, h, w]`; it returns `[B, num_features, h, w]`."""

    def __init__(self, network: nn.Module, num_features: int) -> None:
        super().__init__()
        self.network = network
        self.num_features = num_features

    @classmethod
    def build(cls, config: ModelConfig, kind: type[nn.Module]) -> "CustomBackbone":
        """Instantiate `kind` with the configuration's arguments and weights; raise `ValueError` if they do not fit."""
        parameters = inspect.signature(kind).parameters
        channels = {"in_channels": config.in_channels} if "in_channels" in parameters else {}
        try:
            inspect.signature(kind).bind(**channels | config.backbone_args)
        except TypeError as error:
            raise ValueError(f"backbone_args do not fit {config.backbone_name}: {error}") from error
        network = kind(**channels | config.backbone_args)
        if config.weights is not None:
            load_weights_file(network, Path(config.weights).expanduser(), config.backbone_name)
        features = getattr(network, "num_features", None)
        return cls(network, features if isinstance(features, int) else _count_features(network, config))

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim rows columns"]:
        features = _as_map(self.network(images), self.network)
        if features.shape[1] != self.num_features:
            raise ValueError(
                f"{type(self.network).__name__} returns {features.shape[1]} features but its num_features is "
                f"{self.num_features}; they must agree"
            )
        return features


@torch.no_grad()
def _count_features(network: nn.Module, config: ModelConfig) -> int:
    side = config.image_size or SIZE
    was_training = network.training
    with torch.random.fork_rng(devices=[]):
        features = network.eval()(torch.zeros(2, config.in_channels, side, side))
    network.train(was_training)
    return _as_map(features, network).shape[1]


def _as_map(features: object, network: nn.Module) -> Tensor:
    if not isinstance(features, Tensor) or features.ndim not in (2, 4):
        kind = f"a tensor of shape {list(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(
            f"model.backbone is {type(network).__name__}, which returns {kind} but must return a tensor [batch, "
            "features] or [batch, features, height, width]: wrap it in a module that returns such a tensor"
        )
    return features if features.ndim == 4 else features[:, :, None, None]
