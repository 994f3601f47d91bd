"""Plots of the scores that a gradient depends on."""

from pathlib import Path

import pytest
import torch

from proxemic.analysis import plot_gradients
from proxemic.analysis.gradients.plots import draw_gradients
from proxemic.plots import write_figure

LABELS = torch.tensor([0, 0, 1, 1, 2, 2])


def test_plots(tmp_path: Path) -> None:
    dependence = torch.zeros(6, 3, dtype=torch.float64)
    dependence[0, 1], dependence[1, 0], dependence[2, 0] = 0.5, 1.0, 0.2
    axes = plot_gradients(dependence, LABELS, 0, 1, title="$")
    lines = [line for line in axes.lines if line.get_linestyle() == "-" and len(line.get_xdata()) == 2]
    assert [(line.get_color(), line.get_linewidth()) for line in lines] == [
        ("#f0e442", 9),
        ("#0072b2", pytest.approx(1.6)),
        ("#d55e00", pytest.approx(2.4)),
        ("#0072b2", pytest.approx(1.12)),
    ]
    assert lines[0].get_xydata().tolist() == lines[1].get_xydata().tolist()
    several = plot_gradients(dependence, LABELS, 0, 1, proxies_per_class=4)
    assert len(several.lines) == len(axes.lines) + 6
    found = {"one": (1, torch.ones(6, 3, 6, 3, dtype=torch.float64))}
    written = [write_figure(draw_gradients(found, LABELS), tmp_path / name, [], []) for name in ("a", "b")]
    assert [path.read_bytes() for path in written[0]] == [path.read_bytes() for path in written[1]]
