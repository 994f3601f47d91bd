"""Heads learnt from labels: a gallery improved by its labels."""

__all__: list[str] = []
