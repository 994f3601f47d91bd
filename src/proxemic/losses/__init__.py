"""Proxy losses: modules ``loss(embeddings, labels) -> scalar`` that own the proxies of the classes."""

from proxemic.losses.adaface import AdaFaceLoss
from proxemic.losses.class_weights import class_balanced_weights
from proxemic.losses.conversion import from_pytorch_metric_learning
from proxemic.losses.curricularface import CurricularFaceLoss
from proxemic.losses.elasticface import ElasticFaceLoss
from proxemic.losses.hist import HISTLoss
from proxemic.losses.margin_softmax import ArcFaceLoss, CosFaceLoss, MagFaceLoss, SphereFaceLoss
from proxemic.losses.margins import DynamicMargin, MarginRule
from proxemic.losses.multi_proxy_anchor import (
    AllPairMultiProxyAnchorLoss,
    DataWiseMultiProxyAnchorLoss,
    MultiProxyAnchorLoss,
)
from proxemic.losses.pairwise import PairwiseLoss
from proxemic.losses.proxy_anchor import ProxyAnchorLoss
from proxemic.losses.proxy_loss import ProxyLoss
from proxemic.losses.proxy_nca import ProxyNCALoss, ProxyNCAPlusPlusLoss
from proxemic.losses.scores.pooling import MaxPooling, MeanPooling, Pooling, SoftmaxPooling
from proxemic.losses.scores.regularizers import CenterRegularizer, MeanProxyNorm
from proxemic.losses.soft_triple import SoftTripleLoss
from proxemic.losses.softmax import NormalizedSoftmaxLoss
from proxemic.losses.warped_softmax import EuclideanSoftmaxLoss, Power, WarpedSoftmaxLoss

__all__ = [
    "AdaFaceLoss",
    "AllPairMultiProxyAnchorLoss",
    "ArcFaceLoss",
    "CenterRegularizer",
    "CosFaceLoss",
    "CurricularFaceLoss",
    "DataWiseMultiProxyAnchorLoss",
    "DynamicMargin",
    "ElasticFaceLoss",
    "EuclideanSoftmaxLoss",
    "HISTLoss",
    "MagFaceLoss",
    "MarginRule",
    "MaxPooling",
    "MeanPooling",
    "MeanProxyNorm",
    "MultiProxyAnchorLoss",
    "NormalizedSoftmaxLoss",
    "PairwiseLoss",
    "Pooling",
    "Power",
    "ProxyAnchorLoss",
    "ProxyLoss",
    "ProxyNCALoss",
    "ProxyNCAPlusPlusLoss",
    "SoftTripleLoss",
    "SoftmaxPooling",
    "SphereFaceLoss",
    "WarpedSoftmaxLoss",
    "class_balanced_weights",
    "from_pytorch_metric_learning",
]
