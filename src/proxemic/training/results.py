"""The results of a trained run: its test, its plots, its metrics."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from proxemic.data import ImageSet, Splits
from proxemic.files import read_json, write_json
from proxemic.models import load_model
from proxemic.runs.directory import RunDirectory
from proxemic.runs.embed import embed_images, pick_device
from proxemic.runs.evaluate import evaluate_embeddings
from proxemic.runs.starts import BothStarts, SideBySide
from proxemic.training.advice import curve_advice
from proxemic.training.callbacks.measures import EpochMeasure
from proxemic.training.interpolation import interpolate
from proxemic.training.module import EmbeddingTask
from proxemic.training.plots import draw_curves, draw_gallery
from proxemic.training.recipe import Recipe
from proxemic.training.record import Display, Record
from proxemic.training.times import Times

Embedded = Mapping[str, Float[Tensor, "images width"]]
"""Embeddings of the test images: by the network that is kept (``test``), and those of before the first step."""


def write_results(
    recipe: Recipe,
    run: RunDirectory,
    record: Record,
    task: EmbeddingTask,
    splits: Splits,
    held_out: ImageSet | None,
    display: Display,
    *,
    test: bool,
) -> tuple[dict[str, Any], Embedded]:
    """Interpolate, evaluate what is kept (with ``test``, on the test classes), draw plots, and write the metrics."""
    names = [name for each in recipe.training.callbacks or [] if isinstance(each, EpochMeasure) for name in each.names]
    best, kept, metric = record.best, record.kept, recipe.evaluation.metric
    assert best is not None
    interpolated = None
    if recipe.training.interpolate and held_out is not None:
        interpolated = interpolate(recipe, run, record, task, held_out, display)
    measured_before = read_json(run.measured_before) if names and run.measured_before.exists() else {}
    at_best = best if best["epoch"] else measured_before
    measured = {name: at_best[name] for name in names if name in at_best}
    other = {"epoch", "step", "loss", "seconds", *names}
    validation = {name: value for name, value in best.items() if name not in other}
    result, embedded = (
        ({}, {}) if splits.test is None or not test else _test(recipe, run, splits.test, splits, display.times)
    )
    epoch = int(best["epoch"])
    if interpolated is not None and interpolated.kept is not None:
        kept, validation = "interpolation", dict(interpolated.kept)
        result["alpha"] = validation.pop("alpha")
        epoch = epoch or len(record.rows)  # of the end between which and the start it lies
        display.report(interpolated.sentence(metric, epoch, best[metric]))
    result |= {"epoch": epoch, "kept": kept}
    result |= {"selected_on": recipe.evaluation.select_on, "seed": recipe.seed}
    if "test" in result or recipe.evaluation.select_on == "validation":
        result["precision"] = recipe.evaluation.precision
    if test:
        train = splits.train
        result |= {"split": _split(splits), "train_classes": train.num_classes, "train_images": len(train)}
    if recipe.evaluation.select_on == "validation":
        result["validation"] = validation
        result |= {f"validation_{name}": values for name, values in record.starts.items()}
        if interpolated is not None:
            result["interpolated"] = interpolated.values
    if measured:
        result["measured"] = measured
        if measured_before:  # an older run has none
            result["measured_before"] = measured_before
    if record.ended:
        result["phases"] = [asdict(each) for each in record.ended]
    with display.times.of("pictures"):
        start = max((values[metric] for values in record.starts.values()), default=None)
        draw_curves(run.read_history(), metric, run.path / "curves.png", chosen=best["epoch"], start=start)
    # The seconds of the process that has finished the run; the metrics do not depend on them.
    write_json(run.path / "seconds.json", display.times.seconds())
    write_json(run.metrics, result)
    values = [max(_finite(row, metric)) for row in record.rows if _finite(row, metric)]
    if advised := curve_advice(recipe, values, kept, best.get(metric, math.nan)):
        display.report(advised)
    display.report(f"Wrote {run.path}")
    display.report(display.times.sentence())
    if splits.test is None and test:
        display.report(f"There are no test classes: evaluate it {recipe.data.how_to_evaluate.format(run=run.path)}")
    return result, embedded


def _finite(row: Mapping[str, float], metric: str) -> list[float]:
    """Return the metric after an epoch, of the network and of the average of its weights, as far as they are known."""
    return [row[name] for name in (metric, f"average_{metric}") if math.isfinite(row.get(name, math.nan))]


def _split(splits: Splits) -> str:
    """Whether the test is of unseen classes (open-set) or of new images of trained ones (closed-set)."""
    if splits.test is None:
        return "nothing held out" if splits.validation is None else "no test"
    return "closed-set" if {*splits.test.class_names} & {*splits.train.class_names} else "open-set"


def _test(
    recipe: Recipe, run: RunDirectory, images: ImageSet, splits: Splits, times: Times
) -> tuple[dict[str, Any], Embedded]:
    chosen = load_model(run.path, recipe.model.custom_backbone)[0]
    networks, widths = nn.ModuleList([chosen]), {"test": chosen.config.embedding_size}
    if run.start.exists():  # a run that an earlier version began has none
        start = BothStarts(load_model(run.start, recipe.model.custom_backbone)[0])
        networks, widths = networks.append(start), widths | start.widths
    with times.of("test"):
        # In one pass: reading the images takes longer than embedding them.
        embeddings = embed_images(
            SideBySide(networks).to(pick_device(recipe.training.accelerator)),
            images,
            recipe.images,
            batch_size=recipe.evaluation.batch_size,
            workers=recipe.batches.workers,
            description="test",
            precision=recipe.evaluation.precision,
        )
        parts = dict(zip(widths, embeddings.split([*widths.values()], dim=1), strict=True))
        asked = {"test": True, "start": recipe.evaluation.start, "untrained": recipe.evaluation.untrained}
        parts = {name: part.contiguous() for name, part in parts.items() if asked[name]}
        evaluations = {name: evaluate_embeddings(part, images, recipe.evaluation) for name, part in parts.items()}
    with times.of("pictures"):
        draw_gallery(parts["test"], images, run.path / "gallery.png", distance=recipe.evaluation.distance)
    result: dict[str, Any] = {name: dict(values) for name, values in evaluations.items()}
    test = evaluations["test"]
    result["chance"] = test.chance
    classes = run.read_classes()
    trained = splits.train.class_names if classes is None else classes.trained
    trained_on = len({*images.class_names} & {*trained})
    result |= {
        "test_classes": images.num_classes,
        **({"test_classes_trained_on": trained_on} if trained_on else {}),
        "test_queries": test.queries,
        "test_queries_left_out": test.left_out,
    }
    return result, parts
