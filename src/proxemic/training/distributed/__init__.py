"""Training by several processes: their strategy for Lightning, and sharded proxies in checkpoints."""

__all__: list[str] = []
