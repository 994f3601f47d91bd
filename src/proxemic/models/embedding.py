"""The embedding network: backbone, pooling, head."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from proxemic.models.backbones import ConvNet
from proxemic.models.pooling import AvgMaxPool, AvgPool, GeM, MaxPool
from proxemic.models.timm_models import TimmBackbone, timm_backbone

Pooling = Literal["avg", "max", "avg+max", "gem"]


@dataclass(frozen=True)
class ModelConfig:
    """All that `build_model` needs to know.

    Args:
        backbone: `convnet`, the small network for images of 28 to 64 pixels, or the name of a timm model.
        embedding_size: dimensions of the embedding, at least 1.
        pooling: of the backbone's feature map.
        layer_norm: normalise the pooled features, without trained weights, before the last layer.
        normalize: scale embeddings to unit length.
        in_channels: of the images: 1 (grey) or 3 (colour).
        pretrained: start from timm's pretrained weights.
        weights: start from this `.safetensors` file of backbone weights instead.
        width: channels of the first stage of `convnet`, at least 1; timm models ignore it.

    Raises:
        ValueError: where an argument is out of its range.

    >>> ModelConfig(embedding_size=64, pooling="gem").pooling
    'gem'
    """

    backbone: str = "convnet"
    embedding_size: int = 128
    pooling: Pooling = "avg"
    layer_norm: bool = False
    normalize: bool = True
    in_channels: Literal[1, 3] = 3
    pretrained: bool = False
    weights: str | None = None
    width: int = 32

    def __post_init__(self) -> None:
        if self.embedding_size < 1:
            raise ValueError(f"embedding_size is {self.embedding_size} but must be at least 1")
        if self.pooling not in get_args(Pooling):
            raise ValueError(f"pooling is {self.pooling!r} but must be one of {', '.join(get_args(Pooling))}")
        if self.in_channels not in (1, 3):
            raise ValueError(f"in_channels is {self.in_channels} but must be 1 (grey) or 3 (colour)")
        if self.width < 1:
            raise ValueError(f"width is {self.width} but must be at least 1")
        if self.pretrained and self.weights is not None:
            raise ValueError("pretrained and weights are both set; choose one of them")
        if self.pretrained and self.backbone == "convnet":
            raise ValueError("pretrained is set but 'convnet' has no pretrained weights; choose a timm backbone")


class EmbeddingModel(nn.Module):
    """Images to embeddings: `head(pooling(backbone(images)))`, of unit length where the configuration says so.

    Embeddings are float32, also under autocast.

    Args:
        config: what the parts were made from, kept for saving.
        backbone: gives a feature map of `backbone.num_features` channels.

    >>> import torch
    >>> model = build_model(ModelConfig(in_channels=1, embedding_size=16))
    >>> model(torch.zeros(2, 1, 32, 32)).shape
    torch.Size([2, 16])
    """

    def __init__(self, config: ModelConfig, backbone: ConvNet | TimmBackbone) -> None:
        super().__init__()
        self.config = config
        self.backbone = backbone
        self.pooling = {"avg": AvgPool, "max": MaxPool, "avg+max": AvgMaxPool, "gem": GeM}[config.pooling]()
        features = backbone.num_features
        norm = nn.LayerNorm(features, elementwise_affine=False) if config.layer_norm else nn.Identity()
        self.head = nn.Sequential(norm, nn.Linear(features, config.embedding_size))

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim"]:
        if images.shape[1] != self.config.in_channels:
            raise ValueError(f"images have {images.shape[1]} channels but the model {self.config.in_channels}")
        embeddings = self.head(self.pooling(self.backbone(images))).float()
        return normalize(embeddings, dim=1) if self.config.normalize else embeddings


def build_model(config: ModelConfig) -> EmbeddingModel:
    """Build the network that a configuration describes, with its initial or pretrained weights.

    Raises:
        ValueError: for an unknown backbone, or a weights file that does not fit.
        UserError: where pretrained weights cannot be had.
        ImportError: for a timm backbone without timm.

    >>> build_model(ModelConfig(backbone="resnet18", pooling="avg+max")).backbone.num_features
    512
    """
    if config.backbone == "convnet":
        backbone = ConvNet(config.in_channels, config.width)
        if config.weights is not None:
            _load_convnet(backbone, Path(config.weights).expanduser())
    else:
        backbone = timm_backbone(
            config.backbone,
            pretrained=config.pretrained,
            in_channels=config.in_channels,
            weights=config.weights,
        )
    return EmbeddingModel(config, backbone)


def _load_convnet(backbone: ConvNet, file: Path) -> None:
    try:
        backbone.load_state_dict(load_file(file))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"weights in {file} do not fit 'convnet': {' '.join(str(error).split())[:200]}") from error
