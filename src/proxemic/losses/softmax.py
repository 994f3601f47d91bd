"""Softmax cross-entropy of cosines without a margin: the normalised softmax, ProxyNCA and ProxyNCA++."""

from typing import Unpack

from torch import Tensor

from proxemic.losses.checks import check_positive
from proxemic.losses.initialization import eighth_normal
from proxemic.losses.objectives import softmax_objective
from proxemic.losses.options import ProxyOptions
from proxemic.losses.proxy_loss import ProxyLoss
from proxemic.losses.scores import Scoring, SoftmaxPooling


class NormalizedSoftmaxLoss(ProxyLoss):
    """``mean_i softplus(N_i(σ) − σ P_i)``: cross-entropy of σ times the cosine to each class's proxy.

    With ``regularizers=(MeanProxyNorm(weight),)`` it is the loss of the mean-proxy paper (section 3, where σ = 1).

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        scale: σ > 0, the inverse of the temperature.
        **options: The keywords of every proxy loss, see `ProxyOptions`.

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


class ProxyNCALoss(ProxyLoss):
    """``mean_i −log(e^{−σ‖x̂_i−ŵ_{y_i}‖²} / Σ_{c≠y_i} e^{−σ‖x̂_i−ŵ_c‖²})``: the target class is not in the denominator.

    Movshovitz-Attias et al., No Fuss Distance Metric Learning using Proxies, ICCV 2017, equation 6. It has no lower
    bound, and the pull towards the own proxy does not fade as it is reached. With ``‖x̂−ŵ‖² = 2 − 2cos`` it is
    ``mean_i N_i(2σ) − 2σP_i`` of cosines.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        scale: σ > 0; published with 1, while tuned values are 8 to 14.
        **options: The keywords of every proxy loss, see `ProxyOptions`.

    >>> loss = ProxyNCALoss(2, 2, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1)))
    >>> loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item()  # −log(e^0 / e^−2)
    -2.0
    """

    defaults = ProxyOptions(pooling=SoftmaxPooling(), init=eighth_normal)

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        scale: float = 1.0,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, scoring=Scoring(2 * check_positive("scale", scale)), **options)

    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return negative - self.scoring.scale * positive


class ProxyNCAPlusPlusLoss(ProxyLoss):
    """Softmax cross-entropy of ``−‖x̂ − ŵ_c‖² / T``, the own class included.

    Teh et al., ProxyNCA++, ECCV 2020, equation 9. With ``‖x̂−ŵ‖² = 2 − 2cos`` it is a normalised softmax of scale 2/T;
    the authors scale both sides by 3, which is T = 1/9.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        temperature: T > 0.
        **options: The keywords of every proxy loss, see `ProxyOptions`.

    >>> loss = ProxyNCAPlusPlusLoss(2, 2, temperature=1.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1)))
    >>> loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item()  # log(1 + e^−2)
    0.1269...
    """

    defaults = ProxyOptions(pooling=SoftmaxPooling(), init=eighth_normal)

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        temperature: float = 1 / 9,
        **options: Unpack[ProxyOptions],
    ) -> None:
        scoring = Scoring(2 / check_positive("temperature", temperature))
        super().__init__(num_classes, embedding_size, scoring=scoring, **options)

    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return softmax_objective(self.scoring.scale * positive, negative)
