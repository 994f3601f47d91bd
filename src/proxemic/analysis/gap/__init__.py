"""How far the minimiser of the softmax loss of a class lies from its proxy: minimisers, bounds, and plots of both."""

from proxemic.analysis.gap.bounds import (
    GapBounds,
    class_directions,
    class_minimizers,
    gap_bounds,
    softmax_form,
    squared_gaps,
)
from proxemic.analysis.gap.plots import plot_gaps, plot_three_proxies, three_proxies

__all__ = [
    "GapBounds",
    "class_directions",
    "class_minimizers",
    "gap_bounds",
    "plot_gaps",
    "plot_three_proxies",
    "softmax_form",
    "squared_gaps",
    "three_proxies",
]
