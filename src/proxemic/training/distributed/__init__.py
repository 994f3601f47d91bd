"""Training by several processes: Lightning's view of them, and sharded proxies in checkpoints."""

__all__: list[str] = []
