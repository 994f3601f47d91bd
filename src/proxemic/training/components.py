"""Builds the images, network, loss, optimiser and batches of a recipe, and checks that they fit together."""

from dataclasses import dataclass, replace

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from proxemic.data import ImageSet, Splits
from proxemic.data.vectors import Vectors
from proxemic.errors import UserError
from proxemic.losses import HISTLoss, PairwiseLoss, ProxyLoss
from proxemic.losses.user_defined import Loss, LossFactory, loss_name, make_loss
from proxemic.models import EmbeddingModel, ModelConfig, build_model, check_backbone
from proxemic.runs.directory import RunDirectory
from proxemic.runs.embed import evaluation_mode
from proxemic.runs.evaluate import check_own_metrics
from proxemic.runs.processes import Processes
from proxemic.training.beginning import check_start
from proxemic.training.callbacks.measures import EpochMeasure, Snapshots
from proxemic.training.data import TrainingData
from proxemic.training.distributed.shards import ProxyShards
from proxemic.training.failures import explanation
from proxemic.training.phases import Phase, share_parameters
from proxemic.training.recipe import Recipe
from proxemic.training.record import Session


@dataclass(frozen=True)
class Components:
    """The parts of a run; they depend only on the recipe and its seed."""

    splits: Splits
    model: EmbeddingModel
    phases: list[Phase]
    data: TrainingData
    shards: ProxyShards | None


def build_components(session: Session, splits: Splits) -> Components:
    """Build all parts of a recipe; those that do not fit together raise an error before anything is written."""
    recipe, run, processes = session.recipe, session.run, session.processes
    with session.times.of("network"):
        model, loss = build_networks(recipe, splits)
        _check_takes_images(recipe, model, run)
    _check_schedule(recipe, recipe.optim.build(model, loss, sharded=recipe.proxies == "sharded")[1])
    check_own_metrics(recipe.evaluation)
    if isinstance(loss, PairwiseLoss):
        loss.check_batch_size(recipe.batches.size)
    check_start(recipe, loss)
    phases = [Phase(loss, recipe.optim), *_second_phase(recipe, model, splits)]
    for phase in phases[1:]:
        share_parameters(phase.loss, loss)
    for measure in recipe.training.callbacks or []:
        if isinstance(measure, EpochMeasure):
            for phase in phases:
                measure.check(phase.loss)
    data = TrainingData(splits.train, recipe, rank=processes.rank, world=processes.world)
    shards = None
    if recipe.proxies == "sharded":
        _check_sharded(recipe, loss, processes)
        shards = ProxyShards(run.checkpoint.parent, processes, splits.train.num_classes)
    return Components(splits, model, phases, data, shards)


def _check_sharded(recipe: Recipe, loss: Loss, processes: Processes) -> None:
    if not isinstance(loss, ProxyLoss) or isinstance(loss, HISTLoss):
        raise UserError(
            f"proxies is sharded, but {loss_name(loss)} "
            + ("needs those of the whole batch" if isinstance(loss, HISTLoss) else "has none")
            + ": set it to replicated."
        )
    for callback in recipe.training.callbacks or []:
        if processes.world > 1 and isinstance(callback, EpochMeasure | Snapshots):
            raise UserError(
                f"{type(callback).__name__} is among training.callbacks and looks at all proxies, but they are sharded "
                f"over {processes.world} processes: leave it out, or set proxies to replicated."
            )


def _check_schedule(recipe: Recipe, schedule: LRScheduler | None) -> None:
    if isinstance(schedule, ReduceLROnPlateau) and recipe.evaluation.select_on == "last":
        raise UserError(
            "optim.schedule is ReduceLROnPlateau, which waits for evaluation.metric on held-out classes, but "
            "evaluation.select_on is last, so that there are none: take another schedule, or select_on validation."
        )


def _second_phase(recipe: Recipe, model: EmbeddingModel, splits: Splits) -> list[Phase]:
    second = recipe.second_phase
    if second is None:
        return []
    with torch.random.fork_rng(devices=[]):  # its random weights are replaced by those of the first phase
        loss = _loss(second.loss, recipe, splits)
    _check_schedule(recipe, second.optim.build(model, loss, sharded=recipe.proxies == "sharded")[1])
    return [Phase(loss, second.optim)]


def build_networks(recipe: Recipe, splits: Splits) -> tuple[EmbeddingModel, Loss]:
    """Build the untrained network and loss of a recipe from its seed."""
    torch.manual_seed(recipe.seed)
    model = build_model(fit_to_data(recipe.model, splits.train))
    return model, _loss(recipe.loss, recipe, splits)


def fit_to_data(config: ModelConfig, images: ImageSet) -> ModelConfig:
    """Set the model's input size for vectors; `UserError` if the model takes other inputs than the data have."""
    if not isinstance(images.pixels, Vectors):
        if config.takes_vectors:
            raise UserError(
                "model.backbone is none, which takes vectors, but the data are images: take another backbone, as "
                "convnet, or give vectors (data: proxemic.data.OwnVectors)."
            )
        return config
    dim = images.pixels.dim
    if config.custom_backbone is None:
        check_backbone(config.backbone_name)
    if not config.takes_vectors:
        raise UserError(
            f"The data are vectors of {dim:,} dimensions, but model.backbone is {config.backbone_name}, which takes "
            "images: set it to none."
        )
    if config.input_size not in (None, dim):
        raise UserError(
            f"model.input_size is {config.input_size:,}, but the data are vectors of {dim:,} dimensions: leave it null."
        )
    return replace(config, input_size=dim, input_model=config.input_model or images.pixels.made_by)


def _loss(make: LossFactory, recipe: Recipe, splits: Splits) -> Loss:
    loss = make_loss(make, splits.train.num_classes, recipe.model.embedding_size, normalized=recipe.model.normalize)
    if isinstance(loss, ProxyLoss):
        loss.count_classes(torch.bincount(splits.train.labels, minlength=splits.train.num_classes))
    return loss


@torch.no_grad()
def _check_takes_images(recipe: Recipe, model: EmbeddingModel, run: RunDirectory) -> None:
    if model.config.takes_vectors:
        return
    for name, size in (("images.size", recipe.images.size), ("augment.size", recipe.augment.size)):
        try:
            if size is not None:
                with evaluation_mode(model):
                    model(torch.zeros(1, recipe.images.channels, size, size))
        except (AssertionError, RuntimeError) as error:
            if explanation(error, recipe, run):
                raise
            raise UserError(
                f"{name} is {size}, but the network ({recipe.model.backbone_name}) cannot take images of {size} by "
                f"{size} pixels ({' '.join(str(error).split())[:200].rstrip('.')}): give the size that it is made for."
            ) from error


def held_out_images(recipe: Recipe, splits: Splits) -> ImageSet | None:
    """Return the images for model selection; None if the last epoch is kept."""
    select_on = recipe.evaluation.select_on
    if select_on == "validation" and splits.validation is None:
        raise UserError(
            "There are no validation classes to select the epoch on (data.validation_fraction is 0): set it above 0, "
            "or keep the last epoch with --evaluation.select_on last."
        )
    if select_on == "test" and splits.validation is not None:
        raise UserError(
            "The data gives validation classes of its own, which --no-validation would leave unused: make them "
            "training classes there, or set data.validation_fraction to 0."
        )
    if select_on == "test" and splits.test is None:
        raise UserError(
            "There are no test classes to select the epoch on: take "
            "--evaluation.select_on last, or validation with data.validation_fraction above 0."
        )
    return {"validation": splits.validation, "test": splits.test, "last": None}[select_on]
