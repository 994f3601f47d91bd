"""A gallery in a folder: SQLite names segments of vectors and tables, and an index of Faiss."""

from proxemic.retrieval.stores.local.directory import LocalStore

__all__ = ["LocalStore"]
