"""The hooks of callbacks."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from proxemic.training.state import TrainingState


def is_of_lightning(module: str) -> bool:
    """Return whether a module belongs to Lightning, whose callbacks and loggers expect its own trainer."""
    return module.partition(".")[0] in ("lightning", "pytorch_lightning")


class Callback:
    """Called during a training; derive from it and override the hooks that you need.

    Each hook gets the training in progress, a `TrainingState`. Every process of a run calls every hook, and only the
    one with ``training.rank`` 0 should write files. An error in a hook ends the training, which can be resumed.

    In a recipe: ``training: {callbacks: [{class_path: mine.Watch, init_args: {every: 10}}]}``. A class keeps the
    arguments of its constructor under their names, so that the recipe can be written.
    """

    def on_train_start(self, training: "TrainingState") -> None:
        """Before the first step of this process, also of a run that is resumed."""

    def on_epoch_start(self, training: "TrainingState") -> None:
        """Before the first step of an epoch, but not if a run is resumed within the epoch."""

    def on_backward_end(self, training: "TrainingState") -> None:
        """After the gradients are computed, before they are clipped and the optimiser steps.

        In 16-mixed the gradients are still multiplied by the scale of the loss.
        """

    def on_step_end(self, training: "TrainingState", loss: Tensor) -> None:
        """After each step, with its loss; reading the value of ``loss`` waits for a GPU."""

    def on_epoch_end(self, training: "TrainingState") -> None:
        """After the last step of an epoch and its evaluation, before the checkpoint."""

    def on_train_end(self, training: "TrainingState") -> None:
        """After the last epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the checkpoint keeps of this callback: tensors, numbers and texts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state that the checkpoint has kept, before `on_train_start`; not called if it is empty."""
