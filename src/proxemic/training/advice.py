"""Lines for the user: advice about a recipe and about the validation curve of a run, and its progress."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

from tqdm import tqdm

from proxemic.addresses import TRANSFORMERS
from proxemic.data import Splits
from proxemic.models import EmbeddingModel, ModelConfig
from proxemic.models.backbones.transformers_models import find_folder, read_image_processor
from proxemic.models.freezing import describe_training
from proxemic.models.lora import describe_adapters
from proxemic.runs.verdict import BEFORE
from proxemic.tables import percent
from proxemic.training.phases import EndedPhase
from proxemic.training.recipe import Recipe
from proxemic.training.record import Record

_RISES = 0.05  # of the range of the curve, between its last two quarters: with less it has levelled off
_ENOUGH = 0.6  # of the epochs: a falling learning rate usually makes a later epoch the best
_CURVE = 4  # fewest epochs for advice about the best one


def advice(recipe: Recipe) -> Iterator[str]:
    """Warn about settings that are allowed but probably a mistake."""
    if recipe.evaluation.select_on == "test":
        yield "WARNING: the epoch is selected on the test classes: the results are too good, and the output says so."
    images, model = recipe.images, recipe.model
    size, learnt = _learnt(model)
    if size is not None and size != images.size:
        yield (
            f"NOTE: images.size is {images.size}, but the pretrained weights of {model.backbone_name} were trained "
            f"with {size}: give --images.size {size} unless you mean it."
        )
    if learnt is None:
        return
    # A pretrained network gets grey images as three equal colours.
    mean, std = ([images.white * value for value in values] for values in learnt)
    if images.channels == 1:
        mean, std = ([sum(values) / len(values)] for values in (mean, std))
    if images.channel_order == "bgr":
        mean, std = mean[::-1], std[::-1]
    given = [*images.mean, *images.std]
    if any(abs(one - other) > 0.01 * images.white for one, other in zip(given, [*mean, *std], strict=True)):
        yield (
            f"WARNING: images.mean is {_shown(images.mean)} and images.std {_shown(images.std)}, but the pretrained "
            f"weights of {model.backbone_name} were trained with others: give --images.mean '{_shown(mean)}' "
            f"--images.std '{_shown(std)}'."
        )


def curve_advice(recipe: Recipe, values: Sequence[float], kept: str, start: float) -> str | None:
    """Return what to try next, from the shape of a validation curve; return None if the curve looks normal.

    ``values`` holds the metric after each epoch. If no epoch was better than the network before training, ``kept`` is
    ``start`` or ``untrained``, and ``start`` is the metric of that network.
    """
    if not values:
        return None
    count, best, metric = len(values), max(values), recipe.evaluation.metric
    at, quarter = values.index(best) + 1, max(1, count // 4)
    growth = fmean(values[-quarter:]) - fmean(values[-2 * quarter : -quarter] or values)
    rising = at > count - quarter and growth > _RISES * (best - min(values))
    lr = f"--optim.lr, which is {recipe.optim.lr:g}"
    longer = f"at epoch {count} of {count}: try more epochs (--training.epochs {2 * count}) or a higher {lr}."
    if kept in BEFORE:
        worse = (
            f"WARNING: No epoch was better than the network before training (validation {metric} {percent(start)}, the "
            f"best epoch's {percent(best)}): the run keeps the network {BEFORE[kept]}; "
        )
        if rising:
            return f"{worse}validation was still rising {longer}"
        hints = [*(["fewer epochs"] if 1 < at < count else []), *_gentler(recipe.model)]
        return f"{worse}try {', '.join(hints)}{' or ' if hints else ''}a lower {lr}."
    if recipe.second_phase is not None or recipe.training.until_plateau is not None:
        return None  # it ends by itself, or may fall and rise again
    if rising:
        return f"Validation {metric} was still rising {longer}"
    if count >= _CURVE and at <= _ENOUGH * count:
        return f"Validation {metric} was best at epoch {at} of {count}: try fewer epochs (--training.epochs {at})."
    return None


def _gentler(model: ModelConfig) -> list[str]:
    """Suggest flags that make training change the network less."""
    if model.takes_vectors or model.train == "head":
        return []
    # Most often a network gets worse because statistics of batch norm are learnt anew from few images.
    learnt = model.pretrained or model.weights is not None
    hints = ["--model.freeze_batch_norm true"] if learnt and not model.freeze_batch_norm else []
    return [*hints, *(["--model.train head"] if model.head != "none" else [])]


def _learnt(model: ModelConfig) -> tuple[int | None, tuple[Sequence[float], Sequence[float]] | None]:
    """Return the image size, if known, and the mean and standard deviation that the network's weights expect."""
    if not model.pretrained or model.custom_backbone:
        return None, None
    if not model.backbone_name.startswith(TRANSFORMERS):
        from timm import get_pretrained_cfg

        known = get_pretrained_cfg(model.backbone_name)
        return None, None if known is None else (known.mean, known.std)
    processor = read_image_processor(find_folder(model.backbone_name, weights=True))
    said = {} if processor is None else json.loads(processor.to_json_string())
    size = said.get("crop_size" if said.get("do_center_crop") else "size") or {}
    mean, std = said.get("image_mean"), said.get("image_std")
    if said.get("do_normalize") is False:
        mean, std = [0.0] * 3, [1.0] * 3
    height = size.get("height") or size.get("shortest_edge")
    if isinstance(mean, list) and isinstance(std, list) and len(mean) == len(std) == 3:
        return height, (mean, std)
    return height, None


def _shown(values: Sequence[float]) -> str:
    return f"[{', '.join(f'{value:g}' for value in values)}]"


def introduce(recipe: Recipe, splits: Splits, model: EmbeddingModel, report: Callable[[str], object]) -> None:
    """Report what a run trains on, which parts of its network are trained, and advice about its recipe."""
    for note in splits.notes:
        report(note)
    parts = {"training": splits.train, "validation": splits.validation, "test": splits.test}
    for name, images in parts.items():
        if images is not None:
            report(f"{name}: {images.num_classes:,} classes, {len(images):,} {images.kind}")
    if recipe.model.train != "all":
        report(describe_training(model.backbone, recipe.model.train, recipe.model.backbone_name))
    if recipe.model.lora is not None:
        report(describe_adapters(model.backbone, recipe.model.lora, recipe.model.backbone_name))
    for sentence in advice(recipe):
        report(sentence)


def start_line(recipe: Recipe, starts: Mapping[str, Mapping[str, float]]) -> str:
    """Return the line about the network before training, given its metrics as `evaluate_starts` returns them."""
    metric = recipe.evaluation.metric
    shown = {name: percent(values[metric]) for name, values in starts.items()}
    head = f", new head {shown.get('untrained', 'not finite')}" if recipe.model.head != "none" else ""
    return f"before training  validation {metric} {shown.get('start', 'not finite')}{head}"


def epoch_line(
    recipe: Recipe, record: Record, row: Mapping[str, float], epochs: int, *, rate: float, seconds: float
) -> str:
    """Return the line about an epoch.

    ``row`` is the epoch's row of the history, ``rate`` the number of training images per second, and ``seconds`` the
    time of the epoch with evaluation and saving.
    """
    name, best, left = recipe.evaluation.metric, record.best, epochs - int(row["epoch"])
    line = f"epoch {row['epoch']:.0f}/{epochs}  loss {row['loss']:.4f}"
    if name in row and best is not None:
        at = f"epoch {best['epoch']:.0f}" if best["epoch"] else "before training"
        averaged = f", averaged {percent(row[f'average_{name}'])}" if f"average_{name}" in row else ""
        line += f"  validation {name} {percent(row[name])}{averaged}  (best {percent(best[name])}, {at})"
    line += f"  {rate:,.0f} {recipe.kind}/s"
    return f"{line}, {tqdm.format_interval(left * seconds)} left" if left else line


def phase_line(recipe: Recipe, ended: Sequence[EndedPhase]) -> str:
    """Return the line about the phase that has just ended."""
    until, last = recipe.training.until_plateau, ended[-1]
    assert until is not None
    phases = ("The first phase", "The second phase") if recipe.second_phase else ("Training",)
    name = phases[len(ended) - 1]
    if last.reason == "epochs":
        return f"{name} ended after all of its {last.epochs} epochs, before a plateau."
    by = f" by more than {until.min_improvement:g}" if until.min_improvement else ""
    return (
        f"{name} ended after {last.epochs} epochs, at a plateau: validation {recipe.evaluation.metric} has not grown"
        f"{by} in {'1 epoch' if until.patience == 1 else f'{until.patience} epochs'}."
    )
