"""Sharded proxies in checkpoints."""

__all__: list[str] = []
