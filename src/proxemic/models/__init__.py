"""Embedding networks: a backbone, pooling and a head, and how they are saved."""

from proxemic.models.backbones import ConvNet as ConvNet
from proxemic.models.bn_inception import BNInception as BNInception
from proxemic.models.bn_inception_weights import bn_inception_backbone as bn_inception_backbone
from proxemic.models.config import ModelConfig as ModelConfig
from proxemic.models.embedding import EmbeddingModel as EmbeddingModel
from proxemic.models.embedding import build_model as build_model
from proxemic.models.iresnet import IResNet as IResNet
from proxemic.models.iresnet import iresnet_backbone as iresnet_backbone
from proxemic.models.pooling import AvgMaxPool as AvgMaxPool
from proxemic.models.pooling import AvgPool as AvgPool
from proxemic.models.pooling import GeM as GeM
from proxemic.models.pooling import MaxPool as MaxPool
from proxemic.models.saving import is_model as is_model
from proxemic.models.saving import load_model as load_model
from proxemic.models.saving import save_model as save_model
from proxemic.models.timm_models import TimmBackbone as TimmBackbone
from proxemic.models.timm_models import timm_backbone as timm_backbone
