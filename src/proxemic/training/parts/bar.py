"""The progress bar of a training run."""

import time
from typing import Any

from torch import Tensor
from tqdm import tqdm

from proxemic.training.recipe import Recipe

_SHOWN = 0.2  # seconds between updates: drawing takes longer than a small step, and reading the loss waits for a GPU


class TrainingBar:
    """A bar for each epoch: the loss, samples per second, the last validation metric and the time left of the run."""

    def __init__(self, recipe: Recipe, batches: int, *, shown: bool) -> None:
        self.recipe, self.batches, self.shown = recipe, batches, shown
        self.bar = tqdm(disable=True)
        self._steps, self._drawn = 0, -_SHOWN
        self._seconds = 0.0  # of the epochs that are over

    def begin_epoch(self, epoch: int, epochs: int, *, done: int, metric: float | None) -> None:
        """Begin the bar of an epoch, counted from 0, in which ``done`` batches were trained before it was resumed."""
        self._left = (epochs - epoch) * self.batches  # steps, with this epoch
        self._done, self._metric, self._began = done, metric, time.monotonic()
        if self.shown:
            self.bar = tqdm(
                total=self.batches,
                initial=done,
                desc=f"epoch {epoch + 1}/{epochs}",
                leave=epoch + 1 == epochs,
                bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]",  # without the time of the epoch
                dynamic_ncols=True,
            )

    def update(self, done: int, loss: Tensor) -> None:
        """Show that ``done`` batches of the epoch are trained, and the loss of the last one."""
        self._steps += 1
        now = time.monotonic()
        if not self.shown or (done < self.batches and now - self._drawn < _SHOWN):
            return
        self._drawn, elapsed = now, now - self._began
        left = (self._left - done) * (self._seconds + elapsed) / self._steps
        rate = (done - self._done) * self.recipe.batches.size / max(elapsed, 1e-9)
        items: dict[str, Any] = {"left": tqdm.format_interval(left), "loss": float(loss)}
        items[f"{self.recipe.kind}/s"] = f"{rate:.0f}"
        if self._metric is not None:
            items[self.recipe.evaluation.metric] = f"{self._metric:.3f}"
        self.bar.set_postfix(items, refresh=False)
        self.bar.n = done
        self.bar.refresh()

    def end_epoch(self) -> None:
        self._seconds += time.monotonic() - self._began
        self.close()

    def close(self) -> None:
        """End the bar, so that what is printed next begins on a new line."""
        self.bar.close()
