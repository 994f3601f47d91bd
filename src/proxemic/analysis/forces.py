"""Compute the forces of a loss on embeddings and proxies: the parts for two classes, and the alignment in training."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import functional_call

from proxemic.analysis.drawing import add_legend, draw_circle, integer_ticks, new_figure
from proxemic.analysis.landscape import Function, WarpPotential, named_functions
from proxemic.analysis.toy import Scene, plot_scene, reach_of
from proxemic.losses import ProxyLoss
from proxemic.losses.checks import check_count, check_positive

PULL, PUSH, COUPLED = "#d55e00", "#0072b2", "#aa3399"


@dataclass(frozen=True)
class Forces:
    """The negative gradient of each embedding's loss in four parts: forces on the embedding and on both proxies.

    Args:
        push: F1, the force on the embedding away from the other proxy.
        proxy_push: F2, the force on the other proxy away from the embedding.
        pull: F3, the force on the embedding towards its target proxy.
        proxy_pull: F4, the force on its target proxy towards the embedding.
    """

    push: Float[Tensor, "embeddings dim"]
    proxy_push: Float[Tensor, "embeddings dim"]
    pull: Float[Tensor, "embeddings dim"]
    proxy_pull: Float[Tensor, "embeddings dim"]

    @property
    def coupled(self) -> Float[Tensor, "embeddings dim"]:
        """F1 + F3, the total force on the embedding; with a warp, on the line beyond the target proxy, towards α."""
        return self.push + self.pull


def two_class_forces(
    embeddings: Float[Tensor, "embeddings dim"],
    target: Float[Tensor, " dim"],
    other: Float[Tensor, " dim"],
    f1: Function = torch.positive,
    f2: Function = torch.positive,
    *,
    temperature: float = 1.0,
) -> Forces:
    """Split ``−∇ log(1 + exp(T·f1(‖e − p_c‖) − T·f2(‖e − p_c'‖)))`` into four forces for each embedding e.

    Args:
        embeddings: Embeddings e of one class.
        target: Proxy p_c of that class.
        other: Proxy p_c' of the other class.
        f1: Elementwise function of the distance to the target proxy; the Δ of a warp has no gradient.
        f2: Elementwise function of the distance to the other proxy.
        temperature: Temperature T > 0.

    Raises:
        ValueError: If the temperature is not positive.

    Source: Warping paper, section III-A, F1 to F4, and equation 6.

    >>> found = two_class_forces(torch.tensor([[0.0, 0.0]]), torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0]))
    >>> found.push[:, 0], found.pull[:, 0]  # σ(1 − 3) each: on the line beyond the proxy they cancel
    (tensor([-0.1192]), tensor([0.1192]))
    """
    check_positive("temperature", temperature)
    with torch.enable_grad():
        # Each distance gets its own copy of the embeddings, which separates the parts of the gradient.
        near, far = (embeddings.detach().clone().requires_grad_() for _ in range(2))
        proxies = tuple(proxy.detach().expand_as(embeddings).clone().requires_grad_() for proxy in (target, other))
        logits = _of_distance(f1, near, proxies[0]) - _of_distance(f2, far, proxies[1])
        value = F.softplus(temperature * logits).sum()
        pull, push, proxy_pull, proxy_push = (
            -gradient for gradient in torch.autograd.grad(value, (near, far, *proxies), materialize_grads=True)
        )
    return Forces(push, proxy_push, pull, proxy_pull)


def _of_distance(
    function: Function, points: Float[Tensor, "embeddings dim"], proxies: Float[Tensor, "embeddings dim"]
) -> Float[Tensor, " embeddings"]:
    """Apply a function to the distances; on a proxy, where a root has an infinite slope, the gradient is 0."""
    distance = torch.linalg.vector_norm(points - proxies, dim=1)
    apart = distance > 0
    value = function(torch.where(apart, distance, 1))
    return torch.where(apart, value, function(torch.zeros_like(distance)).detach())


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

    All forces on an embedding are proportional to the probability of the wrong class, which differs by orders of
    magnitude between positions; so the arrows are in units of the embedding's push. The arrow on a proxy sums the means
    of F4 over its own embeddings and of F2 over the other embeddings, in the same units. Each class has a shape, and
    proxies are black. For a `WarpPotential`, a circle of radius α surrounds each proxy, and a diamond marks each
    minimum.

    Args:
        embeddings: Embeddings of both classes.
        labels: Their classes, 0 or 1.
        proxies: Proxies of class 0 and class 1.
        f1: As in `two_class_forces`.
        f2: As in `two_class_forces`.
        temperature: Temperature T > 0.
        title: Title of the plot.
        axes: Matplotlib axes to draw on; None makes a new figure.

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
            draw_circle(axes, target.tolist(), f1.alpha, "--", color="#999999", linewidth=0.9, zorder=0)
            minimum = target + f1.alpha * F.normalize(target - other, dim=0)
            axes.plot(*minimum, "D", color=COUPLED, markersize=5, zorder=1)
        for force, colour in ((parts.pull, PULL), (parts.push, PUSH), (parts.coupled, COUPLED)):
            _draw_arrows(axes, members, force / unit, colour)
        axes.plot(*members.T, marker, color="white", markeredgecolor="#444444", markersize=5, zorder=4)
        axes.plot(*target.tolist(), marker, color="black", markersize=10, zorder=4)
    _draw_arrows(axes, proxies, on_proxies, COUPLED)
    low, high = (corner.tolist() for corner in torch.cat((embeddings, proxies)).aminmax(dim=0))
    axes.set(xlim=(low[0] - 1.3, high[0] + 1.3), ylim=(low[1] - 1.3, high[1] + 1.3), aspect="equal")
    axes.set_title(title, fontsize=9, parse_math=False)
    axes.tick_params(labelsize=7)
    return axes


def _draw_arrows(axes: Any, places: Float[Tensor, "n 2"], arrows: Float[Tensor, "n 2"], colour: str) -> None:
    together = colour == COUPLED
    axes.quiver(
        *places.T, *arrows.T, color=colour, angles="xy", scale_units="xy", scale=1, width=0.006 if together else 0.004,
        minlength=0.5, headwidth=3.6, headlength=3.6, headaxislength=3.2, zorder=3 if together else 2,
    )  # fmt: skip


def draw_forces(
    embeddings: Float[Tensor, "embeddings 2"],
    labels: Int[Tensor, " embeddings"],
    proxies: Float[Tensor, "2 2"],
    warp: WarpPotential,
) -> Any:
    """Draw `plot_forces` without and with a warp, side by side, as in figure 1 of the warping paper."""
    figure = new_figure(12, 4.3)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    titles = {"f1 = t": torch.positive, f"f1 = {named_functions('warp', warp)[0]}": warp}
    for axes, (title, f1) in zip(panels, titles.items(), strict=True):
        plot_forces(embeddings, labels, proxies, f1, title=title, axes=axes)
    point = {"linestyle": "", "marker": "o"}
    styles = {
        "pull to the target proxy (F3)": {"color": PULL, "linewidth": 3},
        "push from the other (F1)": {"color": PUSH, "linewidth": 3},
        "both together": {"color": COUPLED, "linewidth": 3},
        "proxy": point | {"color": "black"},
        "embedding": point | {"color": "white", "markeredgecolor": "#444444"},
        "minimum": point | {"color": COUPLED, "marker": "D"},
        "distance α": {"linestyle": "--", "color": "#999999"},
    }
    add_legend(figure, styles.items(), loc="outside upper center", ncols=7, fontsize=9)
    figure.supxlabel("place, in units of distance; arrows: forces, in units of the embedding's push", fontsize=9)
    return figure


ON_EMBEDDINGS, ON_PROXIES = "#aa3399", "black"
_ARROWS, _PANELS = 60, 3  # arrows per panel, panels per training


@dataclass(frozen=True, eq=False)
class TrainingForces:
    """Minus the gradient of a loss: the forces on embeddings (F1 + F3) and on proxies (the sums of F4 and F2).

    ``alignment`` is the cosine between the force on each embedding and the force on its target proxy; NaN if one is 0.
    """

    on_embeddings: Float[Tensor, "images dim"]
    on_proxies: Float[Tensor, "classes dim"]
    alignment: Float[Tensor, " images"]

    @property
    def mean_alignment(self) -> float:
        """The mean over the embeddings whose alignment is defined."""
        return float(self.alignment.nanmean())


def training_forces(loss: ProxyLoss, scene: Scene) -> TrainingForces:
    """Compute the forces of a loss with one proxy per class on a scene; the scene's proxies replace the loss's."""
    if scene.proxies is None or scene.proxies.shape[1] != 1:
        count = "no proxies" if scene.proxies is None else f"{scene.proxies.shape[1]} proxies per class"
        raise ValueError(f"there are {count}, but the alignment needs one proxy per class: give such a loss.")
    loss = copy.deepcopy(loss).eval()
    x, w = (tensor.detach().clone().requires_grad_() for tensor in (scene.embeddings, scene.proxies))
    with torch.enable_grad():
        value = functional_call(loss, {"proxies": w}, (x, scene.labels))
        on_embeddings, on_proxies = (-gradient for gradient in torch.autograd.grad(len(x) * value, (x, w)))
    on_proxies = on_proxies.squeeze(1)
    alignment = F.cosine_similarity(on_embeddings, on_proxies[scene.labels], dim=1, eps=0)  # 0/0 without a force
    return TrainingForces(on_embeddings, on_proxies, alignment)


def descend(loss: ProxyLoss, scene: Scene, steps: int, rate: float) -> dict[int, Scene]:
    """Move embeddings and proxies along their forces, without a network; return the scene at each step from 0."""
    check_count("steps", steps, 1, "nothing moves without one")
    check_positive("rate", rate)
    film = {0: scene}
    for step in range(1, steps + 1):
        forces = training_forces(loss, scene)
        assert scene.proxies is not None
        proxies = scene.proxies + rate * forces.on_proxies.unsqueeze(1)
        film[step] = scene = Scene(scene.embeddings + rate * forces.on_embeddings, scene.labels, proxies)
    return film


def plot_force_alignment(
    films: Mapping[str, Mapping[int, tuple[Scene, TrainingForces]]], *, unit: str = "epoch"
) -> Any:
    """Draw a row per training: the forces at the start, middle and end, and the mean alignment by epoch."""
    figure = new_figure(15, 3.9 * len(films))
    for row, (name, film) in enumerate(films.items()):
        epochs = sorted(film)
        last = film[epochs[-1]][0].embeddings
        basis = torch.eye(last.shape[1], 3)
        if last.shape[1] > 3:
            basis = torch.linalg.svd(last - last.mean(0), full_matrices=False).Vh[:3].T
        chosen = torch.linspace(0, len(epochs) - 1, min(_PANELS, len(epochs))).round().long().tolist()
        for column, epoch in enumerate(epochs[place] for place in chosen):
            axes = figure.add_subplot(len(films), _PANELS + 1, row * (_PANELS + 1) + column + 1, projection="3d")
            _draw(axes, *film[epoch], basis)
            title = f"{unit} {epoch}: mean cosine {film[epoch][1].mean_alignment:+.2f}"
            axes.set_title(f"{name}\n{title}" if column == 0 else title, fontsize=9, parse_math=False)
        axes = figure.add_subplot(len(films), _PANELS + 1, (row + 1) * (_PANELS + 1))
        axes.plot(epochs, [film[epoch][1].mean_alignment for epoch in epochs], ".-", color=ON_EMBEDDINGS)
        axes.axhline(0, color="#999999", linewidth=0.8)
        axes.set(ylim=(-1.05, 1.05), xlabel=unit, ylabel="cosine of the forces on\nembedding and target proxy, mean")
        integer_ticks(axes.xaxis)
    return figure


def _draw(axes: Any, scene: Scene, forces: TrainingForces, basis: Float[Tensor, "dim 3"]) -> None:
    assert scene.proxies is not None
    places, proxies = scene.embeddings @ basis, scene.proxies[:, 0] @ basis
    flat = Scene(places, scene.labels, proxies[:, None])
    reach = reach_of([flat])
    plot_scene(axes, flat, reach)
    some = torch.linspace(0, len(places) - 1, min(_ARROWS, len(places))).long().unique()
    # All arrows have the same length, because forces differ by orders of magnitude.
    for at, force, paint, width in (
        (places[some], forces.on_embeddings[some], ON_EMBEDDINGS, 0.9),
        (proxies, forces.on_proxies, ON_PROXIES, 1.8),
    ):
        arrows = 0.3 * reach * F.normalize(force, dim=1, eps=1e-30) @ basis
        axes.quiver(*at.T.tolist(), *arrows.T.tolist(), color=paint, linewidth=width, arrow_length_ratio=0.3)
