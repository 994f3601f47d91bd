"""The multi-proxy anchor family (Saeki et al.): several proxies a class, Proxy-Anchor-like gradients."""

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from proxemic.losses.checks import check_finite, check_modules, check_positive
from proxemic.losses.initialization import kaiming_normal
from proxemic.losses.margins import Margin, common_margin, own_margin
from proxemic.losses.objectives import all_pair_objective
from proxemic.losses.proxy_anchor import ProxyAnchorLoss
from proxemic.losses.proxy_loss import ProxyLoss
from proxemic.losses.scores.pooling import Pooling, SoftmaxPooling
from proxemic.losses.scores.regularizers import CenterRegularizer
from proxemic.losses.scores.scoring import Scoring

__all__ = ["AllPairMultiProxyAnchorLoss", "DataWiseMultiProxyAnchorLoss", "MultiProxyAnchorLoss"]


class MultiProxyAnchorLoss(ProxyAnchorLoss):
    """MPA: Proxy-Anchor of softmax-pooled class scores, plus τR (MPA paper, equations 6 and 7).

    The sum of ``(1/|C⁺|) Σ_{c∈C⁺} log(1 + Σ_{i: y_i=c} e^{−α(S_c(x_i)−δ)})``, of
    ``(1/C) Σ_c log(1 + Σ_{i: y_i≠c} e^{α(S_c(x_i)+δ)})``, and of the `CenterRegularizer`. The paper does not state α;
    32 is Proxy-Anchor's.

    Its sums run over the batch, so that gradients of parts of a batch do not add up to that of the whole:
    `proxemic.training.gradient_cache.embed_in_micro_batches` makes that of the whole.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        proxies_per_class: K ≥ 1, best below the number of images a class.
        alpha: α > 0, the sharpness.
        margin: δ, in units of the cosine: one number, ``[C]`` of the classes, or a `MarginRule`.
        gamma: γ > 0, the softness of the pooling over proxies.
        center_weight: τ ≥ 0, the weight of the `CenterRegularizer` R, which lets surplus proxies merge.
        pooling: In place of the softmax pooling with γ.
        regularizers: Further terms on the proxies to add.
        chunk_size: Classes whose scores are held at once; ``None`` chooses.
        sample_rate: Share of the classes not in the batch that a step looks at, in (0, 1]; see `ProxyLoss`.
        init: Fills the proxies ``[C, K, D]`` in place.

    Raises:
        ValueError: If an argument is out of range.

    >>> loss = MultiProxyAnchorLoss(
    ...     2, 2, proxies_per_class=1, alpha=1.0, margin=0.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1))
    ... )
    >>> loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item()  # log(1 + 1/e) + log(2)/2
    0.6598...
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        proxies_per_class: int = 10,
        alpha: float = 32.0,
        margin: Margin = 0.1,
        gamma: float = 0.1,
        center_weight: float = 0.2,
        pooling: Pooling | None = None,
        regularizers: Sequence[nn.Module] = (),
        chunk_size: int | None = None,
        sample_rate: float = 1.0,
        init: Callable[[Tensor], object] = kaiming_normal,
    ) -> None:
        super().__init__(
            num_classes,
            embedding_size,
            alpha=alpha,
            margin=margin,
            proxies_per_class=proxies_per_class,
            pooling=SoftmaxPooling(gamma) if pooling is None else pooling,
            regularizers=(CenterRegularizer(center_weight), *check_modules("regularizers", regularizers)),
            chunk_size=chunk_size,
            sample_rate=sample_rate,
            init=init,
        )


class DataWiseMultiProxyAnchorLoss(ProxyLoss):
    """MPA-DW: ``mean_i [log(1 + e^{−α(P_i−δ)}) + log(1 + Σ_{c≠y_i} e^{α(S_c(x_i)+δ)})] + τR``.

    MPA paper, equations 12 and 13, which do not state α; 32 is Proxy-Anchor's.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        proxies_per_class: K ≥ 1, best below the number of images a class.
        alpha: α > 0, the sharpness.
        margin: δ, in units of the cosine: one number, ``[C]`` of the classes, or a `MarginRule`.
        gamma: γ > 0, the softness of the pooling over proxies.
        center_weight: τ ≥ 0, the weight of the `CenterRegularizer` R, which lets surplus proxies merge.
        pooling: In place of the softmax pooling with γ.
        regularizers: Further terms on the proxies to add.
        chunk_size: Classes whose scores are held at once; ``None`` chooses.
        sample_rate: Share of the classes not in the batch that a step looks at, in (0, 1]; see `ProxyLoss`.
        init: Fills the proxies ``[C, K, D]`` in place.

    Raises:
        ValueError: If an argument is out of range.

    >>> loss = DataWiseMultiProxyAnchorLoss(
    ...     2, 2, proxies_per_class=1, alpha=1.0, margin=0.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1))
    ... )
    >>> loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item()  # log(1 + 1/e) + log(2)
    1.0064...
    """

    margin: float | Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        proxies_per_class: int = 10,
        alpha: float = 32.0,
        margin: Margin = 0.1,
        gamma: float = 0.1,
        center_weight: float = 0.2,
        pooling: Pooling | None = None,
        regularizers: Sequence[nn.Module] = (),
        chunk_size: int | None = None,
        sample_rate: float = 1.0,
        init: Callable[[Tensor], object] = kaiming_normal,
    ) -> None:
        super().__init__(
            num_classes,
            embedding_size,
            scoring=Scoring(
                check_positive("alpha", alpha), pooling=SoftmaxPooling(gamma) if pooling is None else pooling
            ),
            proxies_per_class=proxies_per_class,
            regularizers=(CenterRegularizer(center_weight), *check_modules("regularizers", regularizers)),
            chunk_size=chunk_size,
            sample_rate=sample_rate,
            init=init,
        )
        self._set_margin(margin, check_finite)

    def class_bias(self) -> Tensor | None:
        return self.scoring.scale * self.margin if isinstance(self.margin, Tensor) else None

    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        alpha = self.scoring.scale
        pull = F.softplus(-alpha * (positive - own_margin(self.margin, labels)))
        return pull + F.softplus(negative + alpha * common_margin(self.margin))


class AllPairMultiProxyAnchorLoss(ProxyLoss):
    """MPA-AP: ``mean_i log(1 + e^{α(δ−P_i)} + Σ_{c≠y_i} e^{α(S_c(x_i)+δ)}) + τR`` (MPA paper, equations 16 and 17).

    The paper does not state α; 32 is Proxy-Anchor's.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        proxies_per_class: K ≥ 1, best below the number of images a class.
        alpha: α > 0, the sharpness.
        margin: δ, in units of the cosine: one number, ``[C]`` of the classes, or a `MarginRule`.
        gamma: γ > 0, the softness of the pooling over proxies.
        center_weight: τ ≥ 0, the weight of the `CenterRegularizer` R, which lets surplus proxies merge.
        pooling: In place of the softmax pooling with γ.
        regularizers: Further terms on the proxies to add.
        chunk_size: Classes whose scores are held at once; ``None`` chooses.
        sample_rate: Share of the classes not in the batch that a step looks at, in (0, 1]; see `ProxyLoss`.
        init: Fills the proxies ``[C, K, D]`` in place.

    Raises:
        ValueError: If an argument is out of range.

    >>> loss = AllPairMultiProxyAnchorLoss(
    ...     2, 2, proxies_per_class=1, alpha=1.0, margin=0.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1))
    ... )
    >>> loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item()  # log(1 + 1/e + 1)
    0.8619...
    """

    margin: float | Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        proxies_per_class: int = 10,
        alpha: float = 32.0,
        margin: Margin = 0.1,
        gamma: float = 0.1,
        center_weight: float = 0.2,
        pooling: Pooling | None = None,
        regularizers: Sequence[nn.Module] = (),
        chunk_size: int | None = None,
        sample_rate: float = 1.0,
        init: Callable[[Tensor], object] = kaiming_normal,
    ) -> None:
        super().__init__(
            num_classes,
            embedding_size,
            scoring=Scoring(
                check_positive("alpha", alpha), pooling=SoftmaxPooling(gamma) if pooling is None else pooling
            ),
            proxies_per_class=proxies_per_class,
            regularizers=(CenterRegularizer(center_weight), *check_modules("regularizers", regularizers)),
            chunk_size=chunk_size,
            sample_rate=sample_rate,
            init=init,
        )
        self._set_margin(margin, check_finite)

    def class_bias(self) -> Tensor | None:
        return self.scoring.scale * self.margin if isinstance(self.margin, Tensor) else None

    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        alpha = self.scoring.scale
        pull = alpha * (own_margin(self.margin, labels) - positive)
        return all_pair_objective(pull, negative + alpha * common_margin(self.margin))
