"""The forces of a softmax of distances on embeddings and proxies of two classes, at one place and over a training."""
