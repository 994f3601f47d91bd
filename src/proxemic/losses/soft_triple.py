"""SoftTriple: several proxies per class and a margin, in a softmax."""

from typing import Unpack

from torch import Tensor

from proxemic.losses.checks import check_finite, check_positive
from proxemic.losses.initialization import kaiming_uniform
from proxemic.losses.margins import Margin, target_margin
from proxemic.losses.objectives import softmax_objective
from proxemic.losses.options import ProxyOptions
from proxemic.losses.proxy_loss import ProxyLoss
from proxemic.losses.scores import CenterRegularizer, Scoring, SoftmaxPooling


class SoftTripleLoss(ProxyLoss):
    """``mean_i softplus(N_i(λ) − λ(P_i − δ)) + τR`` over softmax-pooled class scores.

    Qian et al., SoftTriple, ICCV 2019, equations 6 to 11. The authors' code adds 1e-5 inside the root of R, which keeps
    its gradient finite where two proxies coincide; here R is the paper's and its gradient there is 0.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        scale: λ > 0.
        gamma: γ > 0, the softness of the pooling over proxies.
        margin: δ, in units of the cosine: one number, ``[C]`` of the classes, or a `MarginRule`.
        center_weight: τ ≥ 0, the weight of the `CenterRegularizer` R, which lets surplus proxies merge.
        **options: The keywords of every proxy loss, see `ProxyOptions`; a ``pooling`` takes the place of that with γ.

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

    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return softmax_objective(self.scoring.scale * (positive - target_margin(self.margin, labels)), negative)
