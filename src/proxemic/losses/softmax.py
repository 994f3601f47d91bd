"""Softmax cross-entropy of cosine similarities."""

from typing import Unpack

from torch import Tensor

from proxemic.losses.checks import check_positive
from proxemic.losses.objectives import softmax_objective
from proxemic.losses.options import ProxyOptions
from proxemic.losses.proxy_loss import ProxyLoss
from proxemic.losses.scores.pooling import SoftmaxPooling
from proxemic.losses.scores.scoring import Scoring


class NormalizedSoftmaxLoss(ProxyLoss):
    """``mean_i softplus(N_i(σ) − σ P_i)``: cross-entropy of σ times the cosine to each class's proxy.

    With ``regularizers=(MeanProxyNorm(weight),)`` it is the loss of the mean-proxy paper (section 3, where σ = 1).

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        scale: σ > 0, the inverse of the temperature.
        **options: The keywords of every proxy loss, see `ProxyOptions`.

    Raises:
        ValueError: If an argument is out of range.

    >>> loss = NormalizedSoftmaxLoss(3, 2, scale=1.0, init=lambda w: w.copy_(torch.eye(3, 2).unsqueeze(1)))
    >>> loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item()  # log(1 + 2/e)
    0.5514...
    """

    defaults = ProxyOptions(pooling=SoftmaxPooling())

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        scale: float = 20.0,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, scoring=Scoring(check_positive("scale", scale)), **options)

    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return softmax_objective(self.scoring.scale * positive, negative)
