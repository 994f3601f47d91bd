"""A gallery in a folder: shards of vectors and tables, an index of Faiss, and a manifest, replaced as a whole."""

from proxemic.retrieval.stores.local.directory import LocalStore

__all__ = ["LocalStore"]
