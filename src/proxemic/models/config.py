"""What an embedding network is made from, as plain data."""

from dataclasses import dataclass
from typing import Literal, get_args

from proxemic.models.iresnet import IRESNETS

Pooling = Literal["avg", "max", "avg+max", "gem"]
Head = Literal["linear", "linear+layer_norm", "none"]

LARGEST_EMBEDDING, LARGEST_WIDTH = 2**20, 2**12  # what is beyond is a mistake, or meant to fill the memory


@dataclass(frozen=True)
class ModelConfig:
    """All that `build_model` needs to know.

    Args:
        backbone: `convnet`, the small network for images of 28 to 64 pixels; `bn_inception`; `iresnet18`, 34, 50, 100
            or 200 for faces of 112 pixels, which goes with head `none` and 512 dimensions; or the name of a timm model.
        embedding_size: dimensions of the embedding, 1 to 1,048,576.
        pooling: of the backbone's feature map; `avg` for an IResNet, which leaves one place.
        layer_norm: normalise the pooled features, without trained weights, before the last layer.
        normalize: scale embeddings to unit length.
        in_channels: of the images: 1 (grey) or 3 (colour).
        pretrained: start from timm's pretrained weights, or BN-Inception's published ones.
        weights: start from this `.safetensors` file of backbone weights instead; for `convnet`, `bn_inception` and
            IResNet also `.pth`, `.pt` and `.pth.tar`. Of a file that `save_model` wrote, a run's `model.safetensors`,
            pooling and head are taken as well where they have the same shapes.
        width: channels of the first stage of `convnet`, 1 to 4,096; other backbones ignore it.
        head: after pooling: a `linear` layer; one followed by a layer norm without trained weights; or `none`, where
            embedding_size must be the backbone's number of features.
        freeze_batch_norm: keep the statistics and weights of the backbone's batch norm as they are, also in training.

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
    head: Head = "linear"
    freeze_batch_norm: bool = False

    def __post_init__(self) -> None:
        for name, largest in (("embedding_size", LARGEST_EMBEDDING), ("width", LARGEST_WIDTH)):
            size = getattr(self, name)
            if type(size) is not int or not 1 <= size <= largest:
                raise ValueError(f"{name} is {size!r} but must be a whole number, at least 1 and at most {largest:,}")
        for name in ("layer_norm", "normalize", "pretrained", "freeze_batch_norm"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name} is {getattr(self, name)!r} but must be true or false")
        if self.pooling not in get_args(Pooling):
            raise ValueError(f"pooling is {self.pooling!r} but must be one of {', '.join(get_args(Pooling))}")
        if self.head not in get_args(Head):
            raise ValueError(f"head is {self.head!r} but must be one of {', '.join(get_args(Head))}")
        if self.in_channels not in (1, 3):
            raise ValueError(f"in_channels is {self.in_channels} but must be 1 (grey) or 3 (colour)")
        if self.pretrained and self.weights is not None:
            raise ValueError("pretrained and weights are both set; choose one of them")
        if self.pretrained and self.backbone == "convnet":
            raise ValueError(
                "pretrained is set but 'convnet' has no pretrained weights; choose bn_inception or a timm backbone"
            )
        if self.backbone in IRESNETS and self.pretrained:
            raise ValueError(
                f"pretrained is set but weights of {self.backbone!r} have no address to fetch them from; take them "
                "from insightface's model zoo and give the file as weights"
            )
        if self.backbone in IRESNETS and self.pooling != "avg":
            raise ValueError(
                f"pooling is {self.pooling!r} but {self.backbone!r} pools by a layer of its own; take avg, which "
                "leaves its output as it is"
            )
