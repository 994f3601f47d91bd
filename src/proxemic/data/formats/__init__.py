"""Readers and writers of files: tables, vectors, packs of faces, RecordIO, tar shards."""

__all__: list[str] = []
