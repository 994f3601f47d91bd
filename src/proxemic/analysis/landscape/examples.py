"""The functions and the proxies of the warping paper's figures, by name."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from proxemic.analysis.landscape.potential import Function, Landscape, WarpPotential
from proxemic.losses import Power
from proxemic.losses.checks import check_positive

PAPER_WARP = WarpPotential(alpha=3.0, k1=0.65, k2=1.5)
"""The warp of figure 3."""

# Between neighbouring proxies: the paper does not tell its own, but alpha = 3 fits this one.
_SIDE = 4.0

TOY_EMBEDDINGS = ((-1.3, 0.3), (-0.4, 1.9), (-0.6, -1.9), (-3.9, 1.9), (-4.6, -0.6), (-3.2, -2.5))
"""Embeddings of a class whose proxy is at (0, 0), nearer than 3 and farther, for a plot of the forces."""


def polygon(corners: int, side: float) -> Float[Tensor, "corners 2"]:
    """Proxies at the corners of a regular polygon, the first at (0, 0) and the others to its right.

    Args:
        corners: Number of corners, at least 2.
        side: Distance between neighbours.

    >>> polygon(2, 4.0).tolist()
    [[0.0, 0.0], [4.0, 0.0]]
    """
    turn = math.pi + 2 * math.pi / corners * torch.arange(corners, dtype=torch.float64)
    places = side / (2 * math.sin(math.pi / corners)) * torch.stack((turn.cos(), turn.sin()), 1)
    return (places - places[0]).round(decimals=12) + 0.0


def named_functions(name: str, warp: WarpPotential = PAPER_WARP) -> tuple[str, Function, Function]:
    """A title, f1 and f2 of a pair of functions (warping paper, figure 3 and table III).

    Args:
        name: ``identity``, ``square``, ``square-root`` or ``power-P`` (both functions), ``times-K`` (``f1 = K·t``,
            ``f2 = t``), or ``warp`` (``f2 = t``).
        warp: f1 of ``warp``.

    Raises:
        ValueError: If there is no such name, or a number is not positive.

    >>> named_functions("power-1.5")[0], named_functions("times-0.97")[1](torch.tensor(100.0))
    ('f = t^1.5', tensor(97.))
    """
    fixed: dict[str, tuple[str, Function, Function]] = {
        "identity": ("f = t", torch.positive, torch.positive),
        "square": ("f = t²", torch.square, torch.square),
        "square-root": ("f = √t", torch.sqrt, torch.sqrt),
        "warp": (f"warp: α = {warp.alpha:g}, k1 = {warp.k1:g}, k2 = {warp.k2:g}", warp, torch.positive),
    }
    if name in fixed:
        return fixed[name]
    kind, _, number = name.partition("-")
    try:
        value = float(number) if kind in ("power", "times") else None
    except ValueError:
        value = None
    if value is None:
        raise ValueError(
            f"functions is {name}, but must be identity, square, square-root, warp, or as power-1.5 or times-0.97."
        )
    check_positive(kind, value)
    if kind == "times":
        return f"f1 = {value:g} t, f2 = t", lambda distance: value * distance, torch.positive
    return f"f = t^{value:g}", Power(value), Power(value)


def paper_landscapes() -> dict[str, dict[str, Landscape]]:
    """Landscapes of the four functions of figure 3 (``functions``), and of four classes as in figure 5 (``classes``).

    >>> {name: len(landscapes) for name, landscapes in paper_landscapes().items()}
    {'functions': 4, 'classes': 4}
    """
    two, four = polygon(2, _SIDE), polygon(4, _SIDE)
    functions = [named_functions(name) for name in ("identity", "square", "square-root", "warp")]
    pairs = {
        f"of these only classes 0 and {other}": Landscape(four[0], four[other : other + 1], PAPER_WARP)
        for other in (1, 2, 3)
    }
    return {
        "functions": {title: Landscape(two[0], two[1:], f1, f2) for title, f1, f2 in functions},
        "classes": {"the warp with four classes": Landscape(four[0], four[1:], PAPER_WARP), **pairs},
    }
