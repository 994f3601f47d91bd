"""Proxy-Anchor: proxies are anchors that pull and push the samples of the batch."""

from functools import partial
from typing import Unpack

from torch import Tensor

from proxemic.losses.checks import check_finite, check_positive, is_number
from proxemic.losses.margins import Margin, target_margin
from proxemic.losses.objectives import anchor_negative, anchor_positive
from proxemic.losses.options import ProxyOptions
from proxemic.losses.proxy_loss import ProxyLoss
from proxemic.losses.scores import Scoring, SoftmaxPooling


class ProxyAnchorLoss(ProxyLoss):
    """Pull of the classes in the batch and push of all classes, equation 4 of Proxy-Anchor.

    The sum of

    ``(1/|C⁺|) Σ_{c∈C⁺} log(1 + Σ_{i: y_i=c} e^{−α(S_c(x_i)−δ)})`` and
    ``(1/C) Σ_c log(1 + Σ_{i: y_i≠c} e^{α(S_c(x_i)+δ)})``.

    Kim et al., Proxy Anchor Loss, CVPR 2020; with K > 1 proxies and a `CenterRegularizer` it is MPA.

    Its sums run over the batch, so that gradients of parts of a batch do not add up to that of the whole batch; see
    `proxemic.training.gradient_cache.embed_in_micro_batches`.

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
        reduction = partial(anchor_negative, shift=shift, num_classes=num_classes)
        super().__init__(num_classes, embedding_size, scoring=Scoring(alpha, class_reduction=reduction), **options)
        self._set_margin(margin, check_finite, "_margin")

    @property
    def margin(self) -> float | Tensor:
        """δ, read-only: the reduction of the negatives holds it too."""
        return self._margin

    def class_bias(self) -> Tensor | None:
        return self.scoring.scale * self.margin if isinstance(self.margin, Tensor) else None

    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        pull = anchor_positive(
            -self.scoring.scale * (positive - target_margin(self.margin, labels)), labels, self.num_classes
        )
        return pull + negative
