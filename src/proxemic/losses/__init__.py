"""Proxy losses: modules ``loss(embeddings, labels) -> scalar`` that own the proxies of the classes."""

from proxemic.losses.multi_proxy_anchor import AllPairMultiProxyAnchorLoss
from proxemic.losses.proxy_anchor import ProxyAnchorLoss
from proxemic.losses.proxy_loss import ProxyLoss
from proxemic.losses.regularizers import CenterRegularizer, MeanProxyNorm
from proxemic.losses.softmax import NormalizedSoftmaxLoss
from proxemic.losses.warped_softmax import EuclideanSoftmaxLoss, WarpedSoftmaxLoss

__all__ = [
    "AllPairMultiProxyAnchorLoss",
    "CenterRegularizer",
    "EuclideanSoftmaxLoss",
    "MeanProxyNorm",
    "NormalizedSoftmaxLoss",
    "ProxyAnchorLoss",
    "ProxyLoss",
    "WarpedSoftmaxLoss",
]
