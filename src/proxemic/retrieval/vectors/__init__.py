"""From images to vectors: models by their description, preprocessing, heads, and embedding in bulk."""

__all__: list[str] = []
