"""Pictures of two- and three-dimensional embeddings of a toy data set, and diagrams of losses and of a training."""
