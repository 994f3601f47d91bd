"""ElasticFace: a margin that is drawn at random for each sample."""

import math
from typing import Literal, Unpack

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from proxemic.losses.checks import check_number, shown
from proxemic.losses.initialization import small_normal
from proxemic.losses.margin_softmax import MarginSoftmax, check_radians
from proxemic.losses.margins import angular_margin
from proxemic.losses.options import ProxyOptions


class ElasticFaceLoss(MarginSoftmax):
    """ArcFace or CosFace with a margin ``m_i ~ N(m, s²)`` per sample, drawn at every step.

    ``mean_i softplus(N_i(σ) − σ cos(θ_i + m_i))``, or ``− σ (cos θ_i − m_i)``. Boutros et al., ElasticFace, CVPRW 2022.
    ElasticFace+ (``plus``) gives the largest of the margins drawn to the sample farthest from its
    proxy, and so on down. (The authors' code sorts the margins and then indexes them by the order of the cosines where
    the inverse of that permutation is meant; here it is as the paper says.)

    Margins are drawn from torch's global generator of the embeddings' device, one per sample of the joined batch, and
    are the same on all processes. Those of an angle are clipped to [0, π/2], and beyond ``θ + m = π`` the score goes on
    as ArcFace's. In evaluation mode every margin is m.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        margin: m, the mean: in [0, π/2]; radians of "arc"; of "cos" the paper has 0.35.
        deviation: s ≥ 0, the margins' standard deviation; the paper has 0.0175 with "arc" and ``plus``, 0.025 with
            "cos" and ``plus``.
        form: "arc" adds the margin to the angle, "cos" subtracts it from the cosine.
        plus: ElasticFace+.
        scale: σ > 0.
        **options: The keywords of every proxy loss, see `ProxyOptions`.

    >>> loss = ElasticFaceLoss(2, 2, scale=1.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1))).eval()
    >>> loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item()  # ArcFace: log(1 + e^(0 − cos 0.5))
    0.3476...
    """

    defaults = ProxyOptions(init=small_normal)

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        margin: float = 0.5,
        deviation: float = 0.05,
        form: Literal["arc", "cos"] = "arc",
        plus: bool = False,
        scale: float = 64.0,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, scale=scale, **options)
        self.margin = check_radians("margin", margin)
        rule = "the margins' spread must be 0 or more, as 0.05 is"
        self.deviation = check_number("deviation", deviation, rule, least=0)
        if not (isinstance(form, str) and form in ("arc", "cos")):
            raise ValueError(f'form is {shown(form)}, but must be "arc" or "cos": a margin on the angle or the cosine.')
        if not isinstance(plus, bool):
            raise ValueError(f"plus is {shown(plus)}, but must be True, which sorts the margins, or False.")
        self.form, self.plus = form, plus

    def with_margin(self, cosine: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        margins = self._margins(cosine.detach())
        return angular_margin(cosine, margins.clamp(0, math.pi / 2)) if self.form == "arc" else cosine - margins

    def _margins(self, cosine: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        if not self.training:
            return torch.full_like(cosine, self.margin)
        margins = torch.randn_like(cosine).mul_(self.deviation).add_(self.margin)
        if self._sharding is not None:
            dist.broadcast(margins, group=self._sharding.group, group_src=0)
        if self.plus:
            nearest_first = cosine.argsort(descending=True, stable=True)
            margins = torch.empty_like(margins).scatter_(0, nearest_first, margins.sort().values)
        return margins
