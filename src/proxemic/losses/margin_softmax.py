"""Softmax of cosines with a margin on the target class: SphereFace, CosFace, ArcFace, MagFace."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Unpack

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from proxemic.losses.checks import (
    check_count,
    check_embeddings,
    check_labels,
    check_number,
    check_positive,
    is_number,
    shown,
)
from proxemic.losses.initialization import small_normal, unit_directions, xavier_uniform
from proxemic.losses.margins import Margin, angular_margin, multiplied_angle, target_margin, wider_angle
from proxemic.losses.options import ProxyOptions
from proxemic.losses.scores import InnerProduct, Scoring, SoftmaxPooling
from proxemic.losses.scores.similarity import unit
from proxemic.losses.softmax import SoftmaxLoss

# `outliers` copies the proxies of each embedding's class; the copies have at most this many elements (64 MiB).
_HELD = 2**24


class MarginSoftmax(SoftmaxLoss):
    """Base class of the softmax losses with a margin: ``mean_i softplus(N_i(σ) − σ·with_margin(P_i))``.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        scale: σ > 0.
        **options: The keywords of every proxy loss, see `ProxyOptions`.
    """

    defaults = ProxyOptions(pooling=SoftmaxPooling())

    def __init__(self, num_classes: int, embedding_size: int, *, scale: float, **options: Unpack[ProxyOptions]) -> None:
        super().__init__(num_classes, embedding_size, scoring=Scoring(check_positive("scale", scale)), **options)

    @abstractmethod
    def with_margin(
        self, cosine: Float[Tensor, " batch"], labels: Int[Tensor, " batch"], embeddings: Float[Tensor, "batch dim"]
    ) -> Float[Tensor, " batch"]:
        """Return the scores of the target classes ``[B]`` with the margin."""

    def target_logits(self, positive: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return self.scoring.scale * self.with_margin(positive, labels, embeddings)

    @torch.no_grad()
    def outliers(
        self, embeddings: Float[Tensor, "rows dim"], labels: Int[Tensor, " rows"], *, degrees: float = 75.0
    ) -> Bool[Tensor, " rows"]:
        """Find mislabelled samples by the sub-centers of their class, as sub-center ArcFace cleans data.

        With several proxies per class and `MaxPooling`, most samples of a class gather at one sub-center, the dominant
        one, and mislabelled ones at the others. An outlier is more than 75° from the dominant sub-center of its class,
        even if it is near another one. Deng et al., Sub-center ArcFace, ECCV 2020, as in the authors' ``drop.py`` and
        pytorch-metric-learning's ``get_outliers``.

        Args:
            embeddings: ``[N, D]``, the embeddings of all samples at once: the dominant sub-center is the nearest one to
                most samples of a class.
            labels: ``[N]``, their classes.
            degrees: The angle that separates outliers, in [0, 180].

        Returns:
            A mask ``[N]``, true for outliers.

        Raises:
            ValueError: If a shape, a dtype, a label or the angle is not allowed, or the proxies are sharded.

        >>> proxies = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, -1.0]]])
        >>> loss = ArcFaceLoss(2, 2, proxies_per_class=2, init=lambda w: w.copy_(proxies))
        >>> loss.outliers(torch.tensor([[1.0, 0.1], [1.0, 0.2], [0.2, 1.0], [-1.0, 0.0]]), torch.tensor([0, 0, 0, 1]))
        tensor([False, False,  True, False])
        """
        check_embeddings(embeddings, self.embedding_size, least=0)
        check_labels(labels, len(embeddings), self.num_classes)
        check_number("degrees", degrees, "must be an angle from 0 to 180, usually 75", least=0, most=180)
        self._need_all_classes()
        dtype, per_class = self._dtype(embeddings), self.proxies_per_class
        x, labels, proxies = embeddings.to(dtype), labels.long(), unit(self.proxies.to(dtype))
        size = max(_HELD // (per_class * self.embedding_size), 1)
        parts = zip(x.split(size), labels.split(size), strict=True)
        cosines = torch.cat([InnerProduct().pairs(unit(queries), proxies[label]) for queries, label in parts])
        votes = torch.bincount(labels * per_class + cosines.argmax(1), minlength=self.num_classes * per_class)
        dominant = votes.view(-1, per_class).argmax(1)
        return cosines.gather(1, dominant[labels].unsqueeze(1)).squeeze(1) < math.cos(math.radians(degrees))


class SphereFaceLoss(MarginSoftmax):
    """A-softmax, which multiplies the angle to the target class by m: ``mean_i softplus(N_i(σ) − σ ψ(θ_i))``.

    ``ψ(θ) = (−1)^j cos(mθ) − 2j`` on ``[jπ/m, (j+1)π/m]``. Liu et al., SphereFace, CVPR 2017, equations 6 and 7, with
    unit embeddings and a scale; the authors use the embedding's length instead of σ and blend ψ with cos θ at first.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        margin: m ≥ 1, a whole number; 1 is the normalised softmax.
        scale: σ > 0. It may be smaller than that of other margin losses, as ψ reaches down to 1 − 2m.
        **options: The keywords of every proxy loss, see `ProxyOptions`.

    >>> loss = SphereFaceLoss(2, 2, margin=2, scale=1.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1)))
    >>> loss(torch.tensor([[1.0, 1.0]]), torch.tensor([0])).item()  # log(1 + e^(cos 45° − cos 90°))
    1.1079...
    """

    defaults = ProxyOptions(init=unit_directions)

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        margin: int = 4,
        scale: float = 20.0,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, scale=scale, **options)
        check_count("margin", margin, 1, "it multiplies the angle; SphereFace uses 4")
        self.margin = margin

    def with_margin(self, cosine: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return multiplied_angle(cosine, self.margin)


class CosFaceLoss(MarginSoftmax):
    """A margin subtracted from the cosine to the target class, ``mean_i softplus(N_i(σ) − σ(P_i − m))``.

    Wang et al., CosFace, CVPR 2018, equation 4.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        margin: m in [0, 2), in units of the cosine: one number, ``[C]`` of the classes, or a `MarginRule`.
        scale: σ > 0.
        **options: The keywords of every proxy loss, see `ProxyOptions`.

    >>> loss = CosFaceLoss(2, 2, margin=0.5, scale=1.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1)))
    >>> loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item()  # log(1 + e^(0 − 0.5))
    0.4740...
    """

    defaults = ProxyOptions(init=xavier_uniform)
    margin: float | Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        margin: Margin = 0.35,
        scale: float = 64.0,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, scale=scale, **options)
        self._set_margin(margin, _check_cosine_margin)

    def with_margin(self, cosine: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return cosine - target_margin(self.margin, labels)


class ArcFaceLoss(MarginSoftmax):
    """A margin added to the angle to the target class, ``mean_i softplus(N_i(σ) − σ cos(θ_i + m))``.

    Deng et al., ArcFace, CVPR 2019, equation 3; beyond ``θ + m = π`` the score continues as ``σ(cos θ − m sin m)``. The
    gradient includes the margin, unlike that of insightface's arcface_torch. With ``proxies_per_class=3,
    pooling=MaxPooling()`` this is sub-center ArcFace.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        margin: m in [0, π/2], in radians: one number, ``[C]`` of the classes, or a `MarginRule`.
        scale: σ > 0.
        easy_margin: Give samples more than 90° from their proxy no margin, ``σ cos θ_i``, as an option of the authors'
            code does.
        **options: The keywords of every proxy loss, see `ProxyOptions`.

    >>> loss = ArcFaceLoss(2, 2, margin=0.5, scale=1.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1)))
    >>> loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item()  # log(1 + e^(0 − cos 0.5))
    0.3476...
    """

    defaults = ProxyOptions(init=small_normal)
    margin: float | Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        margin: Margin = 0.5,
        scale: float = 64.0,
        easy_margin: bool = False,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, scale=scale, **options)
        self._set_margin(margin, check_radians)
        if not isinstance(easy_margin, bool):
            raise ValueError(f"easy_margin is {shown(easy_margin)}, but must be True or False.")
        self.easy_margin = easy_margin

    def with_margin(self, cosine: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        margin = target_margin(self.margin, labels)
        if self.easy_margin:
            return torch.where(cosine > 0, wider_angle(cosine, margin), cosine)
        return angular_margin(cosine, margin)


class MagFaceLoss(MarginSoftmax):
    """ArcFace with a margin that grows with the length of the embedding, so that length measures image quality.

    ``mean_i softplus(N_i(σ) − σ cos(θ_i + m(a_i))) + λ mean_i(a_i/a_u² + 1/a_i)`` with ``a = clip(‖x‖, a_l, a_u)`` and
    ``m(a) = m_l + (m_u − m_l)(a − a_l)/(a_u − a_l)``; the gradient flows through a. Meng et al., MagFace, CVPR 2021,
    equations 3 and 4.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings, which the model must not normalise.
        margin_range: ``(m_l, m_u)`` with 0 ≤ m_l ≤ m_u ≤ π/2, in radians.
        norm_range: ``(a_l, a_u)`` with 0 < a_l < a_u, lengths of embeddings.
        norm_weight: λ ≥ 0.
        scale: σ > 0.
        **options: The keywords of every proxy loss, see `ProxyOptions`.

    >>> loss = MagFaceLoss(2, 2, scale=1.0, norm_weight=0.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1)))
    >>> loss(torch.tensor([[10.0, 0.0]]), torch.tensor([0])).item()  # smallest margin: log(1 + e^(0 − cos 0.45))
    0.3410...
    """

    defaults = ProxyOptions(init=unit_directions)
    reads_norms = True

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        margin_range: tuple[float, float] = (0.45, 0.8),
        norm_range: tuple[float, float] = (10.0, 110.0),
        norm_weight: float = 35.0,
        scale: float = 64.0,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, scale=scale, **options)
        for name, pair in {"margin_range": margin_range, "norm_range": norm_range}.items():
            if not (isinstance(pair, Sequence) and len(pair) == 2 and all(map(is_number, pair))):
                raise ValueError(f"{name} is {shown(pair)}, but must be two numbers.")
        low, high = (check_radians("margin_range", bound) for bound in margin_range)
        if not low <= high:
            raise ValueError(f"margin_range is {margin_range}, but must ascend: long embeddings have larger margins.")
        if not 0 < norm_range[0] < norm_range[1]:
            raise ValueError(f"norm_range is {norm_range}, but must be two ascending lengths above 0, as (10, 110).")
        self.margin_range, self.norm_range = (low, high), norm_range
        self.norm_weight = check_number("norm_weight", norm_weight, "a weight must be 0 or more", least=0)

    def with_margin(self, cosine: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        (low, high), (shortest, longest) = self.margin_range, self.norm_range
        share = (self._length(embeddings) - shortest) / (longest - shortest)
        return angular_margin(cosine, low + (high - low) * share)

    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        length = self._length(embeddings)
        longer = length / self.norm_range[1] ** 2 + 1 / length
        return super().objective(positive, negative, labels, embeddings) + self.norm_weight * longer

    def _length(self, embeddings: Tensor) -> Tensor:
        return torch.linalg.vector_norm(embeddings, dim=1).clamp(*self.norm_range)


def _check_cosine_margin(name: str, value: float) -> float:
    return check_number(name, value, "is subtracted from a cosine: use 0 to 2; CosFace uses 0.35", least=0, below=2)


def check_radians(name: str, value: float) -> float:
    """Return ``value`` if it is an angle from 0 to π/2; otherwise raise `ValueError`, which also converts degrees."""
    large = is_number(value) and value > math.pi / 2
    degrees = f" ({value} degrees are {math.radians(value):.4g})" if large else ""
    rule = f"is an angle in radians, 0 to π/2: convert degrees{degrees}"
    return check_number(name, value, rule, least=0, most=math.pi / 2)


def check_momentum(value: float) -> float:
    """Return ``value`` if it can be the weight of a batch in a moving average; otherwise raise `ValueError`."""
    return check_number("momentum", value, "must be a batch's weight in the average: above 0, up to 1", above=0, most=1)
