"""Plots of the warping paper's lemma and proposition, as its figures 11 and 12."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from proxemic.analysis.drawing import new_figure
from proxemic.analysis.landscape.potential import WarpPotential

OUTWARD, INWARD, MARK = "#0072b2", "#d55e00", "#aa3399"
OWN, OTHER = (0.0, 0.0), (4.0, 0.0)
_FALLS = 1.5  # where t·exp(−t/1.5) begins to fall


def plot_lemma() -> tuple[Any, list[tuple[float, float, float]]]:
    """Draw Lemma III.1: on a circle around the other proxy the loss depends on the distance from the own proxy.

    Left, for a growing f: e_*, the nearest place to p_c, is the minimum, and e^*, the farthest, the maximum. Right, for
    ``f = t·exp(−t/1.5)``: e_1 is the e_* of its circle, but e_2', which is farther from p_c, has a smaller f.

    Returns:
        The figure, and the angle around p_c', ``f = t`` and the falling f at the places of the left and right circle.

    Source: Figure 11 of the warping paper, by its caption and appendix B-A.

    >>> figure, rows = plot_lemma()
    >>> min(rows, key=lambda row: row[1])[0], abs(min(rows, key=lambda row: row[2])[0]) > 0.1
    (0.0, True)
    """
    figure = new_figure(10.5, 4.4)
    left, right = figure.subplots(1, 2)
    turn = torch.linspace(-math.pi, math.pi, 361, dtype=torch.float64)
    turn[180] = 0
    first, second = 2.6, 5.8  # radii around p_c': on the near side of p_c, and beyond it
    growing = _circle(left, turn, first, lambda t: t)
    left.plot(OTHER[0] - first, 0, "o", color=OUTWARD, markersize=9)
    left.annotate("$e_*$: minimum", (OTHER[0] - first, 0), (-4, 10), textcoords="offset points", ha="right")
    left.plot(OTHER[0] + first, 0, "o", color=INWARD, markersize=9)
    left.annotate("$e^*$: maximum", (OTHER[0] + first, 0), (8, 8), textcoords="offset points")
    left.set_title("f grows: extrema on the line (⟹)", fontsize=9)

    falling = _circle(right, turn, second, _falling)
    near, far = second - OTHER[0], 3.4  # distances of e_1 and e_2 from p_c
    right.plot(far * turn.cos(), far * turn.sin(), "--", color="#999999", linewidth=1)
    # ‖e − p_c'‖ = second and ‖e − p_c‖ = far.
    x = (far**2 - second**2 + OTHER[0] ** 2) / (2 * OTHER[0])
    crossing = (x, math.sqrt(far**2 - x**2))
    for name, place, aside in (
        ("$e_1$", (-near, 0.0), (10, -32)),
        ("$e_2$", (-far, 0.0), (-6, 8)),
        ("$e_2'$", crossing, (-14, 6)),
    ):
        value = float(_falling(torch.tensor(math.dist(place, OWN))))
        right.plot(*place, "o", color=MARK, markersize=8)
        right.annotate(f"{name}: f = {value:.3f}", place, aside, textcoords="offset points", ha="right")
    right.set_title(f"f = t·exp(−t/{_FALLS}): $e_1$ is not the minimum of its circle (⟸)", fontsize=9)
    for axes in (left, right):
        axes.axhline(0, color="#bbbbbb", linewidth=1, zorder=0)
        for name, place in (("$p_c$", OWN), ("$p_{c'}$", OTHER)):
            axes.plot(*place, "ks", markersize=8)
            axes.annotate(name, place, (6, -14), textcoords="offset points")
        axes.set(aspect="equal", xlim=(-9.5, 12.5), ylim=(-6.5, 6.5), xticks=[], yticks=[])
    rows = list(zip(turn.tolist(), growing.tolist(), falling.tolist(), strict=True))
    return figure, rows


def plot_proposition(warp: WarpPotential) -> tuple[Any, list[tuple[float, ...]]]:
    """Draw Proposition III.2: on the line beyond the own proxy the minimum is where the slopes of f1 and f2 cross.

    Args:
        warp: f1; f2 is the distance itself.

    Returns:
        The figure, and rows of the place on the line, ``f1 − f2``, and the slopes of f1 and f2.

    Source: Figure 12 of the warping paper, by its caption and appendix B-B.

    >>> _, rows = plot_proposition(WarpPotential(3.0, 0.65, 1.5))
    >>> min(rows, key=lambda row: row[1])[0]
    -3.0
    """
    figure = new_figure(7.5, 4.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    span = 2 * warp.alpha or 1.0
    place = -span * torch.arange(401, dtype=torch.float64) / 400
    near, far = place.abs(), OTHER[0] - place
    value = warp(near) - far
    slope = torch.where(near < warp.alpha, warp.k1, warp.k2)
    for colour, part, name in (
        (OUTWARD, near <= warp.alpha, "df1/dt < df2/dt: downhill is outward"),
        (INWARD, near >= warp.alpha, "df1/dt > df2/dt: downhill is inward"),
    ):
        upper.plot(place[part].tolist(), value[part].tolist(), color=colour, linewidth=2.5, label=name)
        lower.plot(place[part].tolist(), slope[part].tolist(), color=colour, linewidth=2.5)
    least = int(value.argmin())
    upper.plot(place[least].item(), value[least].item(), "D", color=MARK, label=f"minimum at α = {warp.alpha:g}")
    for name, at in (("$e_1$", -1.6 * warp.alpha), ("$e_0$", -0.5 * warp.alpha)):
        height = float(warp(torch.tensor(-at))) - (OTHER[0] - at)
        upper.plot(at, height, "o", color="#444444")
        upper.annotate(name, (at, height), (8, -12), textcoords="offset points")
    own = (0, value[0].item())
    upper.plot(*own, "ks")
    upper.annotate("$p_c$ (and $p_{c'}$ to its right)", own, (-8, -4), textcoords="offset points", ha="right")
    lower.axhline(1, color="#444444", linestyle="--", linewidth=1)
    lower.set_ylabel("slopes: f1,\nf2 dashed", fontsize=8)
    upper.set_ylabel("f1 − f2")
    lower.set_xlabel("place on the line through the proxies, in units of distance")
    upper.legend(frameon=False, fontsize=8)
    rows = torch.stack((place, value, slope, torch.ones_like(place)), 1).tolist()
    return figure, [tuple(row) for row in rows]


def _circle(axes: Any, turn: Float[Tensor, " n"], radius: float, f: Any) -> Float[Tensor, " n"]:
    """A circle around the other proxy in the colours of f at its places' distances to the own one."""
    x, y = OTHER[0] - radius * turn.cos(), radius * turn.sin()
    values = f(torch.hypot(x, y))
    drawn = axes.scatter(x.tolist(), y.tolist(), c=values.tolist(), s=6, cmap="viridis", zorder=1)
    axes.figure.colorbar(drawn, ax=axes, shrink=0.8).set_label("f(‖e − p_c‖)")
    return values


def _falling(t: Tensor) -> Tensor:
    return t * (-t / _FALLS).exp()
