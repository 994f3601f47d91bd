"""A gallery in PostgreSQL: a table of rows with vectors of pgvector."""

from proxemic.retrieval.stores.postgres.table import PostgresStore

__all__ = ["PostgresStore"]
