"""Softmax cross-entropy of cosine similarities."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from proxemic.losses.checks import check_positive
from proxemic.losses.initialization import kaiming_normal
from proxemic.losses.objectives import softmax_objective
from proxemic.losses.proxy_loss import ProxyLoss
from proxemic.losses.scores.pooling import Pooling, SoftmaxPooling
from proxemic.losses.scores.scoring import Scoring

__all__ = ["NormalizedSoftmaxLoss"]


class NormalizedSoftmaxLoss(ProxyLoss):
    """``mean_i softplus(N_i(σ) − σ P_i)``: cross-entropy of σ times the cosine to each class's proxy.

    With ``regularizers=(MeanProxyNorm(weight),)`` it is the loss of the mean-proxy paper (section 3, where σ = 1).

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        scale: σ > 0, the inverse of the temperature.
        proxies_per_class: K ≥ 1.
        pooling: From K similarities to a class score.
        regularizers: Terms on the proxies to add.
        chunk_size: Classes whose scores are held at once; ``None`` chooses.
        sample_rate: Share of the classes not in the batch that a step looks at, in (0, 1]; see `ProxyLoss`.
        init: Fills the proxies ``[C, K, D]`` in place.

    Raises:
        ValueError: If an argument is out of range.

    >>> loss = NormalizedSoftmaxLoss(3, 2, scale=1.0, init=lambda w: w.copy_(torch.eye(3, 2).unsqueeze(1)))
    >>> loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item()  # log(1 + 2/e)
    0.5514...
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        scale: float = 20.0,
        proxies_per_class: int = 1,
        pooling: Pooling = SoftmaxPooling(),
        regularizers: Sequence[nn.Module] = (),
        chunk_size: int | None = None,
        sample_rate: float = 1.0,
        init: Callable[[Tensor], object] = kaiming_normal,
    ) -> None:
        super().__init__(
            num_classes,
            embedding_size,
            scoring=Scoring(check_positive("scale", scale), pooling=pooling),
            proxies_per_class=proxies_per_class,
            regularizers=regularizers,
            chunk_size=chunk_size,
            sample_rate=sample_rate,
            init=init,
        )

    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return softmax_objective(self.scoring.scale * positive, negative)
