"""CurricularFace: easy samples first, then the negatives that are hard for them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from proxemic.losses.initialization import small_normal
from proxemic.losses.margin_softmax import MarginSoftmax, check_momentum, check_radians
from proxemic.losses.margins import angular_margin, wider_angle
from proxemic.losses.options import ProxyOptions
from proxemic.losses.scores import Scoring


class CurricularFaceLoss(MarginSoftmax):
    """ArcFace whose hard negatives weigh less at first and more as training goes on.

    ``mean_i log(1 + Σ_{c≠y_i} e^{σ (g_i(S_c) − cos(θ_i + m))})`` with ``g_i(S) = S`` while ``S ≤ cos(θ_i + m)`` and
    ``S (t + S)`` for the hard negatives, above it; beyond ``θ + m = π`` the positive score is ArcFace's. Huang et al.,
    CurricularFace, CVPR 2020, section 3.2. ``t`` is a moving average of the batches' mean positive cosine.

    As in the authors' code, t starts from 0 and is updated with each batch, with a weight of 0.01, before it is used
    (the paper gives the momentum as 0.99). Neither t nor the threshold ``cos(θ + m)`` of hard negatives has a gradient.
    The average is that of the joined batch of all processes. It is updated in training mode only.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        margin: m in [0, π/2], in radians.
        momentum: Weight of a batch in t, in (0, 1].
        scale: σ > 0.
        **options: The keywords of every proxy loss, see `ProxyOptions`.

    Attributes:
        t: Buffer, in [−1, 1].

    >>> loss = CurricularFaceLoss(2, 2, scale=1.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1))).eval()
    >>> loss(torch.tensor([[1.0, 1.0]]), torch.tensor([0])).item()  # t = 0: log(1 + e^(cos² 45° − cos(45° + 0.5)))
    0.8083...
    """

    defaults = ProxyOptions(init=small_normal)
    t: Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        margin: float = 0.5,
        momentum: float = 0.01,
        scale: float = 64.0,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, scale=scale, **options)
        self.margin = check_radians("margin", margin)
        self.momentum = check_momentum(momentum)
        self.register_buffer("t", torch.tensor(0.0))

    @torch.no_grad()
    def step_scoring(
        self, positive: Callable[[], Float[Tensor, " batch"]], embeddings: Float[Tensor, "batch dim"]
    ) -> Scoring:
        cosine = positive()
        if self.training:
            self.t.lerp_(cosine.mean().to(self.t), self.momentum)
        hardest, t = wider_angle(cosine, self.margin), self.t.to(cosine, copy=True)

        def harder(scores: Float[Tensor, "classes batch"]) -> Float[Tensor, "classes batch"]:
            return torch.where(scores > hardest, scores * (t + scores), scores)

        return replace(self.scoring, transform=harder)

    def with_margin(self, cosine: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return angular_margin(cosine, self.margin)
