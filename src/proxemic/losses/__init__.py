"""Proxy losses: modules ``loss(embeddings, labels) -> scalar`` that own the proxies of the classes.

To write your own loss, derive from `ProxyLoss` (or from `MarginSoftmax`, for a margin on the cosine): pass a `Scoring`
with a similarity, a pooling and a scale, and implement `ProxyLoss.objective`, usually with one of the objectives and
margins here. `proxemic.losses.scores` computes the scores of every loss in chunks.
"""

from proxemic.losses.adaptive_margins import AdaFaceLoss, CurricularFaceLoss, ElasticFaceLoss
from proxemic.losses.class_weights import class_balanced_weights
from proxemic.losses.conversion import from_pytorch_metric_learning
from proxemic.losses.hist import HISTLoss
from proxemic.losses.margin_softmax import ArcFaceLoss, CosFaceLoss, MagFaceLoss, MarginSoftmax, SphereFaceLoss
from proxemic.losses.margins import (
    DynamicMargin,
    MarginRule,
    angular_margin,
    multiplied_angle,
    shifted_angle,
    wider_angle,
)
from proxemic.losses.matryoshka import MatryoshkaLoss
from proxemic.losses.objectives import AnchorNegative, all_pair_objective, anchor_positive, softmax_objective
from proxemic.losses.options import ProxyOptions
from proxemic.losses.pairwise import PairwiseLoss
from proxemic.losses.proxy_anchor import (
    AllPairMultiProxyAnchorLoss,
    DataWiseMultiProxyAnchorLoss,
    MultiProxyAnchorLoss,
    ProxyAnchorLoss,
)
from proxemic.losses.proxy_loss import ProxyLoss
from proxemic.losses.scores import (
    CenterRegularizer,
    Cosine,
    Euclidean,
    InnerProduct,
    MaxPooling,
    MeanPooling,
    MeanProxyNorm,
    Pooling,
    Regularizer,
    SamplingWeights,
    Scoring,
    Similarity,
    SoftmaxPooling,
)
from proxemic.losses.softmax import NormalizedSoftmaxLoss, ProxyNCALoss, ProxyNCAPlusPlusLoss, SoftTripleLoss
from proxemic.losses.warped_softmax import EuclideanSoftmaxLoss, Power, WarpedSoftmaxLoss

__all__ = [
    "AdaFaceLoss",
    "AllPairMultiProxyAnchorLoss",
    "AnchorNegative",
    "ArcFaceLoss",
    "CenterRegularizer",
    "CosFaceLoss",
    "Cosine",
    "CurricularFaceLoss",
    "DataWiseMultiProxyAnchorLoss",
    "DynamicMargin",
    "ElasticFaceLoss",
    "Euclidean",
    "EuclideanSoftmaxLoss",
    "HISTLoss",
    "InnerProduct",
    "MagFaceLoss",
    "MarginRule",
    "MarginSoftmax",
    "MatryoshkaLoss",
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
    "ProxyOptions",
    "Regularizer",
    "SamplingWeights",
    "Scoring",
    "Similarity",
    "SoftTripleLoss",
    "SoftmaxPooling",
    "SphereFaceLoss",
    "WarpedSoftmaxLoss",
    "all_pair_objective",
    "anchor_positive",
    "angular_margin",
    "class_balanced_weights",
    "from_pytorch_metric_learning",
    "multiplied_angle",
    "shifted_angle",
    "softmax_objective",
    "wider_angle",
]
