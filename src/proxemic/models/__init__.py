"""Embedding networks, made of a backbone, pooling and a head, and their files.

`build_model` makes the `EmbeddingModel` that a `ModelConfig` describes; `save_model` and `load_model` write and read it
as safetensors and JSON.
"""

from typing import TYPE_CHECKING

from proxemic.lazy import lazy_names

if TYPE_CHECKING:
    from proxemic.models.backbones.bn_inception import BNInception, bn_inception_backbone
    from proxemic.models.backbones.convnet import ConvNet
    from proxemic.models.backbones.iresnet import IResNet, iresnet_backbone
    from proxemic.models.backbones.onnx_backbone import OnnxBackbone
    from proxemic.models.backbones.timm_models import TimmBackbone, timm_backbone
    from proxemic.models.backbones.transformers_models import TransformersBackbone
    from proxemic.models.config import ModelConfig
    from proxemic.models.description import is_model, read_checksum, takes_vectors
    from proxemic.models.heads import (
        AvgMaxPool,
        AvgPool,
        GeM,
        MaxPool,
        begin_at_principal_components,
        principal_components,
    )
    from proxemic.models.lora import LoRA
    from proxemic.models.model import EmbeddingModel, build_model, check_backbone
    from proxemic.models.places import is_mean_over_places, place_embeddings
    from proxemic.models.saving import load_model, save_model

__all__ = [
    "AvgMaxPool",
    "AvgPool",
    "BNInception",
    "ConvNet",
    "EmbeddingModel",
    "GeM",
    "IResNet",
    "LoRA",
    "MaxPool",
    "ModelConfig",
    "OnnxBackbone",
    "TimmBackbone",
    "TransformersBackbone",
    "begin_at_principal_components",
    "bn_inception_backbone",
    "build_model",
    "check_backbone",
    "iresnet_backbone",
    "is_mean_over_places",
    "is_model",
    "load_model",
    "place_embeddings",
    "principal_components",
    "read_checksum",
    "save_model",
    "takes_vectors",
    "timm_backbone",
]

__getattr__, __dir__ = lazy_names(__name__)
