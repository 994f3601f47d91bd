"""Softmax losses with margins or negatives that differ from sample to sample: AdaFace, CurricularFace, ElasticFace."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, Unpack

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from proxemic.losses.checks import check_number, check_positive, shown
from proxemic.losses.initialization import small_normal, unit_directions
from proxemic.losses.margin_softmax import MarginSoftmax, check_momentum, check_radians
from proxemic.losses.margins import angular_margin, shifted_angle, wider_angle
from proxemic.losses.options import ProxyOptions
from proxemic.losses.scores import Scoring

# Constants of AdaFace's code: the bounds that lengths are clipped to, and the number added to σ_z.
_SHORTEST, _LONGEST, _EPS = 0.001, 100.0, 0.001


class AdaFaceLoss(MarginSoftmax):
    """A margin that depends on image quality: hard samples count more in good images and less in bad ones.

    ``mean_i softplus(N_i(σ) − σ p_i)`` with ``p = cos(clip(θ + g_angle, 0, π)) − g_add``, ``g_angle = −m ẑ``,
    ``g_add = m ẑ + m`` and the quality ``ẑ = clip(h (‖x‖ − μ_z)/σ_z, −1, 1)``, which gets no gradient: ``ẑ = −1`` is
    ArcFace, 0 CosFace. Kim, Jain and Liu, AdaFace, CVPR 2022, section 3.3. μ_z and σ_z are moving averages of the mean
    and the standard deviation of the lengths in a batch.

    Where the paper is silent, this follows the authors' code: lengths are clipped to [0.001, 100], 0.001 is added to
    σ_z, the averages start at 20 and 100 and are updated with each batch before use, and the angle is clipped.

    The averages are over the global batch of all processes and change only in training mode. A batch of one sample,
    which has no standard deviation, does not change σ_z.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings, which the model must not normalise.
        margin: m in [0, π/2], in radians and in units of the cosine.
        concentration: h > 0; with 0.333, 68 % of normally distributed lengths have ẑ in [−0.333, 0.333].
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
            length = self._length(embeddings).to(self.norm_mean)
            self.norm_mean.lerp_(length.mean(), self.momentum)
            if len(length) > 1:
                self.norm_std.lerp_(length.std(), self.momentum)
        return self.scoring

    def with_margin(self, cosine: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        quality = self.quality(embeddings)
        return shifted_angle(cosine, -self.margin * quality) - self.margin * (quality + 1)

    @torch.no_grad()
    def quality(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, " batch"]:
        """Compute the quality ``ẑ`` in [−1, 1] with the current averages."""
        deviation = (self._length(embeddings) - self.norm_mean) / (self.norm_std + _EPS)
        return (self.concentration * deviation).clamp(-1, 1)

    def _length(self, embeddings: Tensor) -> Tensor:
        return torch.linalg.vector_norm(embeddings, dim=1).clamp(_SHORTEST, _LONGEST)


class CurricularFaceLoss(MarginSoftmax):
    """ArcFace that weighs hard negatives less at first and more as training proceeds.

    ``mean_i log(1 + Σ_{c≠y_i} e^{σ (g_i(S_c) − cos(θ_i + m))})`` with ``g_i(S) = S`` if ``S ≤ cos(θ_i + m)`` and
    ``g_i(S) = S (t + S)`` for the hard negatives above it; beyond ``θ + m = π`` the positive score is ArcFace's. Huang
    et al., CurricularFace, CVPR 2020, section 3.2. ``t`` is a moving average of the batches' mean positive cosine.

    As in the authors' code, t starts at 0 and is updated with each batch before use, with a weight of 0.01 (the paper
    gives the momentum as 0.99). Neither t nor the threshold ``cos(θ + m)`` of hard negatives has a gradient. The
    average is over the global batch of all processes and changes only in training mode.

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


class ElasticFaceLoss(MarginSoftmax):
    """ArcFace or CosFace with a random margin ``m_i ~ N(m, s²)`` per sample, drawn at every step.

    ``mean_i softplus(N_i(σ) − σ cos(θ_i + m_i))``, or ``− σ (cos θ_i − m_i)``. Boutros et al., ElasticFace, CVPRW 2022.
    ElasticFace+ (``plus``) sorts the drawn margins: the sample farthest from its proxy gets the largest, the next one
    the second largest, and so on, as in the paper (the authors' code permutes them in another way).

    Margins are drawn from torch's global generator of the embeddings' device, one per sample of the global batch, and
    are the same on all processes. Margins on the angle are clipped to [0, π/2], and beyond ``θ + m = π`` the score
    continues like ArcFace's. In evaluation mode every margin is m.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        margin: m, the mean margin, in [0, π/2]: in radians for "arc"; for "cos" the paper uses 0.35.
        deviation: s ≥ 0, the standard deviation of the margins; the paper uses 0.0175 with "arc" and ``plus``, 0.025
            with "cos" and ``plus``.
        form: "arc" adds the margin to the angle, "cos" subtracts it from the cosine.
        plus: Sort the margins (ElasticFace+).
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
        rule = "must be 0 or more, the spread of the margins, for example 0.05"
        self.deviation = check_number("deviation", deviation, rule, least=0)
        if not (isinstance(form, str) and form in ("arc", "cos")):
            raise ValueError(f'form is {shown(form)}, but must be "arc" or "cos": a margin on the angle or the cosine.')
        if not isinstance(plus, bool):
            raise ValueError(f"plus is {shown(plus)}, but must be True, which sorts the margins, or False.")
        self.form, self.plus = form, plus
        self._drawn: Tensor | None = None

    @torch.no_grad()
    def step_scoring(
        self, positive: Callable[[], Float[Tensor, " batch"]], embeddings: Float[Tensor, "batch dim"]
    ) -> Scoring:
        if self.training:
            self._drawn = torch.randn_like(embeddings[:, 0]).mul_(self.deviation).add_(self.margin)
            if self._sharding is not None:
                dist.broadcast(self._drawn, group=self._sharding.group, group_src=0)
        return self.scoring

    def with_margin(self, cosine: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        margins = self._margins(cosine.detach())
        return angular_margin(cosine, margins.clamp(0, math.pi / 2)) if self.form == "arc" else cosine - margins

    def _margins(self, cosine: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        if not self.training:
            return torch.full_like(cosine, self.margin)
        assert self._drawn is not None
        if not self.plus:
            return self._drawn
        nearest_first = cosine.argsort(descending=True, stable=True)
        return torch.empty_like(self._drawn).scatter_(0, nearest_first, self._drawn.sort().values)
