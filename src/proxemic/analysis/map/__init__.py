"""Maps of embeddings in two dimensions: projections, and plots with thumbnails where there is room."""
