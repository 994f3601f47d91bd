"""Maps of embeddings in two dimensions: projections, and plots with thumbnails where there is room."""

from proxemic.analysis.map.plots import plot_map
from proxemic.analysis.map.projections import PrincipalComponents, principal_components, t_sne, umap

__all__ = ["PrincipalComponents", "plot_map", "principal_components", "t_sne", "umap"]
