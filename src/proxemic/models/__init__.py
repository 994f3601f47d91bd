"""Embedding networks: a backbone, pooling and a head, and how they are saved.

`build_model` makes the `EmbeddingModel` that a `ModelConfig` describes; `save_model` and `load_model` write and read it
as safetensors and JSON.
"""

from proxemic.models.backbones import ConvNet
from proxemic.models.bn_inception import BNInception, bn_inception_backbone
from proxemic.models.config import ModelConfig
from proxemic.models.embedding import EmbeddingModel, build_model, check_backbone
from proxemic.models.heads import begin_at_principal_components, principal_components
from proxemic.models.iresnet import IResNet, iresnet_backbone
from proxemic.models.lora import LoRA
from proxemic.models.onnx_backbone import OnnxBackbone
from proxemic.models.places import is_mean_over_places, place_embeddings
from proxemic.models.pooling import AvgMaxPool, AvgPool, GeM, MaxPool
from proxemic.models.saving import is_model, load_model, read_checksum, save_model, takes_vectors
from proxemic.models.timm_models import TimmBackbone, timm_backbone
from proxemic.models.transformers_models import TransformersBackbone

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
