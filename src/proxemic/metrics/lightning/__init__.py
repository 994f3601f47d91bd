"""Retrieval metrics in a user's own training with Lightning or torchmetrics."""

__all__: list[str] = []
