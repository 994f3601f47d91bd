"""Heads learnt from labels: a gallery improved by what its owner knows."""

__all__: list[str] = []
