"""How embeddings lie: hubs, distances within and between classes, alignment and uniformity, with plots."""

from proxemic.analysis.geometry.distances import MOST_PAIRS, ClassDistances, Pairs, class_distances
from proxemic.analysis.geometry.neighbourhoods import Hubness, alignment, hubness, uniformity
from proxemic.analysis.geometry.plots import chance_occurrences, plot_class_distances, plot_occurrences

__all__ = [
    "MOST_PAIRS",
    "ClassDistances",
    "Hubness",
    "Pairs",
    "alignment",
    "chance_occurrences",
    "class_distances",
    "hubness",
    "plot_class_distances",
    "plot_occurrences",
    "uniformity",
]
