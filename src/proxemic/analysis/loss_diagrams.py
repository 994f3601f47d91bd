"""Draw which pairs six losses pull together and push apart, as in figure 2 of the warping paper."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from proxemic.analysis.drawing import new_figure
from proxemic.analysis.landscape import Landscape, WarpPotential, find_minimum

PULL, PUSH, COUPLED = "#d62728", "#1f77b4", "#c020c0"
SHAPES = "os^"

# Three classes: an anchor (the first), its positive, and two embeddings of each other class.
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
EMBEDDINGS = torch.tensor(
    [[-1.6, 0.4], [-2.6, -0.9], [1.7, 1.9], [0.4, 2.6], [1.9, -1.3], [0.6, -2.4]], dtype=torch.float64
)
PROXIES = torch.tensor([[-1.9, -0.4], [1.2, 2.0], [1.2, -2.0]], dtype=torch.float64)
WARP = WarpPotential(1.5, 0.65, 1.5)
MARGIN, ALPHA = 5.0, 2.0  # no pair satisfies the margin, so that all pairs have a force

_OWN = LABELS.unsqueeze(1) == torch.arange(len(PROXIES))


def _proxy_anchor(_: Tensor, to_proxies: Tensor) -> Tensor:
    own, others = (ALPHA * to_proxies).exp() * _OWN, (-ALPHA * to_proxies).exp() * ~_OWN
    return own.sum(0).log1p().mean() + others.sum(0).log1p().mean()


def _warped(_: Tensor, to_proxies: Tensor) -> Tensor:
    others = (-to_proxies).masked_fill(_OWN, -torch.inf).logsumexp(1)
    return torch.nn.functional.softplus(WARP(to_proxies[_OWN]) + others).sum()


DIAGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a) Triplet": lambda pairs, _: (pairs[0, 1] - pairs[0, 2] + MARGIN).relu(),
    "b) N-Pair": lambda pairs, _: (pairs[0, 1] - pairs[0, [2, 4]]).exp().sum().log1p(),
    "c) Lifted Structure": lambda pairs, _: (pairs[0, 1] + (MARGIN - pairs[:2, 2:]).flatten().logsumexp(0)).relu(),
    "d) Proxy-NCA": lambda _, to_proxies: to_proxies[0, 0] + (-to_proxies[0, 1:]).logsumexp(0),
    "e) Proxy-Anchor": _proxy_anchor,
    "f) Warped softmax": _warped,
}
"""Losses of the distances between embeddings ``[6, 6]`` and to the proxies ``[6, 3]``.

Similarities are negative distances in the plane, instead of the inner products and cosines of the papers of N-Pair and
Proxy-Anchor.
"""


def pair_forces(name: str) -> tuple[Float[Tensor, "6 6"], Float[Tensor, "6 3"]]:
    """Compute a loss's derivatives in the distances between embeddings and to proxies; positive ones are pulls."""
    pairs = torch.cdist(EMBEDDINGS, EMBEDDINGS).requires_grad_()
    to_proxies = torch.cdist(EMBEDDINGS, PROXIES).requires_grad_()
    value = DIAGRAMS[name](pairs, to_proxies)
    by_pair, by_proxy = torch.autograd.grad(value, (pairs, to_proxies), materialize_grads=True)
    return (by_pair + by_pair.T).triu(1), by_proxy


def plot_loss_diagrams() -> tuple[Any, list[tuple[str, str, int, int, float]]]:
    """Draw the pulls (red) and pushes (blue) of six losses; also return loss, kind, ends and force of each line."""
    figure = new_figure(11, 7.4)
    rows = []
    for axes, name in zip(figure.subplots(2, 3).flat, DIAGRAMS, strict=True):
        for kind, ends, forces in zip(("embedding", "proxy"), (EMBEDDINGS, PROXIES), pair_forces(name), strict=True):
            for i, j in forces.nonzero().tolist():
                force = forces[i, j].item()
                rows.append((name, kind, i, j, force))
                width = 0.6 + 3 * abs(force) / forces.abs().max().item()
                line = zip(EMBEDDINGS[i].tolist(), ends[j].tolist(), strict=True)
                axes.plot(*line, color=PULL if force > 0 else PUSH, linewidth=width, alpha=0.75, zorder=1)
        if DIAGRAMS[name] is _warped:
            _draw_coupled(axes)
        for place, label in zip(EMBEDDINGS.tolist(), LABELS.tolist(), strict=True):
            edge = "black" if place == EMBEDDINGS[0].tolist() else "#777777"
            axes.plot(*place, SHAPES[label], color="white", markeredgecolor=edge, markersize=10, zorder=3)
        if not name.startswith(("a", "b", "c")):
            for label, place in enumerate(PROXIES.tolist()):
                axes.plot(*place, SHAPES[label], color="black", markersize=11, zorder=3)
        axes.set(xlim=(-5, 4.2), ylim=(-4.4, 4.4), aspect="equal", xticks=[], yticks=[])
        axes.set_title(name, fontsize=10)
    return figure, rows


def _draw_coupled(axes: Any) -> None:
    for label, target in enumerate(PROXIES):
        others = torch.cat((PROXIES[:label], PROXIES[label + 1 :]))
        minimum = find_minimum(Landscape(target, others, WARP))
        axes.plot(*minimum.place, SHAPES[label], color=COUPLED, markersize=6, zorder=3)
    places = EMBEDDINGS.clone().requires_grad_()
    value = _warped(torch.empty(0), torch.cdist(places, PROXIES))
    force = -torch.autograd.grad(value, places)[0]
    arrows = (force / force.norm(dim=1, keepdim=True)).T.tolist()
    axes.quiver(*EMBEDDINGS.T.tolist(), *arrows, color=COUPLED, angles="xy", scale_units="xy", scale=1, zorder=2)
