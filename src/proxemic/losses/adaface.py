"""AdaFace: a margin by the quality of the image, for which the length of its embedding stands."""

from collections.abc import Callable
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from proxemic.losses.checks import check_positive
from proxemic.losses.initialization import unit_directions
from proxemic.losses.margin_softmax import MarginSoftmax, check_momentum, check_radians
from proxemic.losses.margins import shifted_angle
from proxemic.losses.options import ProxyOptions
from proxemic.losses.scores import Scoring

_SHORTEST, _LONGEST = 0.001, 100.0  # lengths are clipped to, as in the authors' code
_EPS = 0.001  # added to σ_z there


class AdaFaceLoss(MarginSoftmax):
    """A margin by the image's quality: hard samples count more in good images, less in bad ones.

    ``mean_i softplus(N_i(σ) − σ p_i)`` with ``p = cos(clip(θ + g_angle, 0, π)) − g_add``, ``g_angle = −m ẑ``,
    ``g_add = m ẑ + m`` and the quality ``ẑ = clip(h (‖x‖ − μ_z)/σ_z, −1, 1)``, which gets no gradient: ``ẑ = −1`` is
    ArcFace, 0 CosFace. Kim, Jain and Liu, AdaFace, CVPR 2022, section 3.3. μ_z and σ_z are moving averages of the
    mean and the standard deviation of the lengths in a batch.

    What the paper leaves open is as in the authors' code: lengths are clipped to [0.001, 100], 0.001 is added to σ_z,
    the averages start from 20 and 100 and are updated with each batch before they are used, and the angle is clipped.

    The averages are those of the joined batch of all processes. They are updated in training mode only; a batch of one
    sample, which has no standard deviation, leaves σ_z as it is.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings, which must not be normalised by the model.
        margin: m in [0, π/2], in radians and in units of the cosine.
        concentration: h > 0; at 0.333, ẑ of 68 % of normally distributed lengths is in [−0.333, 0.333].
        momentum: Weight of a batch in the averages, in (0, 1].
        scale: σ > 0.
        **options: The keywords of every proxy loss, see `ProxyOptions`.

    Attributes:
        norm_mean: Buffer, μ_z.
        norm_std: Buffer, σ_z.

    >>> loss = AdaFaceLoss(2, 2, scale=1.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1))).eval()
    >>> loss(torch.tensor([[20.0, 0.0]]), torch.tensor([0])).item()  # ẑ = 0, CosFace: log(1 + e^(0 − (1 − 0.4)))
    0.4374...
    """

    defaults = ProxyOptions(init=unit_directions)
    reads_norms = True
    norm_mean: Tensor
    norm_std: Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        margin: float = 0.4,
        concentration: float = 0.333,
        momentum: float = 0.01,
        scale: float = 64.0,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, scale=scale, **options)
        self.margin = check_radians("margin", margin)
        self.concentration = check_positive("concentration", concentration)
        self.momentum = check_momentum(momentum)
        self.register_buffer("norm_mean", torch.tensor(20.0))
        self.register_buffer("norm_std", torch.tensor(100.0))

    @torch.no_grad()
    def step_scoring(
        self, positive: Callable[[], Float[Tensor, " batch"]], embeddings: Float[Tensor, "batch dim"]
    ) -> Scoring:
        if self.training:
            length = _length(embeddings).to(self.norm_mean)
            self.norm_mean.lerp_(length.mean(), self.momentum)
            if len(length) > 1:
                self.norm_std.lerp_(length.std(), self.momentum)
        return self.scoring

    def with_margin(self, cosine: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        quality = self.quality(embeddings)
        return shifted_angle(cosine, -self.margin * quality) - self.margin * (quality + 1)

    @torch.no_grad()
    def quality(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, " batch"]:
        """``ẑ`` in [−1, 1], by the current averages."""
        deviation = (_length(embeddings) - self.norm_mean) / (self.norm_std + _EPS)
        return (self.concentration * deviation).clamp(-1, 1)


def _length(embeddings: Tensor) -> Tensor:
    return torch.linalg.vector_norm(embeddings, dim=1).clamp(_SHORTEST, _LONGEST)
