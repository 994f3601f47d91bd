"""Parts of the training loop: the average of weights, the checkpoint, logs, the progress bar, and signals."""

__all__: list[str] = []
