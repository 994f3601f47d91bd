"""Where galleries live: a folder with Faiss, PostgreSQL with pgvector, or Milvus, behind one interface."""

from proxemic.retrieval.galleries.stores.address import create_store, create_whole_store, delete_store, open_store
from proxemic.retrieval.galleries.stores.store import Distance, GalleryInfo, IndexKind, Neighbours, Store

__all__ = [
    "Distance",
    "GalleryInfo",
    "IndexKind",
    "Neighbours",
    "Store",
    "create_store",
    "create_whole_store",
    "delete_store",
    "open_store",
]
