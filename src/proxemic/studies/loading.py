"""Loads the loss of a run."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxemic.losses.user_defined import Loss


def load_loss(run: str | Path) -> "Loss":
    """Load the loss of a trained run, with the weights of its chosen epoch.

    `proxemic.models.load_model` loads its network.

    Args:
        run: A run directory. The recipe in it is read, not its images.

    Returns:
        A `proxemic.losses.ProxyLoss`, a `proxemic.losses.PairwiseLoss`, or a module of your own in a `UserLoss`.

    Raises:
        UserError: If there is no such run, or its training has not ended.
    """
    from proxemic.studies.finished import FinishedRun  # imports torch

    return FinishedRun(Path(run)).loss
