"""Training by several processes: who they are, sharded proxies in checkpoints, batch norm over the joined batch."""
