"""Plots of the forces on embeddings of two classes."""

from pathlib import Path

import torch

from proxemic.analysis import WarpPotential, plot_forces
from proxemic.analysis.forces.plots import draw_forces
from proxemic.plots import write_figure

WARP = WarpPotential(3.0, 0.65, 1.5)


def test_plots(tmp_path: Path) -> None:
    proxies = torch.tensor([[0.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    embeddings = torch.tensor([[-1.0, 0.5], [-4.0, 1.0], [5.0, -0.5]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1])
    axes = plot_forces(embeddings, labels, proxies, WARP, title="warp")
    pull, push, coupled = axes.collections[:3]
    torch.testing.assert_close(torch.tensor(push.U**2 + push.V**2), torch.ones(2, dtype=torch.float64))
    lengths = torch.tensor((pull.U**2 + pull.V**2) ** 0.5)
    torch.testing.assert_close(lengths, torch.tensor([0.65, 1.5], dtype=torch.float64))
    torch.testing.assert_close(torch.tensor(coupled.U), torch.tensor(pull.U + push.U))
    written = [
        write_figure(draw_forces(embeddings, labels, proxies, WARP), tmp_path / name, [], []) for name in ("a", "b")
    ]
    assert [path.read_bytes() for path in written[0]] == [path.read_bytes() for path in written[1]]
