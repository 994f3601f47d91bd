"""Compute the gap between each proxy and the minimum of its softmax loss, bounds of the gap, and plots of both."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from proxemic.analysis.drawing import DASHES, add_legend, class_colour, hide_frame, new_figure
from proxemic.analysis.gradient_fields import TARGET, WRONG
from proxemic.losses import NormalizedSoftmaxLoss, ProxyNCAPlusPlusLoss
from proxemic.losses.checks import check_positive
from proxemic.losses.user_defined import Loss, loss_name

_BYTES = 2**27  # of the logits held at once
_STEPS = 20_000


def class_minimizers(
    proxies: Float[Tensor, "classes ..."], *, scale: float = 1.0, tolerance: float = 1e-8
) -> Float64[Tensor, "classes dim"]:
    r"""Find the unit vectors where the softmax loss of each class is smallest, all classes at once.

    $$x_c = \arg\min_{\lVert x \rVert = 1} -\log \frac{e^{\sigma w_c \cdot x}}{\sum_j e^{\sigma w_j \cdot x}}$$

    The loss is a softplus of $h(x) = \log \sum_{j \ne c} e^{\sigma (w_j - w_c) \cdot x}$. This function is convex, has
    the same minimiser, and its gradient does not vanish where the loss saturates. The descent ends when the gradient
    points inwards and its component along the sphere is below ``tolerance`` of its length. The Hessian on the sphere is
    then at least as large as the gradient, so that the minimiser is about ``tolerance`` away at most. If proxies nearly
    coincide, rounding limits the accuracy.

    Args:
        proxies: One proxy per class, C ≥ 2; only the directions matter.
        scale: Scale σ > 0.
        tolerance: Largest distance to the minimiser, as a fraction of the sphere's radius.

    Raises:
        ValueError: If an argument is out of range, a proxy is zero or not finite, or the descent does not converge.

    Source: Proposition 3 of the mean-proxy paper (σ = 1), whose equation the result satisfies.

    >>> angles = torch.tensor([0.0, 0.1, -math.pi / 2])
    >>> x = class_minimizers(torch.stack((angles.cos(), angles.sin()), 1))[0]
    >>> round(math.atan2(x[1], x[0]), 4)  # nearer to the second proxy than to its own, the first
    0.5244
    """
    check_positive("scale", scale)
    check_positive("tolerance", tolerance)
    unit = _directions(proxies)
    parts = torch.arange(len(unit), device=unit.device).split(max(1, _BYTES // (8 * len(unit))))
    return torch.cat([_descend(unit, part, scale, tolerance) for part in parts])


def squared_gaps(proxies: Float[Tensor, "classes ..."], *, scale: float = 1.0) -> Float64[Tensor, " classes"]:
    """Compute ``‖x_c − ŵ_c‖²``, from 0 to 4, between the minimum of each class's loss and its unit proxy.

    Arguments and errors: as `class_minimizers`.

    >>> squared_gaps(torch.eye(2))  # two classes at right angles: opposite each other would be best
    tensor([0.5858, 0.5858], dtype=torch.float64)
    """
    return (class_minimizers(proxies, scale=scale) - _directions(proxies)).square().sum(1)


def class_directions(
    embeddings: Float[Tensor, "images dim"], labels: Int64[Tensor, " images"]
) -> Float64[Tensor, "classes dim"]:
    """Compute the direction of each class's mean unit embedding."""
    rows = _directions(embeddings)
    sums = torch.zeros(int(labels.max()) + 1, rows.shape[1], dtype=torch.float64, device=rows.device)
    return _directions(sums.index_add(0, labels, rows))


@dataclass(frozen=True)
class GapBounds:
    r"""Bounds of the mean squared gap at σ = 1 from the mean-proxy paper's theorems, as printed and as proved.

    With $s_{jj'} = \tfrac18 (w_j + w_{j'})(1 - w_j \cdot w_{j'}) e^{w_j \cdot w_{j'} - 1}$ and
    $S = \lVert \sum_{jj'} s_{jj'} \rVert$, all proxies of unit length.

    Args:
        lower: $C^{-5} S^2$, which averaging Theorem 1 (equation 3.5) over the classes gives.
        lower_sharp: $C^{-4} S^2$, as $S \le C^2 \cdot \tfrac1C \sum_c \lVert x_c - w_c \rVert$ in Theorem 1's proof.
        lower_printed: $C^{-3} S^2$ (equation 3.8): wrong, as it can exceed 4, which no squared gap does.
        upper: $2 - \tfrac{2}{\sqrt e} \tfrac1C \sum_c \sqrt{1 - \bar w \cdot w_c}$ of the mean proxy $\bar w$: the last
            line of Theorem 2's proof, which holds where $\bar w \cdot x_c \ge 0$.
        upper_printed: The same with $\sqrt{2/e}$ for $2/\sqrt e$ (equation 3.9), which is weaker.
        upper_always: $\tfrac1C \sum_c (2 - 2 W(1 - \bar w \cdot w_c))$ with Lambert's W, $W e^W = z$: of all classes.
        mean_proxy_norm: $\lVert \bar w \rVert$, from 0 to 1.
    """

    lower: float
    lower_sharp: float
    lower_printed: float
    upper: float
    upper_printed: float
    upper_always: float
    mean_proxy_norm: float


def gap_bounds(proxies: Float[Tensor, "classes ..."]) -> GapBounds:
    """Compute the bounds L(W) and U(W) of the mean squared gap at σ = 1.

    ``upper`` and ``upper_printed`` hold if ``w̄ · x_c ≥ 0`` for the `class_minimizers` of every class c, and
    ``upper_always`` without a condition. Argument and errors: as `class_minimizers`.

    Source: Theorems 1 and 2 of the mean-proxy paper.

    >>> bounds = gap_bounds(torch.eye(2))
    >>> bounds.lower < squared_gaps(torch.eye(2)).mean() < bounds.upper
    tensor(True)
    """
    unit = _directions(proxies)
    classes, mean = len(unit), unit.mean(0)
    total = torch.zeros_like(mean)
    for part in unit.split(max(1, _BYTES // (8 * classes))):
        cosine = part @ unit.T
        total += ((1 - cosine) * (cosine - 1).exp()).sum(1) @ part
    # Σ_jj' (w_j + w_j') a_jj' counts every row of the symmetric a twice.
    square = float((total / 4).square().sum())
    apart = (1 - unit @ mean).clamp(min=0)
    root = float(apart.sqrt().mean())
    return GapBounds(
        lower=square / classes**5,
        lower_sharp=square / classes**4,
        lower_printed=square / classes**3,
        upper=2 - 2 / math.sqrt(math.e) * root,
        upper_printed=2 - math.sqrt(2 / math.e) * root,
        upper_always=2 - 2 * float(_lambert(apart).mean()),
        mean_proxy_norm=float(mean.norm()),
    )


def _lambert(z: Float64[Tensor, " classes"]) -> Float64[Tensor, " classes"]:
    """Compute Lambert's W, ``W e^W = z``, for z in [0, 2] by Newton's method from ``log(1 + z) ≥ W``."""
    w = z.log1p()
    for _ in range(6):
        w = w - (w - z * (-w).exp()) / (1 + w)
    return w


def softmax_form(loss: Loss) -> tuple[Float[Tensor, "classes dim"], float]:
    """Return proxies ``[C, D]`` and scale σ of a softmax of σ times the cosines with one proxy per class."""
    fits = isinstance(loss, NormalizedSoftmaxLoss | ProxyNCAPlusPlusLoss)
    if not fits or loss.proxies_per_class > 1:
        several = f" with {loss.proxies_per_class} proxies per class" if fits else ""
        raise ValueError(
            f"the loss is {loss_name(loss)}{several}, but the gap needs a softmax of cosines with one proxy per class: "
            "NormalizedSoftmaxLoss (also with MeanProxyNorm) or ProxyNCAPlusPlusLoss."
        )
    return loss.proxies.detach()[:, 0], loss.scoring.scale


def _directions(proxies: Tensor) -> Float64[Tensor, "classes dim"]:
    # Apple's GPUs have no float64.
    proxies = proxies.detach().to("cpu" if proxies.device.type == "mps" else proxies.device, torch.float64)
    if proxies.ndim != 2 or len(proxies) < 2:
        raise ValueError(
            f"proxies or embeddings have shape {list(proxies.shape)}, but must be [items, dim], with 2 items or more."
        )
    length = proxies.norm(dim=1, keepdim=True)
    bad = int((~(length.isfinite() & (length > 0))).sum())
    if bad:
        raise ValueError(
            f"{bad} of {len(proxies)} proxies or embeddings are zero or not finite: they have no direction."
        )
    return proxies / length


def _descend(
    unit: Float64[Tensor, "classes dim"], target: Int64[Tensor, " points"], scale: float, tolerance: float
) -> Float64[Tensor, "points dim"]:
    minimizers = unit[target]
    left, x = torch.arange(len(target), device=unit.device), minimizers.clone()
    gradient = _gradient(unit, x, target, scale)
    steepness = torch.full_like(x[:, :1], scale)
    for _ in range(_STEPS):
        moving = ~_settled(x, gradient, scale, tolerance)
        minimizers[left[~moving]] = x[~moving]
        left, target, x, gradient, steepness = (tensor[moving] for tensor in (left, target, x, gradient, steepness))
        if not len(left):
            return minimizers
        # Step to the minimum on the sphere of a parabola above h, so that h never increases.
        step = steepness * x - gradient
        new = step / step.norm(dim=1, keepdim=True)
        there, moved = _gradient(unit, new, target, scale), new - x
        # For convex h this keeps the parabola above h. Gradients are more accurate here than values.
        curvature = 2 * ((there - gradient) * moved).sum(1, keepdim=True)
        enough = curvature <= steepness * moved.square().sum(1, keepdim=True)
        x, gradient = torch.where(enough, new, x), torch.where(enough, there, gradient)
        steepness = torch.where(enough, steepness / 1.5, steepness * 4)
    raise ValueError(
        f"{len(left)} of {len(minimizers)} classes have no minimiser to {tolerance:g} after {_STEPS} steps."
    )


def _gradient(unit: Tensor, x: Tensor, target: Tensor, scale: float) -> Float64[Tensor, "points dim"]:
    """Compute the gradient of h in `class_minimizers`."""
    logits = (scale * x) @ unit.T
    logits.scatter_(1, target.unsqueeze(1), -torch.inf)
    return scale * (logits.softmax(1) @ unit - unit[target])


def _settled(x: Tensor, gradient: Tensor, scale: float, tolerance: float) -> Bool[Tensor, " points"]:
    size = gradient.norm(dim=1)
    inward = -(gradient * x).sum(1)
    along = (gradient + inward.unsqueeze(1) * x).norm(dim=1)
    rounding = 64 * torch.finfo(gradient.dtype).eps * scale
    # If another proxy coincides with the target proxy, the loss is flat up to rounding, and any point is a minimum.
    return ((along <= tolerance * size + rounding) & (inward > 0)) | (size <= rounding)


MINIMUM, GREY = "#e6ab02", "#999999"
# Marker, colour and legend of each value in `plot_gaps`.
_MARKS = {
    "lower": ("|", "#333333", "L corrected, U of the proof"),
    "lower_sharp": ("4", "#1b9e77", "L, sharpened (C⁻⁴)"),
    "lower_printed": ("x", "#d95f02", "L, printed (C⁻³)"),
    "gap": ("o", "#224466", "mean gap"),
    "upper_printed": ("+", "#d95f02", "U, printed"),
    "upper": ("|", "#333333", None),
}


def three_proxies(epsilon: float = 0.1) -> Float64[Tensor, "3 2"]:
    """Return the proxies of the mean-proxy paper's example (section 3.1), at 0, ε and −π/2 radians."""
    angles = torch.tensor([0.0, epsilon, -math.pi / 2], dtype=torch.float64)
    return torch.stack((angles.cos(), angles.sin()), 1)


def plot_three_proxies(epsilon: float = 0.1) -> tuple[Any, list[tuple[float, float]]]:
    """Draw the example and the loss of class 1 along the circle; return the figure and the curve (radians, loss)."""
    proxies = three_proxies(epsilon)
    least = class_minimizers(proxies)[0]
    angle = math.atan2(least[1], least[0])
    turn = torch.linspace(-math.pi, math.pi, 721, dtype=torch.float64)
    places = torch.stack((turn.cos(), turn.sin()), 1)
    losses = -(places @ proxies.T).log_softmax(1)[:, 0]

    figure = new_figure(9, 4)
    circle, curve = figure.subplots(1, 2, width_ratios=(1, 1.25))
    circle.plot(*places.T, color=GREY, linewidth=1, zorder=0)
    named = [(proxies[0], TARGET, "$w_1$"), (proxies[1], WRONG, "$w_2$"), (proxies[2], WRONG, "$w_3$")]
    for place, colour, name in [*named, (least, MINIMUM, "$x_1$")]:
        circle.plot(*place, "o", color=colour, markersize=9)
        circle.annotate(name, (1.16 * place).tolist(), color=colour, ha="center", va="center", fontsize=11)
    circle.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal", xticks=[], yticks=[])
    figure.suptitle(f"Three proxies, and the minimum of the loss of class 1 (ε = {epsilon:g}, σ = 1)", fontsize=10)
    curve.plot(turn, losses, color="#333333")
    for place, colour, name in ((0.0, TARGET, "$w_1$"), (epsilon, WRONG, "$w_2$"), (-math.pi / 2, WRONG, "$w_3$")):
        curve.axvline(place, color=colour, linewidth=1, linestyle=":", label=f"{name}: {place:.3f}")
    curve.axvline(angle, color=MINIMUM, linewidth=1.5, label=f"minimum: {angle:.4f}")
    curve.set(xlabel="angle of the embedding, radians", ylabel="softmax loss of class 1")
    hide_frame(curve)
    curve.legend(fontsize=8, frameon=False)  # whose labels are formulas
    return figure, list(zip(turn.tolist(), losses.tolist(), strict=True))


def plot_gaps(gaps: Mapping[str, Sequence[float]], bounds: Mapping[str, Mapping[str, float]]) -> Any:
    """Draw the sorted squared gaps of classes, and the mean ``gap`` at σ = 1 between its bounds, by name."""
    figure = new_figure(10.5, 3.6 + 0.12 * len(gaps))
    left, right = figure.subplots(1, 2)
    for place, (name, values) in enumerate(gaps.items()):
        shares = [(rank + 0.5) / len(values) for rank in range(len(values))]
        # Different dashes, because curves may overlap.
        left.plot(sorted(values), shares, DASHES[place % 4], color=class_colour(place), label=name, linewidth=1.6)
        numbers = bounds[name]
        right.plot([numbers["lower"], numbers["upper"]], [place, place], color="#cccccc", linewidth=4, zorder=0)
        for key, (marker, colour, label) in _MARKS.items():
            right.plot(numbers[key], place, marker, color=colour, markersize=7, markeredgewidth=1.6,
                       label=None if place else label)  # fmt: skip
    left.set(xlabel="squared gap of a class at the loss's scale", ylabel="fraction of classes below", ylim=(0, 1))
    left.set_xlim(left=0)
    add_legend(left, fontsize=7, loc="lower right")
    right.set_xscale("log")
    right.set_yticks(range(len(bounds)), list(bounds), fontsize=7, parse_math=False)
    right.set(ylim=(len(bounds) - 0.5, -0.5), xlabel="mean squared gap at σ = 1")
    right.axvline(4, color=GREY, linewidth=0.8, linestyle=":")
    handles, _ = right.get_legend_handles_labels()
    add_legend(figure, handles=handles, fontsize=7, ncols=6, loc="outside lower center")
    for axes in (left, right):
        hide_frame(axes)
        axes.tick_params(axis="x", labelsize=8)
    return figure
