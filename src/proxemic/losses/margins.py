"""Margins on the cosine to the own class: functions of the positive score alone, so that they cost nothing."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["angular_margin", "multiplied_angle", "shifted_angle", "wider_angle"]


def wider_angle(cosine: Float[Tensor, " batch"], angle: float | Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """``cos(θ + g)``, which rises again beyond ``θ + g = π``.

    Args:
        cosine: ``cos θ`` in [-1, 1]; rounding beyond it is allowed.
        angle: g in radians, one for all or one a sample.

    The gradient is exact, also through ``sin θ = √(1 − cos²θ)``. Where ``cos θ = ±1``, ``sin θ`` gets none.

    >>> wider_angle(torch.tensor([1.0, 0.0, -1.0]), 0.5)
    tensor([ 0.8776, -0.4794, -0.8776])
    """
    cos_g, sin_g = _cos_sin(angle)
    squared = (1 - cosine) * (1 + cosine)
    inside = squared > 0
    sine = torch.where(inside, torch.where(inside, squared, 1).sqrt(), 0)
    return cosine * cos_g - sine * sin_g


def angular_margin(cosine: Float[Tensor, " batch"], margin: float | Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """``cos(θ + m)`` while ``θ + m ≤ π``, else ``cos θ − m sin m``, which goes on falling (ArcFace).

    Args:
        cosine: ``cos θ`` in [-1, 1]; rounding beyond it is allowed.
        margin: m in [0, π/2] radians, one for all or one a sample.

    The gradient is exact (see `wider_angle`); insightface's arcface_torch leaves it out.

    >>> angular_margin(torch.tensor([1.0, 0.0, -1.0]), 0.5)
    tensor([ 0.8776, -0.4794, -1.2397])
    """
    cos_m, sin_m = _cos_sin(margin)
    # θ + m ≤ π, by cosines: θ ≤ π − m.
    return torch.where(cosine >= -cos_m, wider_angle(cosine, margin), cosine - margin * sin_m)


def shifted_angle(cosine: Float[Tensor, " batch"], shift: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """``cos(clip(θ + g, 0, π))``: an angle moved either way, which stops at 0 and π (AdaFace).

    Args:
        cosine: ``cos θ`` in [-1, 1]; rounding beyond it is allowed.
        shift: g in [-π, π] radians, one a sample.

    Where the clip holds there is no gradient.

    >>> shifted_angle(torch.tensor([0.0, 0.0, 1.0, -1.0]), torch.tensor([0.5, -0.5, -0.5, 0.5]))
    tensor([-0.4794,  0.4794,  1.0000, -1.0000])
    """
    cos_g, moved = shift.cos(), wider_angle(cosine, shift)
    # θ + g < 0 and θ + g > π, by cosines: θ < −g and θ > π − g.
    return torch.where((shift < 0) & (cosine > cos_g), 1, torch.where((shift > 0) & (cosine < -cos_g), -1, moved))


def multiplied_angle(cosine: Float[Tensor, " batch"], margin: int) -> Float[Tensor, " batch"]:
    """``ψ(θ) = (−1)^j cos(mθ) − 2j`` for θ in ``[jπ/m, (j+1)π/m]``: cos(mθ), made to fall all the way (A-softmax).

    ``cos(mθ)`` is the Chebyshev polynomial ``T_m(cos θ)``: no arccos, whose gradient is infinite at ±1.

    Args:
        cosine: ``cos θ`` in [-1, 1]; rounding beyond it is allowed.
        margin: m, a whole number of at least 1.

    >>> multiplied_angle(torch.tensor([1.0, 0.0, -1.0]), 4)
    tensor([ 1., -3., -7.])
    """
    before, polynomial = torch.ones_like(cosine), cosine
    for _ in range(margin - 1):
        before, polynomial = polynomial, 2 * cosine * polynomial - before
    passed = torch.zeros_like(cosine)  # j: how many of π/m, 2π/m, … the angle has passed
    for j in range(1, margin):
        passed = passed + (cosine < math.cos(j * math.pi / margin))
    return (1 - 2 * (passed % 2)) * polynomial - 2 * passed


def _cos_sin(angle: float | Tensor) -> tuple[float, float] | tuple[Tensor, Tensor]:
    return (angle.cos(), angle.sin()) if isinstance(angle, Tensor) else (math.cos(angle), math.sin(angle))
