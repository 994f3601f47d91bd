"""Compute, minimise and plot the loss of one embedding as a function of its place (warping paper, section III)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64
from torch import Tensor

from proxemic.analysis.drawing import add_legend, draw_circle, new_figure
from proxemic.losses import EuclideanSoftmaxLoss, Power, WarpedSoftmaxLoss
from proxemic.losses.checks import check_positive
from proxemic.losses.warped_softmax import check_warp, warp

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class WarpPotential:
    """The continuous function with the gradient of the warp f1: ``k1·t`` for ``t < α``, then ``k2·t + (k1 − k2)·α``.

    The term Δ of `warp` has a value but no gradient, so that the value of the loss does not show where training goes.
    This function is continuous and has the slope of `warp` everywhere, for any ``delta_scale``. Both move an embedding
    in the same direction, for any number of classes: the gradient is ``T·σ(z)·(f1'·u − Σ_j q_j·f2'·u_j)``, where u are
    the unit vectors away from the proxies, ``q = softmax_j(−T·f2(t_j))``, and only z (see `Landscape.logits`) depends
    on Δ.

    Args:
        alpha: Distance α ≥ 0.
        k1: Slope below α, in (0, 1].
        k2: Slope from α on, ≥ 1.

    Raises:
        ValueError: If an argument is out of range.

    Source: Warping paper, equation 7 without Δ, lowered by ``(1 − k1)·α`` from α on.

    >>> WarpPotential(alpha=2.0, k1=0.5, k2=2.0)(torch.tensor([0.0, 1.0, 2.0, 3.0]))
    tensor([0.0000, 0.5000, 1.0000, 3.0000])
    """

    alpha: float
    k1: float
    k2: float

    def __post_init__(self) -> None:
        check_warp(self.alpha, self.k1, self.k2)

    @property
    def at_proxy(self) -> float:
        """The slope at distance 0."""
        return self.k1 if self.alpha else self.k2

    def __call__(self, distance: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        beyond = self.k2 * distance + (self.k1 - self.k2) * self.alpha
        return torch.where(distance < self.alpha, self.k1 * distance, beyond)


@dataclass(frozen=True)
class Landscape:
    """The loss ``log(1 + Σ_j exp(T·f1(‖e − p_c‖) − T·f2(‖e − p_j‖)))`` as a function of e, in float64.

    Args:
        target: Proxy p_c of the embedding's class.
        others: Proxies p_j of the other classes, at least one.
        f1: Elementwise function of the distance to the target proxy; give a warp as `WarpPotential`.
        f2: Elementwise function of the distances to the other proxies.
        temperature: Temperature T > 0.
        heights: Distance of each other proxy from the plane of the landscape; ``others`` then holds the nearest points
            of the plane, so that ``‖e − p_j‖² = ‖e − others_j‖² + heights_j²``. None if all proxies lie in the plane.

    Raises:
        ValueError: If there is no other proxy, one coincides with the target proxy, or the temperature is not positive.

    Source: Warping paper, equations 5, 6 and 8.

    >>> landscape = Landscape(torch.zeros(2), torch.tensor([[4.0, 0.0]]))
    >>> landscape(torch.tensor([[2.0, 0.0], [0.0, 0.0]]))  # half way: log 2; on the target proxy: log(1 + e^−4)
    tensor([0.6931, 0.0181], dtype=torch.float64)
    """

    target: Float[Tensor, " dim"]
    others: Float[Tensor, "others dim"]
    f1: Function = torch.positive
    f2: Function = torch.positive
    temperature: float = 1.0
    heights: Float[Tensor, " others"] | None = None

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)
        if len(self.others) == 0:
            raise ValueError("others hold no proxy, but a loss needs a proxy of another class: give one.")
        if not self.spacing > 0:
            raise ValueError("A proxy of others lies on the target proxy: give it another place.")

    def logits(self, points: Float[Tensor, "points dim"]) -> Float[Tensor, " points"]:
        """Compute ``z = T·f1 + LSE_j(−T·f2)``; the loss ``log(1 + e^z)`` has its extrema at the same places."""
        target, others = self.target.double(), self.others.double()
        values = []
        for part in points.double().split(max(1, 2**22 // len(others))):  # a class may have thousands of others
            near = torch.linalg.vector_norm(part - target, dim=1)
            far = torch.cdist(part, others, compute_mode="donot_use_mm_for_euclid_dist")
            if self.heights is not None:
                far = torch.hypot(far, self._heights)
            values.append(self.temperature * self.f1(near) + (-self.temperature * self.f2(far)).logsumexp(1))
        return torch.cat(values)

    def __call__(self, points: Float[Tensor, "points dim"]) -> Float[Tensor, " points"]:
        return F.softplus(self.logits(points))

    @property
    def spacing(self) -> float:
        """The distance from the target proxy to the nearest other proxy."""
        apart = (self.others.double() - self.target.double()).square().sum(1)
        return (apart + self._heights.square()).min().sqrt().item()

    @property
    def in_plane(self) -> Float[Tensor, "shown dim"]:
        """The other proxies that lie in the plane."""
        return self.others[self._heights <= 1e-6 * self.spacing]

    @property
    def _heights(self) -> Float64[Tensor, " others"]:
        return self.others.new_zeros(len(self.others)).double() if self.heights is None else self.heights.double()


@torch.no_grad()
def landscape_of(loss: EuclideanSoftmaxLoss | WarpedSoftmaxLoss, label: int = 0) -> Landscape:
    """Return the landscape of one class of a loss, in two dimensions.

    Embeddings of two dimensions keep their coordinates. With more dimensions, the landscape is a plane through the
    class's proxy, which becomes (0, 0), and its two nearest other proxies, the nearer one at (distance, 0). The values
    are exact: every point is a possible embedding, and all proxies enter with their true distances. A warp is replaced
    by its `WarpPotential`.

    Args:
        loss: A loss with one proxy per class.
        label: The class, in [0, num_classes).

    Raises:
        ValueError: If an argument is not allowed, or the embeddings have one dimension.

    >>> loss = EuclideanSoftmaxLoss(5, 16)
    >>> landscape = landscape_of(loss, 3)
    >>> torch.allclose(landscape(torch.zeros(1, 2)).float(), loss(loss.proxies[3], torch.tensor([3])))
    True
    """
    proxies = _proxies(loss)
    if loss.embedding_size == 1:
        raise ValueError("loss has embedding_size 1, but a landscape needs two dimensions: make one of size 2 or more.")
    if not 0 <= label < loss.num_classes:
        raise ValueError(f"label is {label}, but num_classes={loss.num_classes} allows 0 to {loss.num_classes - 1}.")
    target, others = proxies[label], torch.cat((proxies[:label], proxies[label + 1 :]))
    f1, transform = torch.positive if loss.f1 is None else loss.f1, loss.scoring.transform
    if isinstance(f1, partial) and f1.func is warp:
        f1 = WarpPotential(*(f1.keywords[name] for name in ("alpha", "k1", "k2")))
    f2 = torch.positive if transform is None else lambda distance: -transform(-distance)
    if loss.embedding_size == 2:
        return Landscape(target, others, f1, f2, loss.scoring.scale)
    away = others - target
    away = away[away.norm(dim=1).argsort(stable=True)]
    x = F.normalize(away[0], dim=0)
    # The second axis points to the second proxy. Without one off the first axis, its direction is arbitrary.
    towards = torch.cat((away[1:2], torch.eye(len(x), dtype=x.dtype)))
    rest = towards - torch.outer(towards @ x, x)
    y = rest[(rest.norm(dim=1) > 1e-6 * towards.norm(dim=1)).int().argmax()]
    axes = torch.stack((x, F.normalize(y - (y @ x) * x, dim=0)))
    flat = away @ axes.T
    heights = torch.linalg.vector_norm(away - flat @ axes, dim=1)
    return Landscape(torch.zeros(2, dtype=torch.float64), flat, f1, f2, loss.scoring.scale, heights)


def pushes_off_proxies(loss: EuclideanSoftmaxLoss | WarpedSoftmaxLoss) -> Float64[Tensor, " classes"]:
    """Measure how strongly the other classes push an embedding away from its target proxy, per class, in units of T.

    The push is ``‖Σ_j q_j·f2'(t_j)·u_j‖`` at p_c, where u_j are the unit vectors away from the other proxies and ``q``
    is the softmax of ``−T·f2(t_j)``. With ``f2 = t`` it is 1 if all classes push in the same direction, and smaller if
    they partly cancel. If it is below the slope of f1 at 0 (k1 of the warp), the proxy is a local minimum for any α.

    Raises:
        ValueError: If there are several proxies per class.

    >>> proxies = torch.tensor([[0.0, 0.0], [4.0, 0.0], [-4.0, 0.0]])
    >>> loss = EuclideanSoftmaxLoss(3, 2, init=lambda w: w.copy_(proxies.unsqueeze(1)))
    >>> pushes_off_proxies(loss).round(decimals=6)
    tensor([0., 1., 1.], dtype=torch.float64)
    """
    proxies, transform, scale = _proxies(loss), loss.scoring.transform, loss.scoring.scale
    everyone, pushes = torch.arange(len(proxies)), []
    for part in everyone.split(max(1, 2**22 // len(proxies))):
        place = proxies[part].requires_grad_()
        is_target = part.unsqueeze(1) == everyone
        score = -torch.where(is_target, 1.0, torch.cdist(place, proxies, compute_mode="donot_use_mm_for_euclid_dist"))
        score = score if transform is None else transform(score)
        pressure = (scale * score).masked_fill(is_target, -torch.inf).logsumexp(1).sum()
        pushes.append(torch.autograd.grad(pressure, place)[0].norm(dim=1) / scale)
    return torch.cat(pushes)


def _proxies(loss: EuclideanSoftmaxLoss | WarpedSoftmaxLoss) -> Float64[Tensor, "classes dim"]:
    if loss.proxies_per_class > 1:
        raise ValueError(
            f"loss has {loss.proxies_per_class} proxies per class, but a landscape needs one: make it with "
            "proxies_per_class=1."
        )
    return loss.proxies.detach().squeeze(1).double().cpu()


PAPER_WARP = WarpPotential(alpha=3.0, k1=0.65, k2=1.5)
"""The warp of figure 3."""

# Distance between neighbouring proxies, which the paper does not state; it fits alpha = 3.
_SIDE = 4.0

TOY_EMBEDDINGS = ((-1.3, 0.3), (-0.4, 1.9), (-0.6, -1.9), (-3.9, 1.9), (-4.6, -0.6), (-3.2, -2.5))
"""Embeddings of a class with proxy (0, 0), at distances below and above 3, for a plot of the forces."""


def polygon(corners: int, side: float) -> Float[Tensor, "corners 2"]:
    """Place proxies at the corners of a regular polygon, the first at (0, 0) and the others to its right."""
    turn = math.pi + 2 * math.pi / corners * torch.arange(corners, dtype=torch.float64)
    places = side / (2 * math.sin(math.pi / corners)) * torch.stack((turn.cos(), turn.sin()), 1)
    return (places - places[0]).round(decimals=12) + 0.0


def named_functions(name: str, warp: WarpPotential = PAPER_WARP) -> tuple[str, Function, Function]:
    """Return title, f1 and f2 of a pair of functions by name (warping paper, figure 3 and table III)."""
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
    """Return the landscapes of figure 3 (``functions``) and of figure 5 with four classes (``classes``)."""
    two, four = polygon(2, _SIDE), polygon(4, _SIDE)
    functions = [named_functions(name) for name in ("identity", "square", "square-root", "warp")]
    pairs = {
        f"only classes 0 and {other} of these": Landscape(four[0], four[other : other + 1], PAPER_WARP)
        for other in (1, 2, 3)
    }
    return {
        "functions": {title: Landscape(two[0], two[1:], f1, f2) for title, f1, f2 in functions},
        "classes": {"the warp with four classes": Landscape(four[0], four[1:], PAPER_WARP), **pairs},
    }


_RINGS, _ANGLES, _DOUBLINGS, _HALVINGS, _ROUNDS = 64, 128, 10, 36, 360

# Values count as equal if they differ by at most this fraction of the window's range.
_TIE = 1e-11


@dataclass(frozen=True)
class Minimum:
    """The minimum of a landscape; among equally low points, the nearest to the target proxy.

    Args:
        place: The two coordinates.
        value: Loss at the minimum.
        distance: Distance from the target proxy.
        off_line: Distance from the line through the target proxy and the only other proxy; None with several others.
        runs_away: Whether the loss still falls at the border of the largest window; the minimum is then at infinity,
            and the place is where the search ended.
        flat: Whether neighbouring places are equally low.
    """

    place: tuple[float, float]
    value: float
    distance: float
    off_line: float | None
    runs_away: bool
    flat: bool


@torch.no_grad()
def find_minimum(landscape: Landscape, *, radius: float | None = None) -> Minimum:
    """Find the minimum of a landscape in two dimensions, to within 1e-6 of the window or better.

    The search covers eleven windows around the target proxy, each twice as wide as the last, with 64 rings of 128
    points. In each window, up to four local minima are refined on ever finer grids of distances and angles. On such
    grids the warp's kink at the distance α is a straight line.

    Args:
        landscape: A landscape in two dimensions.
        radius: Radius of the smallest window; None takes twice the distance to the nearest other proxy, or a warp's α
            if that is larger.

    Raises:
        ValueError: If an argument is not allowed.

    >>> from proxemic.analysis.landscape import WarpPotential
    >>> warped = Landscape(torch.zeros(2), torch.tensor([[4.0, 0.0]]), f1=WarpPotential(3.0, 0.65, 1.5))
    >>> found = find_minimum(warped)
    >>> round(found.place[0], 4), round(found.distance, 4), found.runs_away
    (-3.0, 3.0, False)
    """
    if len(landscape.target) != 2:
        raise ValueError(
            f"landscape has {len(landscape.target)} dimensions, but the search needs two: take landscape_of the loss."
        )
    if radius is None:
        alpha = landscape.f1.alpha if isinstance(landscape.f1, WarpPotential) else 0.0
        radius = max(2 * landscape.spacing, alpha)
    check_positive("radius", radius)
    search = _Search(landscape)
    known: list[_Candidate] = []
    for doubling in range(_DOUBLINGS + 1):
        for candidate in search.in_window(radius * 2**doubling):
            # The next window covers candidates on the border.
            inside = not candidate.on_border or doubling == _DOUBLINGS
            away = (search.place(minimum) - search.place(candidate) for minimum in known if minimum.settled)
            if inside and all(vector.norm() > 2 * candidate.step for vector in away):
                known.append(search.refined(candidate))
    lowest = known[0]
    for minimum in known[1:]:
        if minimum.value < lowest.value - max(lowest.tolerance, minimum.tolerance):
            lowest = minimum
    place = search.place(lowest)
    off_line = abs(lowest.distance * math.sin(lowest.angle)) if len(landscape.others) == 1 else None
    x, y = place.tolist()
    value = landscape(place.unsqueeze(0)).item()
    return Minimum((x, y), value, lowest.distance, off_line, lowest.on_border, lowest.flat)


@dataclass(frozen=True)
class _Candidate:
    distance: float
    angle: float
    value: float
    tolerance: float
    step: float
    on_border: bool
    flat: bool
    settled: bool = False


class _Search:
    """Search in polar coordinates around the target proxy; the angle 0 points away from the nearest other proxy."""

    def __init__(self, landscape: Landscape) -> None:
        self.landscape, self.target = landscape, landscape.target.double()
        away = self.target - landscape.others.double()
        nearest = away[away.norm(dim=1).argmin()]
        self.turn = math.atan2(nearest[1].item(), nearest[0].item())

    def places(self, distances: Float[Tensor, " n"], angles: Float[Tensor, " n"]) -> Float[Tensor, "n 2"]:
        turned = angles + self.turn
        return self.target + distances.unsqueeze(1) * torch.stack((turned.cos(), turned.sin()), 1)

    def place(self, candidate: _Candidate) -> Float[Tensor, " 2"]:
        return self.places(*torch.tensor([[candidate.distance], [candidate.angle]], dtype=torch.float64)).squeeze(0)

    def values(self, distances: Float[Tensor, " rings"], angles: Float[Tensor, " angles"]) -> tuple[Tensor, float]:
        """Compute logits ``[rings, angles]``, and the difference up to which two values count as equal."""
        values = self.landscape.logits(self.places(*torch.cartesian_prod(distances, angles).unbind(1)))
        if not values.isfinite().all():
            raise ValueError(
                f"f1 and f2 overflow within a distance of {distances.max():.3g}: give functions that grow more slowly."
            )
        return values.unflatten(0, (len(distances), len(angles))), _TIE * (values.max() - values.min()).item()

    def in_window(self, radius: float) -> list[_Candidate]:
        """Find the four lowest local minima of the grid; among equal values, the nearest to the target proxy first."""
        distances = torch.linspace(0, radius, _RINGS + 1, dtype=torch.float64)
        angles = torch.arange(_ANGLES, dtype=torch.float64) * (2 * math.pi / _ANGLES)
        values, tolerance = self.values(distances, angles)
        padded = F.pad(values, (0, 0, 1, 1), value=math.inf)
        low = values <= torch.stack((padded[2:], padded[:-2], values.roll(1, 1), values.roll(-1, 1))).amin(0)
        # All angles of ring 0 are the same place.
        low[0] = False
        low[0, 0] = values[0, 0] <= values[1].min() + tolerance
        level = torch.where(values <= values.min() + tolerance, values.min(), values)
        rings, turns = torch.nonzero(low).unbind(1)
        order = level[rings, turns].argsort(stable=True)[:4]
        everywhere = self.places(*torch.cartesian_prod(distances, angles).unbind(1)).unflatten(0, values.shape)
        candidates = []
        for ring, turn in zip(rings[order].tolist(), turns[order].tolist(), strict=True):
            apart = (everywhere - everywhere[ring, turn]).norm(dim=2) * (_RINGS / radius)
            neighbouring = (apart > 0.5) & (apart < 1.5)
            flat = bool((neighbouring & (values <= values[ring, turn] + tolerance)).any())
            place = (distances[ring].item(), angles[turn].item(), values[ring, turn].item())
            candidates.append(_Candidate(*place, tolerance, radius / _RINGS, ring == _RINGS, flat))
        return candidates

    def refined(self, candidate: _Candidate) -> _Candidate:
        """Refine a place on grids that are halved until their minimum lies at the border."""
        if candidate.on_border:
            return candidate
        offsets = torch.linspace(-1, 1, 17, dtype=torch.float64)
        distance, angle, value = candidate.distance, candidate.angle, candidate.value
        along, around = candidate.step, 4 * math.pi / _ANGLES
        share, settled = 0.5**_HALVINGS, False
        for _ in range(_ROUNDS):
            settled = along < share * candidate.step and (around < share or distance == 0)
            if settled:
                break
            if distance == 0:
                around = math.pi  # the direction is still open
            distances = (distance + along * offsets).clamp(min=0)
            values, tolerance = self.values(distances, angle + around * offsets)
            # Among equal values, the nearest to the target proxy, and then to the last place.
            equal = torch.nonzero(values <= values.min() + tolerance).tolist()
            ring, turn = min(equal, key=lambda place: (place[0], abs(place[1] - 8)))
            distance, angle = distances[ring].item(), (angle + around * offsets[turn]).item()
            value = values[ring, turn].item()
            if distance == 0 or 0 < ring < 16:
                along /= 2
            if 0 < turn < 16:
                around /= 2
        return replace(candidate, distance=distance, angle=angle, value=value, settled=settled)


MARK = "#d55e00"
_LEVELS = 20


@torch.no_grad()
def landscape_grid(
    landscape: Landscape, half_width: float, *, points: int = 101
) -> tuple[Float[Tensor, " points"], Float[Tensor, " points"], Float[Tensor, "points points"]]:
    """Compute the loss on a square grid around the target proxy; return x, y, and the values with a row per y."""
    step = 2 * check_positive("half_width", half_width) / (points - 1)
    line = step * (torch.arange(points, dtype=torch.float64) - (points - 1) / 2)  # exactly 0 in the middle
    x, y = landscape.target.double()[:2, None] + line
    rows, columns = torch.meshgrid(y, x, indexing="ij")
    values = landscape(torch.stack((columns, rows), 2).flatten(0, 1))
    return x, y, values.unflatten(0, (points, points))


def plot_landscape(
    landscape: Landscape, half_width: float, *, minimum: Minimum | None = None, title: str = "", axes: Any = None
) -> Any:
    """Draw the loss around the target proxy in twenty colours, each of which covers a twentieth of the square.

    The target proxy is a star, and other proxies in the plane are crosses. A diamond marks the minimum, or an arrow the
    direction in which it runs away. For a `WarpPotential`, a dashed circle of radius α surrounds the target proxy.

    Args:
        landscape: A landscape in two dimensions.
        half_width: Half the width of the square around the target proxy.
        minimum: The minimum that `find_minimum` returns.
        title: Title of the plot.
        axes: Matplotlib axes to draw on; None makes a new figure.

    Raises:
        ValueError: If an argument is not allowed.

    >>> axes = plot_landscape(Landscape(torch.zeros(2), torch.tensor([[4.0, 0.0]])), 6.0, title="no warp")
    >>> axes.get_title(), axes.get_xlim() == (-6, 6)
    ('no warp', True)
    """
    axes = new_figure(4.6, 4).subplots() if axes is None else axes
    from matplotlib.colors import BoundaryNorm

    x, y, values = (part.numpy() for part in landscape_grid(landscape, half_width))
    levels = np.unique(np.quantile(values, np.linspace(0, 1, _LEVELS + 1))).tolist()
    if len(levels) < 3:  # of a level landscape
        levels = [levels[0] - 0.5, levels[0], levels[-1] + 0.5]
    norm = BoundaryNorm(levels, 256)
    filled = axes.contourf(x, y, values, levels=levels, cmap="viridis", norm=norm)
    axes.contour(x, y, values, levels=levels[1:-1], colors="white", linewidths=0.3, alpha=0.6)
    bar = axes.figure.colorbar(filled, ax=axes, shrink=0.85, ticks=levels[:: max(1, len(levels) // 6)])
    bar.ax.set_yticklabels([f"{level:.2g}" for level in bar.get_ticks()], fontsize=7)
    bar.ax.minorticks_off()
    target = landscape.target.tolist()
    if isinstance(landscape.f1, WarpPotential):
        draw_circle(axes, target, landscape.f1.alpha, "--", color="white", linewidth=1.2, label="distance α")
    axes.plot(*target, "*", color="black", markersize=13, markeredgecolor="white", label="target proxy")
    axes.plot(*landscape.in_plane.T, "X", color="black", markersize=9, markeredgecolor="white", label="other proxy")
    if minimum is not None:
        _mark(axes, target, minimum, half_width)
    (left, right), (low, high) = ((place - half_width, place + half_width) for place in target)
    axes.set(xlim=(left, right), ylim=(low, high), aspect="equal")
    axes.set_title(title, fontsize=9, parse_math=False)
    axes.tick_params(labelsize=7)
    return axes


def draw_landscapes(landscapes: Mapping[str, Landscape], minima: Mapping[str, Minimum], half_width: float) -> Any:
    """Draw several landscapes with their titles, two in a row, with one legend."""
    columns = min(2, len(landscapes))
    rows = math.ceil(len(landscapes) / columns)
    figure = new_figure(max(5.4, 4.3 * columns), 3.5 * rows + 0.8)
    panels = figure.subplots(rows, columns, squeeze=False)
    handles: dict[str, Any] = {}
    for axes in panels.flat[len(landscapes) :]:
        axes.set_visible(False)
    for axes, (title, landscape) in zip(panels.flat, landscapes.items(), strict=False):
        plot_landscape(landscape, half_width, minimum=minima[title], title=title, axes=axes)
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.supxlabel("place of the embedding, in units of distance\ncolour: its loss, equal areas a step", fontsize=8)
    add_legend(
        figure, handles=[*handles.values()], loc="outside upper center", ncols=3 * columns, frameon=True,
        edgecolor="none", facecolor="#bbbbbb", framealpha=1,
    )  # fmt: skip
    return figure


def _mark(axes: Any, target: list[float], minimum: Minimum, half_width: float) -> None:
    if not minimum.runs_away:
        label = "minimum (nearest of equals)" if minimum.flat else "minimum"
        axes.plot(*minimum.place, "D", color=MARK, markersize=6, markeredgecolor="white", label=label)
        return
    away = [(place - start) / minimum.distance for place, start in zip(minimum.place, target, strict=True)]
    start, end = ([target[axis] + share * half_width * away[axis] for axis in (0, 1)] for share in (0.55, 0.92))
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": MARK, "linewidth": 2.5})
    axes.plot([], [], color=MARK, linewidth=2.5, marker=">", label="minimum at infinity")
