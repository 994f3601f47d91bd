"""Check the propositions, lemmas and theorems of the papers numerically, and draw two of them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from proxemic.analysis.drawing import new_figure
from proxemic.analysis.gap import class_minimizers, gap_bounds
from proxemic.analysis.landscape import Landscape, WarpPotential, find_minimum
from proxemic.losses.checks import check_count

GROWING: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "t": (torch.positive, 1.0),
    "t²": (torch.square, 4.0),
    "eᵗ": (torch.exp, math.exp(2)),
    "log(1 + t)": (torch.log1p, 1.0),
}
"""Non-decreasing functions g, with the largest slope M of each on [0, 2]."""

_ROUNDING, _SEARCH = 1e-9, 1e-4  # accuracy of float64 and of `find_minimum`
_TRIPLETS = 2**18
_LANDSCAPES = 8


@dataclass(frozen=True)
class Statement:
    """An inequality over many cases, with both sides of the case that violates it most, or comes nearest to it."""

    name: str
    claim: str
    observed: float
    bound: float
    holds: int
    cases: int

    @classmethod
    def of(cls, name: str, claim: str, observed: Tensor, bound: Tensor | float) -> "Statement":
        """Summarise both sides of all cases; at least one case is needed."""
        observed, bound = _sides(observed, bound)
        beyond = bound - observed if "≥" in claim else observed - bound
        worst = int(beyond.argmax())
        holds = int((beyond <= _ROUNDING).sum())
        return cls(name, claim, observed[worst].item(), bound[worst].item(), holds, len(beyond))


def check_theorems(draws: int = 100, *, seed: int = 0) -> list[Statement]:
    """Check all statements of the mean-proxy and warping papers, as printed and as corrected, on random cases."""
    check_count("draws", draws, 1, "a case is needed")
    generator = torch.Generator().manual_seed(seed)
    cases: dict[tuple[str, str], list[Tensor]] = {}
    for case in range(draws):
        noise = (0.01, 0.1, 0.5, 2.0)[case % 4]
        sizes = (200, 32) if case % 10 == 0 else (_random_size(generator, 60), _random_size(generator, 17))
        drawn = (*_of_pairs(generator, noise), *_of_gaps(generator, *sizes), *_of_circles(generator))
        for name, claim, observed, bound in drawn:
            cases.setdefault((name, claim), []).append(_sides(observed, bound))
    sides = {key: torch.cat(parts, 1) for key, parts in cases.items()}
    statements = [Statement.of(*key, *both) for key, both in sides.items() if both.numel()]
    return [*statements, _proposition_iii_2(generator)]


def pair_bounds(
    embeddings: Float[Tensor, "images dim"],
    labels: Int64[Tensor, " images"],
    proxies: Float[Tensor, "classes dim"],
    *,
    seed: int = 0,
) -> list[Statement]:
    """Check Propositions 1 and 2 (proxy losses bound pair losses) for the directions of given embeddings.

    Proposition 1 is checked on 2¹⁸ random triplets, and Proposition 2, which sums over all images of other classes, on
    the anchors of these. With up to n images per class, the bound of Proposition 2 must be ``log n`` above the printed
    one.
    """
    x, w = (F.normalize(rows.detach().cpu().double(), dim=1) for rows in (embeddings, proxies))
    labels = labels.cpu()
    counts = labels.bincount()
    if counts.max() < 2 or (counts > 0).sum() < 2:
        raise ValueError("the propositions compare images of one class and of another: give two classes or more.")
    generator = torch.Generator().manual_seed(seed)
    order = labels.argsort(stable=True)
    starts = counts.cumsum(0) - counts
    anchors = (counts[labels] > 1).nonzero().squeeze(1)
    anchor = anchors[torch.randint(len(anchors), (_TRIPLETS,), generator=generator)]
    place = torch.empty_like(order).index_put((order,), torch.arange(len(order))) - starts[labels]
    step = 1 + (torch.rand(_TRIPLETS, generator=generator) * (counts[labels[anchor]] - 1)).long()
    positive = order[starts[labels[anchor]] + (place[anchor] + step) % counts[labels[anchor]]]
    negative = torch.randint(len(x), (_TRIPLETS,), generator=generator)
    apart = labels[negative] != labels[anchor]
    _, first = np.unique(anchor.numpy(), return_index=True)
    cases = list(_proposition_1(x, w, labels, anchor[apart], positive[apart], negative[apart]))
    cases += _proposition_2(x, w, labels, anchor[first], positive[first])
    return [Statement.of(*case) for case in cases]


_Case = tuple[str, str, Tensor, Tensor | float]  # name, claim, and the two sides


def _sides(observed: Tensor, bound: Tensor | float) -> Float64[Tensor, "2 cases"]:
    bounds = torch.as_tensor(bound, dtype=torch.float64)
    return torch.stack(torch.broadcast_tensors(observed.double().flatten(), bounds.flatten()))


def _random_size(generator: torch.Generator, end: int) -> int:
    return int(torch.randint(2, end, (), generator=generator))


def _of_pairs(generator: torch.Generator, noise: float) -> Iterator[_Case]:
    """Yield cases with three embeddings per class around its proxy; Proposition 2 uses one of them, then all."""
    classes, dim = _random_size(generator, 9), _random_size(generator, 7)
    w = F.normalize(torch.randn(classes, dim, generator=generator, dtype=torch.float64), dim=1)
    labels = torch.arange(classes).repeat(3)
    x = F.normalize(w[labels] + noise * torch.randn(3 * classes, dim, generator=generator, dtype=torch.float64), dim=1)
    others = torch.arange(1, classes)
    yield from _proposition_1(x, w, labels, torch.zeros_like(others), torch.full_like(others, classes), others)
    # One embedding of each class, and another one of the first class as the positive.
    one = torch.cat((torch.arange(classes), torch.tensor([classes])))
    first, second = torch.tensor([0]), torch.tensor([classes])
    _, claim, observed, bound = next(_proposition_2(x[one], w, labels[one], first, second, most=1))
    yield "Proposition 2", claim, observed, bound
    yield from _proposition_2(x, w, labels, first, second)


def _proposition_1(x: Tensor, w: Tensor, y: Tensor, a: Tensor, p: Tensor, n: Tensor) -> Iterator[_Case]:
    epsilon = (x - w[y]).norm(dim=1).max()
    to_own, to_other = (x[a] - w[y[a]]).norm(dim=1), (x[a] - w[y[n]]).norm(dim=1)
    to_positive, to_negative = (x[a] - x[p]).norm(dim=1), (x[a] - x[n]).norm(dim=1)
    for name, (g, slope) in GROWING.items():
        exceeds = g(to_positive) - g(to_negative) - (g(to_own) - g(to_other))
        yield f"Proposition 1, g = {name}", "L_t − L_p ≤ 2εM", exceeds, 2 * slope * epsilon


def _proposition_2(x: Tensor, w: Tensor, y: Tensor, a: Tensor, p: Tensor, most: int | None = None) -> Iterator[_Case]:
    epsilon = (x - w[y]).norm(dim=1).max()
    most = int(y.bincount().max()) if most is None else most
    exceeds = []
    for some, others in zip(a.split(1024), p.split(1024), strict=True):
        pairs = (x[some] @ x.T).masked_fill(y[some, None] == y, -torch.inf).logsumexp(1) - (x[some] * x[others]).sum(1)
        target = F.one_hot(y[some], len(w)).bool()
        proxies = (x[some] @ w.T).masked_fill(target, -torch.inf).logsumexp(1) - (x[some] * w[y[some]]).sum(1)
        exceeds.append(pairs - proxies)
    exceeded = torch.cat(exceeds)
    name = f"Proposition 2, {most} embeddings per class"
    yield name, "L_NCA − L_Proxy-NCA ≤ 2ε", exceeded, 2 * epsilon
    yield f"{name}, corrected", f"L_NCA − L_Proxy-NCA ≤ 2ε + log {most}", exceeded, 2 * epsilon + math.log(most)


def _of_gaps(generator: torch.Generator, classes: int, dim: int) -> Iterator[_Case]:
    """Yield cases of chapter 3 of the mean-proxy paper, with proxies that lean to one side by various amounts."""
    lean = 3 * torch.rand((), generator=generator, dtype=torch.float64)
    w = torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    w = F.normalize(w + lean * F.normalize(torch.randn(dim, generator=generator, dtype=torch.float64), dim=0), dim=1)
    x, mean, bounds = class_minimizers(w), w.mean(0), gap_bounds(w)
    gaps, inner = (x - w).square().sum(1), x @ w.T
    weights = (inner.diagonal().unsqueeze(1) - inner) * inner.exp()
    directed = ((w.unsqueeze(1) - w) * inner.exp().unsqueeze(2)).sum(1) / weights.sum(1, keepdim=True)
    yield "Proposition 3", "‖x_c − right side of (3.3)‖ ≤ 1e-6", (x - directed).norm(dim=1), 1e-6
    yield "Lemma 1", "w_c·x_c ≥ w̄·x_c", inner.diagonal(), x @ mean
    yield "Theorem 1", "Σ_c ‖x_c − w_c‖² ≥ ‖C⁻² Σ s‖²", gaps.sum(), bounds.lower_sharp
    yield "Equation 3.8", "mean ‖x_c − w_c‖² ≥ C⁻³‖Σ s‖²", gaps.mean(), bounds.lower_printed
    yield "Equation 3.8, corrected", "mean ‖x_c − w_c‖² ≥ C⁻⁵‖Σ s‖²", gaps.mean(), bounds.lower
    root = (1 - w @ mean).clamp(min=0).sqrt()
    applies = x @ mean > 0
    for name, factor, value in (
        ("", "√(2/e)", math.sqrt(2 / math.e)),
        (", last line of the proof", "2/√e", 2 / math.sqrt(math.e)),
    ):
        claim = f"‖x_c − w_c‖² ≤ 2 − {factor}·√(1 − w̄·w_c) where w̄·x_c > 0"
        yield f"Theorem 2{name}", claim, gaps[applies], (2 - value * root)[applies]


def _of_circles(generator: torch.Generator) -> Iterator[_Case]:
    """Yield cases of the warping paper's Lemma III.1: extrema on a circle around the other proxy lie on the line."""
    apart, radius = (0.2 + 8 * torch.rand(2, generator=generator, dtype=torch.float64)).tolist()
    turn = torch.linspace(0, 2 * math.pi, 721, dtype=torch.float64)
    # p_c' is at 0 and p_c at (apart, 0): e_* is at the angle 0 (row 0) and e^* at π (row 360).
    near = torch.stack((radius * turn.cos() - apart, radius * turn.sin()), 1).norm(dim=1)
    for name, (f, _) in GROWING.items():
        values = f(near)
        claim = "f(e_*) − min f ≤ 0, max f − f(e^*) ≤ 0 on a circle"
        yield f"Lemma III.1, f = {name}", claim, torch.stack((values[0] - values.min(), values.max() - values[360])), 0
    # The converse: if f falls beyond a width, e_* is not the minimum of some circle.
    width = 0.2 + apart / 4
    far = apart + width + radius
    near = torch.stack((far * turn.cos() - apart, far * turn.sin()), 1).norm(dim=1)
    values = near * (-near / width).exp()
    claim = "1 − min f / f(e_*) ≥ 0.001 for f = t·exp(−t/width)"
    yield "Lemma III.1, converse", claim, 1 - values.min() / values[0], 1e-3


def _proposition_iii_2(generator: torch.Generator) -> Statement:
    """Check Proposition III.2: the minimum of two classes lies where the slopes of f1 and f2 cross."""
    off = []
    for alpha, k1, k2, apart in torch.rand(_LANDSCAPES, 4, generator=generator, dtype=torch.float64).tolist():
        warp = WarpPotential(0.1 + 10 * alpha, 0.05 + 0.9 * k1, 1.05 + 2 * k2)
        minimum = find_minimum(Landscape(torch.zeros(2), torch.tensor([[0.5 + 6 * apart, 0.0]]), warp))
        off.append(math.hypot(minimum.place[0] + warp.alpha, minimum.place[1]))
    return Statement.of("Proposition III.2", f"|minimum − α| ≤ {_SEARCH:g}", torch.tensor(off), _SEARCH)


OUTWARD, INWARD, MARK = "#0072b2", "#d55e00", "#aa3399"
OWN, OTHER = (0.0, 0.0), (4.0, 0.0)
_FALLS = 1.5  # where t·exp(−t/1.5) begins to fall


def plot_lemma() -> tuple[Any, list[tuple[float, float, float]]]:
    """Draw Lemma III.1 (figure 11) for a growing and a falling f; also return the angle and both values."""
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
    """Draw Proposition III.2 (figure 12); also return the place on the line, ``f1 − f2``, and both slopes."""
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
    """Draw a circle around the other proxy, coloured by f of the distance to the target proxy; return these values."""
    x, y = OTHER[0] - radius * turn.cos(), radius * turn.sin()
    values = f(torch.hypot(x, y))
    drawn = axes.scatter(x.tolist(), y.tolist(), c=values.tolist(), s=6, cmap="viridis", zorder=1)
    axes.figure.colorbar(drawn, ax=axes, shrink=0.8).set_label("f(‖e − p_c‖)")
    return values


def _falling(t: Tensor) -> Tensor:
    return t * (-t / _FALLS).exp()
