"""Analyse losses and embeddings: the dependences of a loss's gradient, and the geometry of trained embeddings.

The functions take tensors and losses; plots show their results. `proxemic.analyze` applies them to runs and writes
files.
"""

from proxemic.analysis.confusion import ConfusedPair, confused_pairs
from proxemic.analysis.forces import Forces, plot_forces, two_class_forces
from proxemic.analysis.gap import GapBounds, class_minimizers, gap_bounds, squared_gaps
from proxemic.analysis.geometry import ClassDistances, Hubness, alignment, class_distances, hubness, uniformity
from proxemic.analysis.gradient_characteristics import Answer, Characteristics, characteristics, every_proxy_loss
from proxemic.analysis.gradient_dependence import plot_gradients, score_dependence
from proxemic.analysis.gradient_fields import gradient_field, loss_values, plot_gradient_field
from proxemic.analysis.landscape import (
    Landscape,
    Minimum,
    WarpPotential,
    find_minimum,
    landscape_of,
    plot_landscape,
    pushes_off_proxies,
)
from proxemic.analysis.map import PrincipalComponents, principal_components, t_sne, umap
from proxemic.analysis.similarity_maps import SimilarityMaps, gradient_map, similarity_maps

__all__ = [
    "Answer",
    "Characteristics",
    "ClassDistances",
    "ConfusedPair",
    "Forces",
    "GapBounds",
    "Hubness",
    "Landscape",
    "Minimum",
    "PrincipalComponents",
    "SimilarityMaps",
    "WarpPotential",
    "alignment",
    "characteristics",
    "class_distances",
    "class_minimizers",
    "confused_pairs",
    "every_proxy_loss",
    "find_minimum",
    "gap_bounds",
    "gradient_field",
    "gradient_map",
    "hubness",
    "landscape_of",
    "loss_values",
    "plot_forces",
    "plot_gradient_field",
    "plot_gradients",
    "plot_landscape",
    "principal_components",
    "pushes_off_proxies",
    "score_dependence",
    "similarity_maps",
    "squared_gaps",
    "t_sne",
    "two_class_forces",
    "umap",
    "uniformity",
]
