"""Draw docs/losses/*.png reproducibly: ``python docs/make_plots.py [NAME ...]``."""

import io
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from PIL import Image
from pytorch_metric_learning import losses as pairs
from torch import Tensor, nn

from proxemic import losses
from proxemic.analysis.gradient_fields import TARGET, WRONG, gradient_field, loss_values, plot_gradient_field
from proxemic.files import write_atomically
from proxemic.losses import HISTLoss, PairwiseLoss, ProxyLoss

FOLDER = Path(__file__).parent / "losses"
ANGLES = (90, 150, 250, 345)  # of the four classes' proxies; the embedding belongs to class 0
SECOND = 30  # of class 0's second proxy, where a loss has two; those of the other classes coincide
LENGTH = 2.0  # of the proxies, where it counts
BLACK, GREY = "#333333", "#999999"


@dataclass(frozen=True)
class Plot:
    """Arguments of a loss, and of a second, dashed curve."""

    arguments: dict[str, Any]
    other: dict[str, Any] = field(default_factory=dict)
    radius: tuple[float, float] = (1.0, 1.0)  # of the embedding, also for the dashed curve
    half_width: float | None = None  # in the plane, not on the circle


ONE, TWO = {"proxies_per_class": 1}, {"proxies_per_class": 2}
ANCHOR = {"alpha": 32.0, "margin": 0.1}
WARP = {"k1": 0.65, "k2": 1.5}  # as in figure 3 of the warping paper

PLOTS = {
    "NormalizedSoftmaxLoss": Plot({"scale": 20.0}, {"scale": 1.0}),
    "SphereFaceLoss": Plot({"margin": 4, "scale": 20.0}, {"margin": 1, "scale": 20.0}),
    "CosFaceLoss": Plot({"margin": 0.35, "scale": 64.0}, {"margin": 0.0, "scale": 64.0}),
    "ArcFaceLoss": Plot({"margin": 0.5, "scale": 64.0}, {"margin": 0.0, "scale": 64.0}),
    "MagFaceLoss": Plot({"norm_weight": 35.0, "scale": 64.0}, radius=(10.0, 110.0)),
    "AdaFaceLoss": Plot({"margin": 0.4, "scale": 64.0}, radius=(35.0, 5.0)),
    "CurricularFaceLoss": Plot({"margin": 0.5, "scale": 64.0}, {"margin": 0.0, "scale": 64.0}),
    "ElasticFaceLoss": Plot({"margin": 0.5, "scale": 64.0}, {"margin": 0.3, "scale": 64.0}),
    "ProxyNCALoss": Plot({"scale": 1.0}, {"scale": 10.0}),
    "ProxyNCAPlusPlusLoss": Plot({"temperature": 1 / 9}, {"temperature": 1.0}),
    "ProxyAnchorLoss": Plot(ANCHOR, {"alpha": 8.0, "margin": 0.1}),
    "SoftTripleLoss": Plot({**TWO, "scale": 20.0, "margin": 0.01}, {**ONE, "scale": 20.0, "margin": 0.01}),
    "MultiProxyAnchorLoss": Plot({**TWO, **ANCHOR}, {**ONE, **ANCHOR}),
    "DataWiseMultiProxyAnchorLoss": Plot({**TWO, **ANCHOR}, {**ONE, **ANCHOR}),
    "AllPairMultiProxyAnchorLoss": Plot({**TWO, **ANCHOR}, {**TWO, "alpha": 8.0, "margin": 0.1}),
    "EuclideanSoftmaxLoss": Plot({"temperature": 1.0}, {"temperature": 2.0}, half_width=5.5),
    "WarpedSoftmaxLoss": Plot({"alpha": 2.0, **WARP}, {"alpha": 3.0, **WARP}, half_width=5.5),
    "HISTLoss": Plot({"tau": 32.0, "graph_weight": 0.0}, {"tau": 16.0, "graph_weight": 0.0}),
}
PAIRWISE = {
    "ContrastiveLoss(neg_margin=1)": pairs.ContrastiveLoss(neg_margin=1),
    "TripletMarginLoss(margin=0.05)": pairs.TripletMarginLoss(margin=0.05),
    "MultiSimilarityLoss(alpha=2, beta=50)": pairs.MultiSimilarityLoss(alpha=2, beta=50),
}


def _main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name in sys.argv[1:] or [*PLOTS, "PairwiseLoss"]:
        figure = _pairwise() if name == "PairwiseLoss" else _proxies(name, PLOTS[name])
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=100, format="png")
        with write_atomically(FOLDER / f"{name}.png") as temporary, Image.open(drawn) as image:
            few = image.convert("RGB").quantize(255, dither=Image.Dither.NONE)
            few.save(temporary, format="png", optimize=True)


def _proxies(name: str, plot: Plot) -> Figure:
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    figure.suptitle(f"{name}({', '.join(f'{key}={_short(value)}' for key, value in plot.arguments.items())})")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    loss, other = (_make(name, arguments) for arguments in (plot.arguments, plot.other or plot.arguments))
    plot_gradient_field(loss, radius=plot.radius[0], half_width=plot.half_width, axes=left)
    if plot.half_width is None:
        _curves_on_circle(right, plot, loss, other)
    else:
        _curves_on_line(right, plot, loss, other)
        _mark_line_and_warp(left, plot)
    right.spines[["top", "right"]].set_visible(False)
    right.legend(fontsize=8)
    return figure


def _curves_on_circle(axes: Any, plot: Plot, loss: ProxyLoss, other: ProxyLoss) -> None:
    clockwise = torch.arange(-180.0, 181.0, 2)  # so that the left of the circle's top is left in the curve
    places = _directions(ANGLES[0] - clockwise)
    for drawn, radius, style, label in zip((loss, other), plot.radius, ("-", "--"), _labels(plot), strict=True):
        axes.plot(clockwise, loss_values(drawn, radius * places, 0), style, color=BLACK, label=label)
    for colour, angles in ((TARGET, (ANGLES[0], SECOND)[: loss.proxies_per_class]), (WRONG, ANGLES[1:])):
        for angle in angles:
            axes.axvline((ANGLES[0] - angle + 180) % 360 - 180, color=colour, linewidth=1, linestyle=":")
    axes.set(xlabel="degrees clockwise from the proxy of class 0", ylabel="loss", xticks=range(-180, 181, 60))


def _curves_on_line(axes: Any, plot: Plot, loss: ProxyLoss, other: ProxyLoss) -> None:
    beyond = torch.linspace(-7, 5.5, 301)
    places = torch.stack((torch.zeros_like(beyond), LENGTH + beyond), 1)
    for drawn, style, label in zip((loss, other), ("-", "--"), _labels(plot), strict=True):
        axes.plot(beyond, gradient_field(drawn, places, 0)[:, 1], style, color=BLACK, label=label)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.axvline(0, color=TARGET, linewidth=1, linestyle=":")
    axes.set(xlabel="distance beyond the proxy of class 0, up the dotted line", ylabel="force upwards")


def _mark_line_and_warp(axes: Any, plot: Plot) -> None:
    axes.axvline(0, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    if alpha := plot.arguments.get("alpha"):
        ring = alpha * _directions(torch.arange(0.0, 361.0, 2)) + LENGTH * _directions(torch.tensor(ANGLES[0]))
        axes.plot(*ring.T, "--", color=TARGET, linewidth=1.2)
        axes.annotate("α", ring[22], (5, 5), textcoords="offset points", color=TARGET)


def _pairwise() -> Figure:
    rest = (_directions(torch.tensor(ANGLES[:2])), torch.tensor([0, 1]))
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (title, loss) in zip(figure.subplots(1, 3), PAIRWISE.items(), strict=True):
        plot_gradient_field(PairwiseLoss(2, 2, loss=loss), rest=rest, axes=axes)
        axes.set_title(title, fontsize=10)
    return figure


def _make(name: str, arguments: dict[str, Any]) -> ProxyLoss:
    loss = getattr(losses, name)(len(ANGLES), 2, **arguments, init=_place)
    if isinstance(loss, HISTLoss):
        nn.init.zeros_(loss.log_variances)
        nn.init.ones_(loss.log_variances.data[1])
    averages = {"norm_std": torch.tensor(5.0), "t": torch.tensor(0.5)}  # AdaFace's about its 20, CurricularFace's
    loss.load_state_dict(averages, strict=False)
    return loss


def _place(proxies: Tensor) -> None:
    proxies.copy_(LENGTH * _directions(torch.tensor(ANGLES)).unsqueeze(1))
    proxies[0, 1:] = LENGTH * _directions(torch.tensor(SECOND))


def _directions(degrees: Tensor) -> Tensor:
    turn = degrees * (math.pi / 180)
    return torch.stack((turn.cos(), turn.sin()), -1)


def _labels(plot: Plot) -> tuple[str, str]:
    """Return the labels of the two curves, which name the difference."""
    if plot.radius[0] != plot.radius[1]:
        return f"‖x‖ = {plot.radius[0]:g}", f"‖x‖ = {plot.radius[1]:g}"
    (key,) = (key for key in plot.arguments if plot.arguments[key] != plot.other[key])
    return f"{key}={_short(plot.arguments[key])}", f"{key}={_short(plot.other[key])}"


def _short(value: float) -> str:
    return "1/9" if value == 1 / 9 else f"{value:g}"


if __name__ == "__main__":
    _main()
