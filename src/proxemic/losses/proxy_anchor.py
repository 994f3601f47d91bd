"""Proxy-Anchor, whose anchors are proxies, and its extensions to several proxies per class (MPA; Saeki et al.)."""

import math
from typing import Unpack

import torch.nn.functional as F
from torch import Tensor

from proxemic.losses.checks import check_finite, check_positive, is_number
from proxemic.losses.margins import Margin, target_margin
from proxemic.losses.objectives import AnchorNegative, all_pair_objective, anchor_positive
from proxemic.losses.options import ProxyOptions
from proxemic.losses.proxy_loss import ProxyLoss
from proxemic.losses.scores import CenterRegularizer, Scoring, SoftmaxPooling


class ProxyAnchorLoss(ProxyLoss):
    """Sum of a pull by the classes in the batch (C⁺) and a push by all classes.

    ``(1/|C⁺|) Σ_{c∈C⁺} log(1 + Σ_{i: y_i=c} e^{−α(S_c(x_i)−δ)})``
    ``+ (1/C) Σ_c log(1 + Σ_{i: y_i≠c} e^{α(S_c(x_i)+δ)})``

    Kim et al., Proxy Anchor Loss, CVPR 2020, equation 4; with K > 1 proxies and a `CenterRegularizer` it is MPA.

    The sums are over the batch, so gradients of parts of a batch do not add up to the gradient of the whole batch; see
    `proxemic.training.gradient_cache.InMicroBatches`.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        alpha: α > 0, the sharpness.
        margin: δ, in units of the cosine: one number, ``[C]`` of the classes, or a `MarginRule`.
        **options: The keywords of every proxy loss, see `ProxyOptions`.

    >>> loss = ProxyAnchorLoss(2, 2, alpha=1.0, margin=0.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1)))
    >>> loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item()  # log(1 + 1/e) + log(2)/2
    0.6598...
    """

    defaults = ProxyOptions(pooling=SoftmaxPooling())
    _margin: float | Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        alpha: float = 32.0,
        margin: Margin = 0.1,
        **options: Unpack[ProxyOptions],
    ) -> None:
        alpha, shift = check_positive("alpha", alpha), alpha * margin if is_number(margin) else 0.0
        reduction = AnchorNegative(shift, num_classes)
        super().__init__(num_classes, embedding_size, scoring=Scoring(alpha, class_reduction=reduction), **options)
        self._set_margin(margin, check_finite, "_margin")

    @property
    def margin(self) -> float | Tensor:
        """δ, read-only: the reduction of the negatives holds it too."""
        return self._margin

    def class_bias(self) -> Tensor | None:
        return self.scoring.scale * self.margin if isinstance(self.margin, Tensor) else None

    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        scale, margin = self.scoring.scale, self.margin
        exponents = -scale * (positive - target_margin(margin, labels))
        # A score is a cosine, or a mean of cosines.
        bound = math.inf if isinstance(margin, Tensor) else scale * (1 + abs(margin))
        return anchor_positive(exponents, labels, self.num_classes, bound) + negative


class MultiProxyAnchorLoss(ProxyAnchorLoss):
    """MPA: Proxy-Anchor with softmax-pooled class scores, plus τR (MPA paper, equations 6 and 7).

    ``(1/|C⁺|) Σ_{c∈C⁺} log(1 + Σ_{i: y_i=c} e^{−α(S_c(x_i)−δ)})``
    ``+ (1/C) Σ_c log(1 + Σ_{i: y_i≠c} e^{α(S_c(x_i)+δ)}) + τR``

    The paper does not state α; 32 is Proxy-Anchor's. As with `ProxyAnchorLoss`, gradients of parts of a batch do not
    add up to the gradient of the whole batch.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        alpha: α > 0, the sharpness.
        margin: δ, in units of the cosine: one number, ``[C]`` of the classes, or a `MarginRule`.
        gamma: γ > 0, the softness of the pooling over proxies.
        center_weight: τ ≥ 0, the weight of the `CenterRegularizer` R, which lets surplus proxies merge.
        **options: The keywords of every proxy loss, see `ProxyOptions`; a ``pooling`` replaces the one with γ.

    >>> loss = MultiProxyAnchorLoss(
    ...     2, 2, proxies_per_class=1, alpha=1.0, margin=0.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1))
    ... )
    >>> loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item()  # log(1 + 1/e) + log(2)/2
    0.6598...
    """

    defaults = ProxyOptions(proxies_per_class=10, pooling=None)

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        alpha: float = 32.0,
        margin: Margin = 0.1,
        gamma: float = 0.1,
        center_weight: float = 0.2,
        **options: Unpack[ProxyOptions],
    ) -> None:
        options["pooling"] = options.get("pooling") or SoftmaxPooling(gamma)
        super().__init__(num_classes, embedding_size, alpha=alpha, margin=margin, **options)
        self.regularizers.insert(0, CenterRegularizer(center_weight))


class DataWiseMultiProxyAnchorLoss(ProxyLoss):
    """MPA-DW: ``mean_i [log(1 + e^{−α(P_i−δ)}) + log(1 + Σ_{c≠y_i} e^{α(S_c(x_i)+δ)})] + τR``.

    MPA paper, equations 12 and 13. As in `MultiProxyAnchorLoss`, the default α is Proxy-Anchor's.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        alpha: α > 0, the sharpness.
        margin: δ, in units of the cosine: one number, ``[C]`` of the classes, or a `MarginRule`.
        gamma: γ > 0, the softness of the pooling over proxies.
        center_weight: τ ≥ 0, the weight of the `CenterRegularizer` R, which lets surplus proxies merge.
        **options: The keywords of every proxy loss, see `ProxyOptions`; a ``pooling`` replaces the one with γ.

    >>> loss = DataWiseMultiProxyAnchorLoss(
    ...     2, 2, proxies_per_class=1, alpha=1.0, margin=0.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1))
    ... )
    >>> loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item()  # log(1 + 1/e) + log(2)
    1.0064...
    """

    defaults = ProxyOptions(proxies_per_class=10)
    margin: float | Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        alpha: float = 32.0,
        margin: Margin = 0.1,
        gamma: float = 0.1,
        center_weight: float = 0.2,
        **options: Unpack[ProxyOptions],
    ) -> None:
        scoring = Scoring(check_positive("alpha", alpha), pooling=SoftmaxPooling(gamma))
        super().__init__(num_classes, embedding_size, scoring=scoring, **options)
        self.regularizers.insert(0, CenterRegularizer(center_weight))
        self._set_margin(margin, check_finite)

    def class_bias(self) -> Tensor | None:
        return self.scoring.scale * self.margin if isinstance(self.margin, Tensor) else None

    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        pull, push = self._exponents(positive, negative, labels)
        return F.softplus(pull) + F.softplus(push)

    def _exponents(self, positive: Tensor, negative: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Compute ``α(δ − P_i)`` and ``LSE_c α(S_c(x_i) + δ)``; `class_bias` has added margins per class already."""
        alpha, margin = self.scoring.scale, self.margin
        push = negative if isinstance(margin, Tensor) else negative + alpha * margin
        return alpha * (target_margin(margin, labels) - positive), push


class AllPairMultiProxyAnchorLoss(DataWiseMultiProxyAnchorLoss):
    """MPA-AP: ``mean_i log(1 + e^{α(δ−P_i)} + Σ_{c≠y_i} e^{α(S_c(x_i)+δ)}) + τR`` (MPA paper, equations 16 and 17).

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        alpha: α > 0, the sharpness.
        margin: δ, in units of the cosine: one number, ``[C]`` of the classes, or a `MarginRule`.
        gamma: γ > 0, the softness of the pooling over proxies.
        center_weight: τ ≥ 0, the weight of the `CenterRegularizer` R, which lets surplus proxies merge.
        **options: The keywords of every proxy loss, see `ProxyOptions`; a ``pooling`` replaces the one with γ.

    >>> loss = AllPairMultiProxyAnchorLoss(
    ...     2, 2, proxies_per_class=1, alpha=1.0, margin=0.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1))
    ... )
    >>> loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item()  # log(1 + 1/e + 1)
    0.8619...
    """

    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return all_pair_objective(*self._exponents(positive, negative, labels))
