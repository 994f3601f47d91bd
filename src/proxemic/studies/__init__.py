"""Studies: train and compare many runs, or evaluate finished ones.

`comparison` trains recipes over seeds and compares them. `tuning` tunes hyper-parameters. `reality_check` does both for
several losses with the same budget. All three are directories of many runs (`directories`), which `jobs` trains.
`evaluate` and `verify` measure finished runs, `corrupted` evaluates them on corrupted images, and `finished` opens them
again. Each module is imported when it is used, as tuning needs Optuna.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxemic.losses.user_defined import Loss
    from proxemic.studies import comparison, reality_check, tuning  # noqa: TC004 - submodules, when they are named

__all__ = ["comparison", "load_loss", "reality_check", "tuning"]


def load_loss(run: str | Path) -> "Loss":
    """Load the loss of a trained run, with the weights of its selected epoch.

    `proxemic.models.load_model` loads its network.

    Args:
        run: A run directory. Its recipe is read, but not its images.

    Returns:
        A `proxemic.losses.ProxyLoss`, a `proxemic.losses.PairwiseLoss`, or a module of your own in a `UserLoss`.

    Raises:
        UserError: If there is no such run, or its training has not ended.
    """
    from proxemic.studies.finished import FinishedRun  # imports torch

    return FinishedRun(Path(run)).loss
