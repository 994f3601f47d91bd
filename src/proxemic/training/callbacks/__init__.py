"""Callbacks of a training: their hooks, values measured in each epoch, and proxies that change between epochs."""

__all__: list[str] = []
