"""The results of a trained run: its test, its plots, its metrics."""

from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from proxemic.data import ImageSet, Splits
from proxemic.files import read_json, write_json
from proxemic.models import load_model
from proxemic.training.checkpointing import RunCheckpointer
from proxemic.training.components import build_networks
from proxemic.training.embed import embed_images, evaluate_embeddings, pick_device
from proxemic.training.epoch_metrics import EpochMeasure
from proxemic.training.head_start import start_head
from proxemic.training.plots import draw_curves, draw_gallery


def write_results(checkpointer: RunCheckpointer, splits: Splits, *, test: bool) -> dict[str, Any]:
    """Evaluate the chosen epoch (with ``test``, on the test classes), draw plots, and write and return the metrics."""
    recipe, run, display = checkpointer.recipe, checkpointer.run, checkpointer.display
    names = [name for each in recipe.training.callbacks or [] if isinstance(each, EpochMeasure) for name in each.names]
    best = checkpointer.best
    assert best is not None
    measured = {name: best[name] for name in names}
    other = {"epoch", "step", "loss", "seconds", *names}
    validation = {name: value for name, value in best.items() if name not in other}
    result = {} if splits.test is None or not test else _test(checkpointer, splits.test, splits)
    result |= {"epoch": int(best["epoch"]), "selected_on": recipe.evaluation.select_on, "seed": recipe.seed}
    if test:
        train = splits.train
        result |= {"split": _split(splits), "train_classes": train.num_classes, "train_images": len(train)}
    if recipe.evaluation.select_on == "validation":
        result["validation"] = validation
    if measured:
        result["measured"] = measured
        if run.measured_before.exists():  # an older run has none
            result["measured_before"] = read_json(run.measured_before)
    if checkpointer.ended:
        result["phases"] = [asdict(each) for each in checkpointer.ended]
    with display.times.of("pictures"):
        draw_curves(run.read_history(), recipe.evaluation.metric, run.path / "curves.png")
    # The seconds of the process that has finished the run; the metrics do not depend on them.
    write_json(run.path / "seconds.json", display.times.seconds())
    write_json(run.metrics, result)
    display.report(f"Wrote {run.path}")
    display.report(display.times.sentence())
    if splits.test is None and test:
        display.report(f"There are no test classes: evaluate it {recipe.data.how_to_evaluate.format(run=run.path)}")
    return result


def _split(splits: Splits) -> str:
    """Whether the test is of unseen classes (open-set) or of new images of trained ones (closed-set)."""
    if splits.test is None:
        return "nothing held out" if splits.validation is None else "no test"
    return "closed-set" if {*splits.test.class_names} & {*splits.train.class_names} else "open-set"


class _SideBySide(nn.ModuleList):
    """Concatenates the embeddings of several networks."""

    def forward(
        self, inputs: Float[Tensor, "batch channels height width"] | Float[Tensor, "batch features"]
    ) -> Float[Tensor, "batch dims"]:
        return torch.cat([network(inputs) for network in self], dim=1)


def _test(checkpointer: RunCheckpointer, images: ImageSet, splits: Splits) -> dict[str, Any]:
    recipe, run, times = checkpointer.recipe, checkpointer.run, checkpointer.display.times
    networks = {"test": load_model(run.path, recipe.model.custom_backbone)[0]}
    if recipe.evaluation.untrained:
        networks["untrained"] = build_networks(recipe, splits)[0]
        start_head(networks["untrained"], splits.train, recipe)
    with times.of("test"):
        # In one pass: reading the images takes longer than embedding them.
        embeddings = embed_images(
            _SideBySide(networks.values()).to(pick_device(recipe.training.accelerator)),
            images,
            recipe.images,
            batch_size=recipe.evaluation.batch_size,
            workers=recipe.batches.workers,
            description="test",
            precision=recipe.evaluation.precision,
        )
        each = [part.contiguous() for part in embeddings.chunk(len(networks), dim=1)]
        evaluations = [evaluate_embeddings(part, images, recipe.evaluation) for part in each]
    with times.of("pictures"):
        draw_gallery(each[0], images, run.path / "gallery.png", distance=recipe.evaluation.distance)
    result: dict[str, Any] = {name: dict(values) for name, values in zip(networks, evaluations, strict=True)}
    test = evaluations[0]
    result["chance"] = test.chance
    classes = run.read_classes()
    trained = splits.train.class_names if classes is None else classes.trained
    trained_on = len({*images.class_names} & {*trained})
    return result | {
        "test_classes": images.num_classes,
        **({"test_classes_trained_on": trained_on} if trained_on else {}),
        "test_queries": test.queries,
        "test_queries_left_out": test.left_out,
    }
