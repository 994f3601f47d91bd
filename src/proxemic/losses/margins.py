"""Margins on the cosine to the target class: functions of the positive score.

A margin is one number for all classes or one per class, given as numbers or by a rule that computes them from counts.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from proxemic.arrays import as_tensor
from proxemic.losses.checks import check_counts, check_number, check_positive
from proxemic.losses.scores.derivative import by_hand

MARGINS = ("margin", "_margin")
"""Names of the buffers ``[C]`` in which losses store margins per class, which are not trained."""


class MarginRule(ABC):
    """Base class of rules that compute the margin of a class from its number of samples."""

    @abstractmethod
    def __call__(self, counts: Int[Tensor, " classes"] | Sequence[int]) -> Float[Tensor, " classes"]:
        """Compute the margin of each class.

        Args:
            counts: ``[C]``, samples of each class, at least 1: ``torch.bincount(labels, minlength=num_classes)``.

        Returns:
            ``[C]``, the margins.

        Raises:
            ValueError: If a count is below 1.
        """


@dataclass(frozen=True)
class DynamicMargin(MarginRule):
    """``m_c = a · n_c^{−power} + b``: the fewer samples n_c a class has, the larger its margin.

    Ha, Liu, Liu, Liao, "Google Landmark Recognition 2020 Competition Third Place Solution", 2020, use a = 0.5, b = 0.05
    and power = 1/4 with sub-center ArcFace, in radians; their code stretches ``n_c^{−1/4}`` over 0.05 to 0.5.

    Args:
        a: ≥ 0; a class with one sample has the margin ``a + b``.
        b: ≥ 0, the limit of the margin for very large classes.
        power: > 0, how fast the margin falls with the number of samples.

    >>> DynamicMargin()([1, 16, 10_000])
    tensor([0.5500, 0.3000, 0.1000])
    """

    a: float = 0.5
    b: float = 0.05
    power: float = 0.25

    def __post_init__(self) -> None:
        for name in ("a", "b"):
            check_number(name, getattr(self, name), "must be 0 or more: margins are a / n^power + b", least=0)
        check_positive("power", self.power)

    def __call__(self, counts: Int[Tensor, " classes"] | Sequence[int]) -> Float[Tensor, " classes"]:
        margins = self.a * check_counts(counts) ** -self.power + self.b
        return margins.to(torch.get_default_dtype())


Margin = float | Sequence[float] | Tensor | MarginRule


def class_margins(margin: object, num_classes: int, check: Callable[[str, float], float]) -> Float[Tensor, " classes"]:
    """Return the margins per class, and ``check`` the extremes; NaN as long as a rule has no class counts."""
    if isinstance(margin, MarginRule):
        return torch.full((num_classes,), torch.nan)
    margins = as_tensor("margin", margin).detach().clone().to(torch.get_default_dtype())
    if margins.shape != (num_classes,):
        raise ValueError(
            f"margin has shape {list(margins.shape)}, but must be one number, or one for each of the {num_classes} "
            f"classes: [{num_classes}]."
        )
    # Neither the smallest nor the largest need be NaN.
    for index in (margins.isfinite().byte().argmin(), margins.argmin(), margins.argmax()):
        check(f"margin of class {int(index)}", margins[index].item())
    return margins


def target_margin(margin: float | Float[Tensor, " classes"], labels: Int[Tensor, " batch"]) -> float | Tensor:
    """Return the margin of each sample's target class, or one number if all classes have the same."""
    return margin[labels] if isinstance(margin, Tensor) else margin


def wider_angle(cosine: Float[Tensor, " batch"], angle: float | Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """Compute ``cos(θ + g)``, which rises again beyond ``θ + g = π``.

    The gradient is exact, also through ``sin θ = √(1 − cos²θ)``; at ``cos θ = ±1``, ``sin θ`` gets none.

    Args:
        cosine: ``[B]``, ``cos θ`` in [-1, 1]; rounding errors beyond are allowed.
        angle: g in radians, one number or one per sample ``[B]``.

    >>> wider_angle(torch.tensor([1.0, 0.0, -1.0]), 0.5)
    tensor([ 0.8776, -0.4794, -0.8776])
    """
    cos_g, sin_g = _cos_sin(angle)
    squared = (1 - cosine) * (1 + cosine)
    inside = squared > 0
    sine = torch.where(inside, torch.where(inside, squared, 1).sqrt(), 0)
    return cosine * cos_g - sine * sin_g


def angular_margin(cosine: Float[Tensor, " batch"], margin: float | Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """Compute ``cos(θ + m)`` if ``θ + m ≤ π``, otherwise ``cos θ − m sin m``, which keeps falling (ArcFace).

    Args:
        cosine: As for `wider_angle`.
        margin: m in [-π/2, π/2] radians, one number or one per sample ``[B]``.

    >>> angular_margin(torch.tensor([1.0, 0.0, -1.0]), 0.5)
    tensor([ 0.8776, -0.4794, -1.2397])
    >>> angular_margin(torch.tensor([-0.99]), torch.tensor([-0.4]))  # cos(3 − 0.4)
    tensor([-0.8569])
    """
    return _angular_margin(cosine, margin) if isinstance(margin, Tensor) else _angular_margin_by_hand(cosine, margin)


def _angular_margin(cosine: Tensor, margin: float | Tensor) -> Tensor:
    cos_m, sin_m = _cos_sin(margin)
    # θ + m ≤ π in terms of cosines: θ ≤ π − m, which always holds for a negative margin.
    widened = cosine >= -cos_m
    if isinstance(margin, Tensor) or margin < 0:
        widened = widened | (margin < 0)
    return torch.where(widened, wider_angle(cosine, margin), cosine - margin * sin_m)


def _angular_margin_forward(cosine: Tensor, margin: float) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    cos_m, sin_m = math.cos(margin), math.sin(margin)
    sine = torch.rsub(cosine, 1).mul_(cosine + 1).clamp_(min=0).sqrt_()
    widened = cosine >= (-cos_m if margin >= 0 else -math.inf)
    value = torch.where(widened, (cosine * cos_m).sub_(sine, alpha=sin_m), cosine - margin * sin_m)
    return value, (sine, widened)


def _angular_margin_backward(
    grad: Tensor, needed: object, tensors: tuple[Tensor], kept: tuple[Tensor, Tensor], margin: float
) -> list[Tensor]:
    sine, widened = kept
    slope = (tensors[0] / F.threshold(sine, 0, math.inf)).mul_(math.sin(margin)).add_(math.cos(margin))
    return [grad * torch.where(widened, slope, 1)]


_angular_margin_by_hand = by_hand(_angular_margin, _angular_margin_forward, _angular_margin_backward)


def shifted_angle(cosine: Float[Tensor, " batch"], shift: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """Compute ``cos(clip(θ + g, 0, π))`` (AdaFace); a clipped angle gets no gradient.

    Args:
        cosine: As for `wider_angle`.
        shift: g in [-π, π] radians, one per sample ``[B]``.

    >>> shifted_angle(torch.tensor([0.0, 0.0, 1.0, -1.0]), torch.tensor([0.5, -0.5, -0.5, 0.5]))
    tensor([-0.4794,  0.4794,  1.0000, -1.0000])
    """
    cos_g, shifted = shift.cos(), wider_angle(cosine, shift)
    # θ + g < 0 and θ + g > π in terms of cosines: θ < −g and θ > π − g.
    return torch.where((shift < 0) & (cosine > cos_g), 1, torch.where((shift > 0) & (cosine < -cos_g), -1, shifted))


def multiplied_angle(cosine: Float[Tensor, " batch"], margin: int) -> Float[Tensor, " batch"]:
    """Compute ``ψ(θ) = (−1)^j cos(mθ) − 2j`` for θ in ``[jπ/m, (j+1)π/m]``, which falls from 0 to π (A-softmax).

    ``cos(mθ)`` is the Chebyshev polynomial ``T_m(cos θ)``, which avoids arccos and its infinite gradient at ±1.

    Args:
        cosine: As for `wider_angle`.
        margin: m, a whole number of at least 1.

    >>> multiplied_angle(torch.tensor([1.0, 0.0, -1.0]), 4)
    tensor([ 1., -3., -7.])
    """
    before, polynomial = torch.ones_like(cosine), cosine
    for _ in range(margin - 1):
        before, polynomial = polynomial, 2 * cosine * polynomial - before
    passed = torch.zeros_like(cosine)  # j, the number of multiples of π/m below the angle
    for j in range(1, margin):
        passed = passed + (cosine < math.cos(j * math.pi / margin))
    return (1 - 2 * (passed % 2)) * polynomial - 2 * passed


def _cos_sin(angle: float | Tensor) -> tuple[float, float] | tuple[Tensor, Tensor]:
    return (angle.cos(), angle.sin()) if isinstance(angle, Tensor) else (math.cos(angle), math.sin(angle))
