"""Stored vectors with their metadata: a gallery in a folder, PostgreSQL or Milvus, or a plain folder held in memory."""

__all__: list[str] = []
