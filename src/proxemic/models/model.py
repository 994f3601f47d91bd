"""The embedding network: backbone, pooling, head."""

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.modules.batchnorm import _BatchNorm

from proxemic.addresses import TRANSFORMERS
from proxemic.models.backbones.bn_inception import BNInception, bn_inception_backbone
from proxemic.models.backbones.convnet import ConvNet, NoBackbone
from proxemic.models.backbones.custom_backbone import CustomBackbone
from proxemic.models.backbones.iresnet import IRESNETS, IResNet, iresnet_backbone
from proxemic.models.backbones.onnx_backbone import OnnxBackbone, read_onnx
from proxemic.models.backbones.timm_models import TimmBackbone, check_timm_name, timm_backbone
from proxemic.models.backbones.transformers_models import TransformersBackbone, transformers_backbone
from proxemic.models.config import SIZE, ModelConfig
from proxemic.models.description import ONNX
from proxemic.models.freezing import frozen_modules, recompute_activations, trained_names
from proxemic.models.heads import AvgMaxPool, AvgPool, GeM, MaxPool, make_head
from proxemic.models.lora import add_adapters
from proxemic.models.plain import plain_state, shapes_of
from proxemic.models.weights_files import holds_embedding_model, load_embedding_model, load_weights_file

POOLINGS = {
    "avg": AvgPool,
    "max": MaxPool,
    "avg+max": AvgMaxPool,
    "gem": GeM,
    "cubic-gem": partial(GeM, train_p=False),
    **dict.fromkeys(("pooler", "joint"), AvgPool),  # the backbone has pooled already: its map has one position
}
Backbone = (
    ConvNet | BNInception | IResNet | TimmBackbone | TransformersBackbone | OnnxBackbone | CustomBackbone | NoBackbone
)


class EmbeddingModel(nn.Module):
    """Embedding network: `head(pooling(backbone(images)))`, scaled to unit length if the configuration says so.

    With the backbone `none`, the inputs are vectors and the network is `head(vectors)`.

    Embeddings are float32, also under autocast. `pooling` and `head` are newly initialised; only `backbone` may have
    pretrained weights. Convolutional backbones use `torch.channels_last`, in which CPUs and GPUs convolve faster; your
    own classes keep their memory format.

    Args:
        config: Configuration of pooling and head; the settings of the backbone are only stored, for saving.
        backbone: A network that returns a feature map with `backbone.num_features` channels.

    Raises:
        ValueError: If there is no head and embedding_size is not the backbone's number of features; in `forward`, if
            the images have a wrong number of channels.

    >>> model = build_model(ModelConfig(in_channels=1, embedding_size=16))
    >>> model(torch.zeros(2, 1, 32, 32)).shape
    torch.Size([2, 16])
    """

    def __init__(self, config: ModelConfig, backbone: Backbone) -> None:
        super().__init__()
        self.config = config
        self.backbone = backbone
        self._channels_last = not isinstance(backbone, CustomBackbone) and _gains_by_channels_last(backbone)
        if self._channels_last:
            backbone.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.pooling = POOLINGS[config.pooling]()
        self.head = make_head(config, backbone.num_features)
        self.has_loaded_head = False  # whether `config.weights` has provided the head
        self._frozen: frozenset[str] = frozenset()  # names of the backbone's modules that stay in evaluation mode
        if config.train != "all":
            trained = trained_names(backbone, config.train, config.backbone_name)
            for name, parameter in backbone.named_parameters():
                if name not in trained:
                    parameter.requires_grad_(False)
            self._frozen |= frozen_modules(backbone, trained)
        if config.freeze_batch_norm:
            norms = {name: layer for name, layer in backbone.named_modules() if isinstance(layer, _BatchNorm)}
            for layer in norms.values():
                layer.requires_grad_(False)
            self._frozen |= norms.keys()
        if self._frozen:
            self.train()
        if config.gradient_checkpointing:
            recompute_activations(backbone, config.backbone_name)
        self.shapes = shapes_of(plain_state(self))  # the shapes that `load_model` expects in a file

    def train(self, mode: bool = True) -> "EmbeddingModel":
        """Set the mode of all parts, except for the frozen modules of the backbone, which stay in evaluation mode."""
        super().train(mode)
        for name, layer in self.backbone.named_modules():
            if name in self._frozen:
                layer.training = False
        return self

    def features(
        self, images: Float[Tensor, "batch channels height width"] | Float[Tensor, "batch features"]
    ) -> Float[Tensor, "batch features"]:
        """Compute the pooled features, which the head turns into embeddings; `[B, F]` is returned unchanged."""
        if images.ndim == 2:
            return images
        if self.config.takes_vectors:
            raise ValueError(f"images have shape {list(images.shape)} but the model takes vectors [batch, features]")
        if images.shape[1] != self.config.in_channels:
            raise ValueError(f"images have {images.shape[1]} channels but the model takes {self.config.in_channels}")
        if self._channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return self.pooling(self.backbone(images))

    def embed_features(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch dim"]:
        """Compute the embeddings of pooled features, or of vectors."""
        if features.shape[1] != self.backbone.num_features:
            raise ValueError(
                f"features have {features.shape[1]} dimensions but the head takes {self.backbone.num_features}"
            )
        # Without autocast, which would round embeddings to three digits; the head costs little.
        dtype = next((weight.dtype for weight in self.head.parameters()), torch.float32)
        with torch.autocast(features.device.type, enabled=False):
            embeddings = self.head(features.to(dtype)).float()
        return normalize(embeddings, dim=1) if self.config.normalize else embeddings

    def forward(
        self, inputs: Float[Tensor, "batch channels height width"] | Float[Tensor, "batch features"]
    ) -> Float[Tensor, "batch dim"]:
        """Compute the embeddings of images, of vectors, or of pooled features."""
        return self.embed_features(self.features(inputs))


def _gains_by_channels_last(network: nn.Module) -> bool:
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    # Computing gradients of such convolutions on a CPU ends the process (torch 2.15).
    crash = any(
        convolution.kernel_size == (1, 1) and convolution.stride != (1, 1) and convolution.in_channels < 16
        for convolution in convolutions
    )
    # torch cannot convert networks that also have weights for volumes or videos.
    is_flat = all(value.ndim < 5 for value in network.state_dict().values())
    # A transformer's only convolution cuts the image into patches, which gains nothing.
    return len(convolutions) > 1 and is_flat and not crash


def check_backbone(name: str) -> None:
    """Raise `ValueError` if no backbone has this name, as `build_model` does, without building anything.

    >>> check_backbone("convnet")
    """
    if name not in ("none", "convnet", "bn_inception", *IRESNETS) and not name.startswith(TRANSFORMERS):
        check_timm_name(name)


def without_head(model: EmbeddingModel) -> EmbeddingModel:
    """Return a network whose embeddings are the pooled features of `model`; it shares backbone and pooling."""
    bare = copy.copy(model)
    bare._modules = {**model._modules, "head": nn.Sequential()}  # a new dictionary, as the copy shares the old one
    bare.shapes = {name: shape for name, shape in model.shapes.items() if not name.startswith("head.")}
    bare.config = replace(
        model.config,
        embedding_size=model.backbone.num_features,
        head="none",
        head_init=None,
        head_width=None,
        layer_norm=False,
        unit_features=False,
        train="all",
    )
    return bare


def build_model(config: ModelConfig) -> EmbeddingModel:
    """Build the network that a configuration describes, with its initial or pretrained weights.

    Args:
        config: The configuration.

    Raises:
        ValueError: If the backbone is unknown, a weights file does not fit, or embedding_size requires a head.
        UserError: If pretrained weights are not available.
        ImportError: If timm, transformers, onnxruntime or peft is needed but not installed.

    >>> build_model(ModelConfig(backbone="resnet18", pooling="avg+max")).backbone.num_features
    512
    """
    if config.lora is not None:
        model = build_model(replace(config, lora=None, freeze_batch_norm=True))
        images = (config.in_channels, config.image_size or SIZE)
        add_adapters(model.backbone, config.lora, config.backbone_name, images)
        model.config = config
        return model
    file = None if config.weights is None else Path(config.weights).expanduser()
    if file is not None and holds_embedding_model(file):
        model = build_model(replace(config, weights=None))
        model.has_loaded_head = load_embedding_model(model, file, config.backbone_name)
        model.config = config
        return model
    if config.takes_vectors:
        if config.input_size is None:
            raise ValueError("backbone is 'none' but input_size is None; give the size of the vectors")
        if file is not None:
            raise ValueError(f"weights are {file} but backbone is 'none'; give a model's file that save_model wrote")
        backbone = NoBackbone(config.input_size)
    elif config.custom_backbone is not None:
        backbone = CustomBackbone.build(config, config.custom_backbone)
    elif config.backbone == "convnet":
        backbone = ConvNet(config.in_channels, config.width)
        if file is not None:
            load_weights_file(backbone, file, "convnet")
    elif config.backbone == "bn_inception":
        backbone = bn_inception_backbone(
            pretrained=config.pretrained, in_channels=config.in_channels, weights=config.weights
        )
    elif config.backbone_name in IRESNETS:
        backbone = iresnet_backbone(config.backbone_name, in_channels=config.in_channels, weights=config.weights)
    elif config.backbone_name.endswith(ONNX):
        backbone = OnnxBackbone(read_onnx(Path(config.backbone_name).expanduser()), config)
    elif config.backbone_name.startswith(TRANSFORMERS):
        backbone = transformers_backbone(config)
    else:
        backbone = timm_backbone(
            config.backbone_name,
            pretrained=config.pretrained,
            in_channels=config.in_channels,
            weights=config.weights,
            image_size=config.image_size,
            arguments=config.backbone_args,
        )
    return EmbeddingModel(config, backbone)
