"""Callbacks of Lightning's trainer, one concern each.

`retrieval`, `average` and `measures` evaluate after each epoch; `start` evaluates the network before training;
`history` makes a row of these values and chooses the epoch; `saving` writes the checkpoint and what follows from it;
`proxies` moves proxies between epochs; `bar` shows progress.
"""

__all__: list[str] = []
