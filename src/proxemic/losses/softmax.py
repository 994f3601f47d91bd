"""Softmax cross-entropy of cosines: the normalised softmax, ProxyNCA, ProxyNCA++ and SoftTriple."""

from typing import Unpack

from torch import Tensor

from proxemic.losses.checks import check_finite, check_positive
from proxemic.losses.initialization import eighth_normal, kaiming_uniform
from proxemic.losses.margins import Margin, target_margin
from proxemic.losses.objectives import softmax_objective
from proxemic.losses.options import ProxyOptions
from proxemic.losses.proxy_loss import ProxyLoss
from proxemic.losses.scores import CenterRegularizer, Scoring, SoftmaxPooling


class SoftmaxLoss(ProxyLoss):
    """Base class of the cross-entropies over the classes: ``mean_i softplus(N_i − z_i)`` with target logits z."""

    def target_logits(self, positive: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return self.scoring.scale * positive

    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return softmax_objective(self.target_logits(positive, labels, embeddings), negative)


class NormalizedSoftmaxLoss(SoftmaxLoss):
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
        self, num_classes: int, embedding_size: int, *, scale: float = 20.0, **options: Unpack[ProxyOptions]
    ) -> None:
        super().__init__(num_classes, embedding_size, scoring=Scoring(check_positive("scale", scale)), **options)


class ProxyNCALoss(ProxyLoss):
    """``mean_i −log(e^{−σ‖x̂_i−ŵ_{y_i}‖²} / Σ_{c≠y_i} e^{−σ‖x̂_i−ŵ_c‖²})``: the target class is not in the denominator.

    Movshovitz-Attias et al., No Fuss Distance Metric Learning using Proxies, ICCV 2017, equation 6. The loss has no
    lower bound, and the pull to the target proxy does not weaken near it. As ``‖x̂−ŵ‖² = 2 − 2cos``, it equals
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
        self, num_classes: int, embedding_size: int, *, scale: float = 1.0, **options: Unpack[ProxyOptions]
    ) -> None:
        super().__init__(num_classes, embedding_size, scoring=Scoring(2 * check_positive("scale", scale)), **options)

    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return negative - self.scoring.scale * positive


class ProxyNCAPlusPlusLoss(SoftmaxLoss):
    """Softmax cross-entropy of ``−‖x̂ − ŵ_c‖² / T`` over all classes, including the target class.

    Teh et al., ProxyNCA++, ECCV 2020, equation 9. As ``‖x̂−ŵ‖² = 2 − 2cos``, it is a normalised softmax with scale 2/T;
    the authors scale embeddings and proxies by 3, which is T = 1/9.

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
        self, num_classes: int, embedding_size: int, *, temperature: float = 1 / 9, **options: Unpack[ProxyOptions]
    ) -> None:
        scoring = Scoring(2 / check_positive("temperature", temperature))
        super().__init__(num_classes, embedding_size, scoring=scoring, **options)


class SoftTripleLoss(SoftmaxLoss):
    """``mean_i softplus(N_i(λ) − λ(P_i − δ)) + τR`` over softmax-pooled class scores.

    Qian et al., SoftTriple, ICCV 2019, equations 6 to 11, with R as in the paper (see `CenterRegularizer`).

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        scale: λ > 0.
        gamma: γ > 0, the softness of the pooling over proxies.
        margin: δ, in units of the cosine: one number, ``[C]`` of the classes, or a `MarginRule`.
        center_weight: τ ≥ 0, the weight of the `CenterRegularizer` R, which lets surplus proxies merge.
        **options: The keywords of every proxy loss, see `ProxyOptions`; a ``pooling`` replaces the one with γ.

    >>> loss = SoftTripleLoss(
    ...     2, 2, proxies_per_class=1, scale=1.0, margin=0.5, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1))
    ... )
    >>> loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item()  # log(1 + e^(0 − 0.5))
    0.4740...
    """

    defaults = ProxyOptions(proxies_per_class=10, init=kaiming_uniform)
    margin: float | Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        scale: float = 20.0,
        gamma: float = 0.1,
        margin: Margin = 0.01,
        center_weight: float = 0.2,
        **options: Unpack[ProxyOptions],
    ) -> None:
        scoring = Scoring(check_positive("scale", scale), pooling=SoftmaxPooling(gamma))
        super().__init__(num_classes, embedding_size, scoring=scoring, **options)
        self.regularizers.insert(0, CenterRegularizer(center_weight))
        self._set_margin(margin, check_finite)

    def target_logits(self, positive: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return self.scoring.scale * (positive - target_margin(self.margin, labels))
