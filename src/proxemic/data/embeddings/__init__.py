"""Embeddings on disk with what is known of their rows: safetensors, Parquet and NumPy files."""
