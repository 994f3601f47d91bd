"""Weights between those of the start and those of the end, of which the best on the held-out images are kept."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from proxemic.data import ImageSet
from proxemic.models import EmbeddingModel, load_model, save_model
from proxemic.models.lora import merged_state
from proxemic.runs.directory import RunDirectory
from proxemic.runs.embed import embed_images, pick_device
from proxemic.runs.evaluate import evaluate_embeddings
from proxemic.runs.starts import SideBySide
from proxemic.training.module import EmbeddingTask
from proxemic.training.recipe import Recipe
from proxemic.training.record import Display, Record, write_loss


@dataclass(frozen=True)
class Interpolated:
    """The metrics of each interpolation, and the one that is kept; None where what was chosen before is."""

    values: Sequence[dict[str, float]]
    kept: dict[str, float] | None

    def sentence(self, metric: str, epoch: int, before: float) -> str:
        """Say what is kept in place of what was chosen ``before``."""
        assert self.kept is not None
        return (
            f"The run keeps the weights at {self.kept['alpha']:g} of the way from the start to epoch {epoch}: "
            f"validation {metric} {self.kept[metric]:.4f}, before {before:.4f}."
        )


def interpolate(
    recipe: Recipe, run: RunDirectory, record: Record, task: EmbeddingTask, images: ImageSet, display: Display
) -> Interpolated:
    """Evaluate the networks between the start and the chosen epoch, and keep the best where it is better.

    Where the run keeps its start, the end is the last epoch. Statistics of batch norm lie between as the weights do.
    """
    shares, best = recipe.training.interpolate, record.best
    assert best is not None
    start = load_model(run.start, recipe.model.custom_backbone)[0]
    is_start = record.kept in record.starts
    end = task.model if is_start else load_model(run.path, recipe.model.custom_backbone)[0]
    networks = [_between(start, end, share) for share in shares]
    with display.times.of("validation"):
        embeddings = embed_images(
            SideBySide(networks).to(pick_device(recipe.training.accelerator)),
            images,
            recipe.images,
            batch_size=recipe.evaluation.batch_size,
            workers=recipe.batches.workers,
            description="interpolations",
            precision=recipe.evaluation.precision,
        )
        parts = embeddings.chunk(len(shares), dim=1)
        each = [evaluate_embeddings(part.contiguous(), images, recipe.evaluation) for part in parts]
    metric = recipe.evaluation.metric
    values = [{"alpha": share, **metrics} for share, metrics in zip(shares, each, strict=True)]
    better = max(values, key=lambda value: value[metric])
    if better[metric] <= best[metric]:
        return Interpolated(values, None)
    run.set_chosen_aside()
    save_model(run.path, networks[values.index(better)].cpu(), recipe.preprocessing)
    if is_start:
        write_loss(run, task.loss, task.shards)
    return Interpolated(values, better)


@torch.no_grad()
def _between(start: EmbeddingModel, end: EmbeddingModel, share: float) -> EmbeddingModel:
    """The network whose weights are so far on the way from the start to the end."""
    network, ends = copy.deepcopy(start), merged_state(end)

    def mixed(name: str, value: Tensor) -> Tensor:
        target = ends[name].to(value.device)
        return value.lerp(target, share) if value.is_floating_point() else target

    network.load_state_dict({name: mixed(name, value) for name, value in start.state_dict().items()})
    return network
