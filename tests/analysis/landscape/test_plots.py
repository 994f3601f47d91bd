"""Plots of landscapes."""

from pathlib import Path

import torch

from proxemic.analysis import Landscape, WarpPotential, find_minimum, plot_landscape
from proxemic.analysis.landscape.examples import paper_landscapes
from proxemic.analysis.landscape.plots import draw_landscapes, landscape_grid
from proxemic.plots import write_figure


def test_plots(tmp_path: Path) -> None:
    landscape = Landscape(torch.tensor([1.0, -1.0]), torch.tensor([[5.0, -1.0]]), WarpPotential(3.0, 0.65, 1.5))
    x, y, values = landscape_grid(landscape, 6.0, points=5)
    assert (x[0], x[-1], y[0], y[-1]) == (-5, 7, -7, 5)
    assert values[1, 3] == landscape(torch.tensor([[4.0, -4.0]]))[0]
    found = find_minimum(landscape)
    axes = plot_landscape(landscape, 6.0, minimum=found, title="$")
    assert axes.get_legend_handles_labels()[1] == ["distance α", "own proxy", "other proxy", "minimum"]
    constant = Landscape(torch.zeros(2), torch.tensor([[4.0, 0.0]]), torch.zeros_like, torch.zeros_like)
    assert plot_landscape(constant, 6.0).get_xlim() == (-6, 6)
    away = {"away": paper_landscapes()["functions"]["f = t²"]}
    minima = {title: find_minimum(each) for title, each in away.items()}
    written = [
        write_figure(draw_landscapes(away, minima, 6.0), tmp_path / name, [], []) for name in ("first", "second")
    ]
    assert [path.read_bytes() for path in written[0]] == [path.read_bytes() for path in written[1]]
    assert b"minimum at infinity" in written[0][1].read_bytes()
    three = dict(list(paper_landscapes()["classes"].items())[:3])
    figure = draw_landscapes(three, {title: find_minimum(each) for title, each in three.items()}, 6.0)
    assert [axes.get_title() for axes in figure.axes if axes.get_visible() and axes.get_title()] == [*three]
    assert [text.get_text() for text in figure.legends[0].get_texts()].count("own proxy") == 1
