"""Begin with the weights of an earlier run."""

import json

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from proxemic.errors import UserError
from proxemic.models import EmbeddingModel, load_model
from proxemic.training.run import RunDirectory

__all__ = ["load_loss", "start_from"]


def start_from(run: RunDirectory, model: EmbeddingModel, loss: nn.Module, images: str) -> None:
    """Load the chosen weights of the network and of the loss of a run.

    Args:
        run: An earlier run.
        model: To fill; of the same shape as the run's.
        loss: To fill; with the same parameters as the run's, of any hyper-parameters.
        images: Fingerprint of the images to train on, which must be the run's: proxies belong to classes.

    Raises:
        UserError: If the run is not there, is of other images, or its weights do not fit.
    """
    run.check_run()
    if not run.loss.exists():
        raise UserError(
            f"{run.path} has no chosen weights yet: let it finish an epoch first (proxemic train --resume)."
        )
    if json.loads(run.environment.read_text(encoding="utf-8"))["images"] != images:
        raise UserError(
            f"The images are not those of {run.path}, from which this run is to start (classes, labels or the split "
            "differ), so its proxies do not fit: give both the same data."
        )
    try:
        model.load_state_dict(load_model(run.path, model.config.own)[0].state_dict())
    except RuntimeError as error:
        raise _misfit(run, "model", error) from error
    load_loss(run, loss)


def load_loss(run: RunDirectory, loss: nn.Module) -> None:
    """Fill a loss with the weights that a run's chosen epoch had.

    Raises:
        UserError: If there are none, or they do not fit.
    """
    try:
        loss.load_state_dict(load_file(run.loss))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise _misfit(run, "loss", error) from error


def _misfit(run: RunDirectory, part: str, error: Exception) -> UserError:
    return UserError(f"The weights of {run.path} do not fit this recipe's {part}: {' '.join(str(error).split())[:200]}")
