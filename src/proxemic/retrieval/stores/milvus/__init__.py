"""A gallery in Milvus: a collection, of a cluster by its address or of Milvus Lite in a file."""

from proxemic.retrieval.stores.milvus.collection import MilvusStore

__all__ = ["MilvusStore"]
