"""The loss of one embedding as a function of its place: values, minima, the warping paper's examples, and plots."""

from proxemic.analysis.landscape.examples import PAPER_WARP, TOY_EMBEDDINGS, named_functions, paper_landscapes, polygon
from proxemic.analysis.landscape.minimum import Minimum, find_minimum
from proxemic.analysis.landscape.plots import draw_landscapes, landscape_grid, plot_landscape
from proxemic.analysis.landscape.potential import Function, Landscape, WarpPotential, landscape_of, pushes_off_proxies

__all__ = [
    "PAPER_WARP",
    "TOY_EMBEDDINGS",
    "Function",
    "Landscape",
    "Minimum",
    "WarpPotential",
    "draw_landscapes",
    "find_minimum",
    "landscape_grid",
    "landscape_of",
    "named_functions",
    "paper_landscapes",
    "plot_landscape",
    "polygon",
    "pushes_off_proxies",
]
