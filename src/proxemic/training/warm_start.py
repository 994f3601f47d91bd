"""Begin with the weights of an earlier run, of the same classes or of others."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from proxemic.data import Splits
from proxemic.errors import UserError
from proxemic.losses.margins import MARGINS
from proxemic.models import EmbeddingModel, load_model
from proxemic.models.lora import load_merged_state
from proxemic.runs.directory import RunDirectory, split_fingerprint
from proxemic.training.recipe import Recipe


def start_from(run: RunDirectory, model: EmbeddingModel, loss: nn.Module, splits: Splits) -> str:
    """Load the chosen weights of a run into a network and a loss, and say in a sentence which were taken.

    The whole loss is taken if the images are those of the run. Otherwise the proxies of classes of the same names are,
    and all else that the loss learns is new. A loss of another kind or shape is new as a whole.
    """
    run.check_run()
    if run.keeps_features:
        raise UserError(
            f"{run.path} keeps the network as it came, without a head and proxies, as no epoch was better: begin with "
            f"its backbone, by --model.weights {run.model}, or train it anew with a lower --optim.lr."
        )
    if not run.loss.exists():
        raise UserError(
            f"{run.path} has no chosen weights yet: let it finish an epoch first (proxemic train --resume)."
        )
    learned = _learned(run.read_loss())
    same = run.has_images(split_fingerprint(splits))
    names = splits.train.class_names if same else _trained_classes(run)
    try:
        load_merged_state(model, load_model(run.path, model.config.custom_backbone)[0].state_dict())
    except RuntimeError as error:
        raise UserError(
            f"The network of {run.path} does not fit this recipe's model ({' '.join(str(error).split())[:200]}): give "
            f"it the same model, or take what fits by --model.weights {run.model}."
        ) from error
    begin = f"Starting from {run.path}: its network"
    state = loss.state_dict()
    if same and _shapes(learned) == _shapes(_learned(state)):
        loss.load_state_dict(state | learned)
        return f"{begin} and its loss, as the images are the same."
    kept = _keep_proxies(loss, splits.train.class_names, learned, names)
    if kept is None:
        return f"{begin}; the loss is new, as that of the run is of another kind or shape."
    count = splits.train.num_classes
    return f"{begin}; {kept} of {count:,} classes keep their proxies, by name, and {count - kept:,} get new ones."


def trained_before(recipe: Recipe) -> frozenset[str]:
    """The names of the classes, as far as is known, that the weights which a recipe begins with were trained on."""
    weights = recipe.model.weights
    begun_with = [recipe.training.start_from, None if weights is None else Path(weights).expanduser().parent]
    known = [RunDirectory(path).read_classes() for path in begun_with if path is not None]
    return frozenset().union(*(classes.trained for classes in known if classes is not None))


def _trained_classes(run: RunDirectory) -> Sequence[str]:
    classes = run.read_classes()
    if classes is None:
        raise UserError(
            f"The images are not those of {run.path}, and the run does not say which classes its proxies belong to "
            f"(there is no {run.classes}): begin with its network alone, by --model.weights {run.model}."
        )
    return classes.train


def load_loss(run: RunDirectory, loss: nn.Module) -> None:
    """Load the weights of a run's chosen epoch into a loss."""
    try:
        loss.load_state_dict(run.read_loss())
    except RuntimeError as error:
        message = " ".join(str(error).split())[:200]
        raise UserError(f"The weights of {run.path} do not fit this recipe's loss: {message}") from error


@torch.no_grad()
def _keep_proxies(
    loss: nn.Module, classes: Sequence[str], learned: dict[str, Tensor], names: Sequence[str]
) -> int | None:
    """Copy the rows of classes of the same names and count them; None where the losses do not compare.

    A loss's own parameters have a row per class; those of its submodules, such as a graph network, are not copied.
    """
    parameters = dict(loss.named_parameters(recurse=False))
    values = {name: value for name, value in learned.items() if name in parameters}
    shapes = {name: [len(names), *value.shape[1:]] for name, value in parameters.items()}
    if not parameters or _shapes(values) != shapes:
        return None
    place = {name: row for row, name in enumerate(names)}
    kept = [(row, place[name]) for row, name in enumerate(classes) if name in place]
    if kept:
        new, old = (torch.tensor(rows) for rows in zip(*kept, strict=True))
        for name, parameter in parameters.items():
            parameter[new] = values[name][old].to(parameter.dtype)
    return len(kept)


def _learned(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state without the margins of classes, which a loss takes from its recipe."""
    return {name: value for name, value in state.items() if name not in MARGINS}


def _shapes(tensors: dict[str, Tensor]) -> dict[str, list[int]]:
    return {name: list(value.shape) for name, value in tensors.items()}
