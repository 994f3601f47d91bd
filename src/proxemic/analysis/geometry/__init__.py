"""How embeddings lie: hubs, distances within and between classes, alignment and uniformity, with plots."""

from proxemic.analysis.geometry.neighbourhoods import (
    Hubness,
    alignment,
    chance_occurrences,
    hubness,
    plot_occurrences,
    uniformity,
)
from proxemic.analysis.geometry.pairs import MOST_PAIRS, ClassDistances, Pairs, class_distances, plot_class_distances

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
