"""Writes the results of a trained run: test, plots and metrics."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from jaxtyping import Float
from torch import Tensor

from proxemic.data import ImageSet, Splits
from proxemic.files import read_json, write_json
from proxemic.models import load_model
from proxemic.runs.evaluate import evaluate_embeddings
from proxemic.runs.starts import BothStarts, SideBySide
from proxemic.training.advice import curve_advice
from proxemic.training.beginning import embed_by_recipe
from proxemic.training.callbacks.measures import EpochMeasure
from proxemic.training.plots import draw_curves, draw_gallery
from proxemic.training.record import Session

Embedded = Mapping[str, Float[Tensor, "images width"]]
"""Embeddings of the test images by the kept network (``test``) and by the networks before training."""


def write_results(session: Session, splits: Splits, *, test: bool) -> tuple[dict[str, Any], Embedded]:
    """Evaluate the kept network (with ``test``, on the test classes), draw plots and write the metrics."""
    recipe, run, record, report = session.recipe, session.run, session.record, session.report
    measures = [item for item in recipe.training.callbacks or [] if isinstance(item, EpochMeasure)]
    names = [name for measure in measures for name in measure.names]
    best, kept, metric = record.best, record.kept, recipe.evaluation.metric
    assert best is not None
    measured_before = read_json(run.measured_before) if names and run.measured_before.exists() else {}
    at_best = best if best["epoch"] else measured_before
    measured = {name: at_best[name] for name in names if name in at_best}
    other = {"epoch", "step", "loss", "seconds", *names}
    validation = {name: value for name, value in best.items() if name not in other}
    result, embedded = ({}, {}) if splits.test is None or not test else _test(session, splits.test, splits)
    result |= {"epoch": int(best["epoch"]), "kept": kept}
    result |= {"selected_on": recipe.evaluation.select_on, "seed": recipe.seed}
    if "test" in result or recipe.evaluation.select_on == "validation":
        result["precision"] = recipe.evaluation.precision
    if test:
        train = splits.train
        result |= {"split": _split(splits), "train_classes": train.num_classes, "train_images": len(train)}
    if recipe.evaluation.select_on == "validation":
        result["validation"] = validation
        result |= {f"validation_{name}": values for name, values in record.starts.items()}
    if measured:
        result |= {"measured": measured, "measured_before": measured_before}
    if record.ended:
        result["phases"] = [asdict(item) for item in record.ended]
    with session.times.of("plots"):
        start = max((values[metric] for values in record.starts.values()), default=None)
        draw_curves(run.read_history(), metric, run.path / "curves.png", chosen=best["epoch"], start=start)
    # Seconds of the process that finished the run; in a file of their own, as the metrics do not depend on them.
    write_json(run.path / "seconds.json", session.times.seconds())
    write_json(run.metrics, result)
    by_epoch = ([row.get(name, math.nan) for name in (metric, f"average_{metric}")] for row in record.rows)
    finite = [[value for value in values if math.isfinite(value)] for values in by_epoch]
    if advised := curve_advice(recipe, [max(values) for values in finite if values], kept, best.get(metric, math.nan)):
        report(advised)
    report(f"Wrote {run.path}")
    if splits.test is None and test:
        report(f"There are no test classes: evaluate the run {recipe.data.how_to_evaluate.format(run=run.path)}")
    return result, embedded


def _split(splits: Splits) -> str:
    """Return the kind of test: unseen classes (open-set) or new images of trained classes (closed-set)."""
    if splits.test is None:
        return "nothing held out" if splits.validation is None else "no test"
    return "closed-set" if {*splits.test.class_names} & {*splits.train.class_names} else "open-set"


def _test(session: Session, images: ImageSet, splits: Splits) -> tuple[dict[str, Any], Embedded]:
    recipe, run = session.recipe, session.run
    chosen = load_model(run.path, recipe.model.custom_backbone)[0]
    networks, widths = [chosen], {"test": chosen.config.embedding_size}
    if run.start.exists():
        start = BothStarts(load_model(run.start, recipe.model.custom_backbone)[0])
        networks, widths = [*networks, start], widths | start.widths
    asked = {"test": True, "start": recipe.evaluation.start, "untrained": recipe.evaluation.untrained}
    with session.times.of("test"):
        embeddings = embed_by_recipe(recipe, SideBySide(networks), images, "test").split([*widths.values()], dim=1)
        parts = {name: part.contiguous() for name, part in zip(widths, embeddings, strict=True) if asked[name]}
        evaluations = {name: evaluate_embeddings(part, images, recipe.evaluation) for name, part in parts.items()}
    with session.times.of("plots"):
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
