"""How embeddings lie: hubs among neighbours, distances within and between classes, alignment, uniformity."""
