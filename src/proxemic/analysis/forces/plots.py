"""Plots of the forces on embeddings of two classes, as figure 1 of the warping paper."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from proxemic.analysis.drawing import add_legend, new_figure
from proxemic.analysis.forces.two_classes import two_class_forces
from proxemic.analysis.landscape.potential import Function, WarpPotential

PULL, PUSH, COUPLED = "#d55e00", "#0072b2", "#aa3399"


def plot_forces(
    embeddings: Float[Tensor, "embeddings 2"],
    labels: Int[Tensor, " embeddings"],
    proxies: Float[Tensor, "2 2"],
    f1: Function = torch.positive,
    f2: Function = torch.positive,
    *,
    temperature: float = 1.0,
    title: str = "",
    axes: Any = None,
) -> Any:
    """Draw the forces on embeddings of two classes as arrows: the pull, the push, and their sum.

    The forces on an embedding all grow with the probability of the wrong class, which differs by orders of magnitude
    from place to place; arrows are therefore in units of its push. Those on the proxies are the mean of F4 over their
    own embeddings and of F2 over the others', in the same units. Shapes are classes, proxies are black. Around the
    proxies of a `WarpPotential` a circle has the radius α, and a diamond is where the minimum lies.

    Args:
        embeddings: Places of the embeddings.
        labels: Class of each, 0 or 1.
        proxies: Proxies of the classes 0 and 1.
        f1: As in `two_class_forces`.
        f2: As in `two_class_forces`.
        temperature: As in `two_class_forces`.
        title: Title of the plot.
        axes: Matplotlib axes to draw on; None makes a new figure.

    Raises:
        ValueError: As `two_class_forces`.

    >>> places = torch.tensor([[-2.0, 0.0], [6.0, 1.0]])
    >>> axes = plot_forces(places, torch.tensor([0, 1]), torch.tensor([[0.0, 0.0], [4.0, 0.0]]), title="no warp")
    >>> axes.get_title()
    'no warp'
    """
    axes = new_figure(5, 4).subplots() if axes is None else axes
    on_proxies = torch.zeros_like(proxies)
    for label, marker in ((0, "o"), (1, "s")):
        members, target, other = embeddings[labels == label], proxies[label], proxies[1 - label]
        parts = two_class_forces(members, target, other, f1, f2, temperature=temperature)
        unit = parts.push.norm(dim=1, keepdim=True).clamp(min=torch.finfo(members.dtype).tiny)
        on_proxies[label] += (parts.proxy_pull / unit).mean(0)
        on_proxies[1 - label] += (parts.proxy_push / unit).mean(0)
        if isinstance(f1, WarpPotential):
            _draw_alpha(axes, target, other, f1.alpha)
        for force, colour in ((parts.pull, PULL), (parts.push, PUSH), (parts.coupled, COUPLED)):
            _draw_arrows(axes, members, force / unit, colour)
        axes.plot(*members.T, marker, color="white", markeredgecolor="#444444", markersize=5, zorder=4)
        axes.plot(*target.tolist(), marker, color="black", markersize=10, zorder=4)
    _draw_arrows(axes, proxies, on_proxies, COUPLED)
    low, high = torch.cat((embeddings, proxies)).aminmax(dim=0)
    for set_limits, least, most in zip((axes.set_xlim, axes.set_ylim), low.tolist(), high.tolist(), strict=True):
        set_limits(least - 1.3, most + 1.3)
    axes.set_aspect("equal")
    axes.set_title(title, fontsize=9, parse_math=False)
    axes.tick_params(labelsize=7)
    return axes


def _draw_arrows(axes: Any, places: Float[Tensor, "n 2"], arrows: Float[Tensor, "n 2"], colour: str) -> None:
    together = colour == COUPLED
    axes.quiver(
        *places.T, *arrows.T, color=colour, angles="xy", scale_units="xy", scale=1, width=0.006 if together else 0.004,
        minlength=0.5, headwidth=3.6, headlength=3.6, headaxislength=3.2, zorder=3 if together else 2,
    )  # fmt: skip


def _draw_alpha(axes: Any, target: Float[Tensor, " 2"], other: Float[Tensor, " 2"], alpha: float) -> None:
    turn = torch.linspace(0, 2 * math.pi, 181)
    axes.plot(
        target[0] + alpha * turn.cos(), target[1] + alpha * turn.sin(), "--", color="#999999", linewidth=0.9, zorder=0
    )
    axes.plot(*(target + alpha * F.normalize(target - other, dim=0)), "D", color=COUPLED, markersize=5, zorder=1)


def draw_forces(
    embeddings: Float[Tensor, "embeddings 2"],
    labels: Int[Tensor, " embeddings"],
    proxies: Float[Tensor, "2 2"],
    warp: WarpPotential,
) -> Any:
    """A figure of `plot_forces` without a warp and with it, side by side, as figure 1 of the warping paper.

    >>> proxies = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
    >>> figure = draw_forces(proxies - 1, torch.tensor([0, 1]), proxies, WarpPotential(3.0, 0.65, 1.5))
    >>> [axes.get_title() for axes in figure.axes]
    ['f1 = t', 'f1 = warp: α = 3, k1 = 0.65, k2 = 1.5']
    """
    figure = new_figure(12, 4.3)
    from matplotlib.lines import Line2D

    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    titles = {"f1 = t": torch.positive, f"f1 = warp: α = {warp.alpha:g}, k1 = {warp.k1:g}, k2 = {warp.k2:g}": warp}
    for axes, (title, f1) in zip(panels, titles.items(), strict=True):
        plot_forces(embeddings, labels, proxies, f1, title=title, axes=axes)
    names = {"pull to the own proxy (F3)": PULL, "push from the other (F1)": PUSH, "both together": COUPLED}
    handles = [Line2D([], [], color=colour, linewidth=3, label=name) for name, colour in names.items()]
    handles += [
        Line2D([], [], linestyle="", marker=marker, color=face, markeredgecolor=edge, label=name)
        for name, marker, face, edge in (
            ("proxy", "o", "black", "black"),
            ("embedding", "o", "white", "#444444"),
            ("minimum", "D", COUPLED, COUPLED),
        )
    ]
    handles.append(Line2D([], [], linestyle="--", color="#999999", label="distance α"))
    add_legend(figure, handles=handles, loc="outside upper center", ncols=7, fontsize=9)
    figure.supxlabel("place, in units of distance; arrows: forces, in units of the embedding's push", fontsize=9)
    return figure
