"""Evaluate finished runs on the same corrupted test images."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from proxemic.data.corruptions import CorruptedPixels, Corruption
from proxemic.errors import UserError
from proxemic.published import PublishedFigure, PublishedRow
from proxemic.runs.embed import embed_images, pick_device
from proxemic.runs.evaluate import evaluate_embeddings
from proxemic.runs.starts import SideBySide
from proxemic.studies.beside_paper import page
from proxemic.studies.finished import FinishedRun
from proxemic.studies.recipe_content import metric_names
from proxemic.studies.statistics import format_estimate, t_interval
from proxemic.tables import MISSING


def check_same_test(runs: Sequence[FinishedRun]) -> None:
    """Raise `UserError` unless all runs are evaluated on the same classes, images and roles."""

    def evaluated_on(run: FinishedRun) -> tuple[object, ...]:
        parts = (run.test.labels, run.test.is_query, run.test.is_gallery)
        return run.test.class_names, *(None if part is None else part.tolist() for part in parts)

    for run in runs[1:]:
        if evaluated_on(run) != evaluated_on(runs[0]):
            raise UserError(
                f"{runs[0].path} and {run.path} are evaluated on different test images (classes, labels or roles "
                "differ), so their values cannot be compared: give runs of the same data and split."
            )


def check_metric(runs: Sequence[FinishedRun], metric: str) -> None:
    """Raise `UserError` unless the evaluation of every run computes the metric."""
    for run in runs:
        computed = metric_names(run.content["evaluation"])
        if metric not in computed:
            raise UserError(f"The evaluation of {run.path} does not compute {metric}, but {', '.join(computed)}.")


def measure_corrupted(
    runs: Sequence[FinishedRun], corruptions: Sequence[Corruption], metric: str
) -> dict[Path, list[float]]:
    """Measure a metric (in [0, 1]) of each run, by path: on clean test images first, then under each corruption.

    Runs with the same preprocessing share the corrupted images, which are computed once.
    """
    alike: dict[str, list[FinishedRun]] = {}
    for run in runs:
        recipe = run.recipe
        seen = repr((recipe.data, recipe.cache, recipe.images, recipe.evaluation.batch_size))
        alike.setdefault(seen, []).append(run)
    values: dict[Path, list[float]] = {run.path: [] for run in runs}
    total = len(alike) * (1 + len(corruptions))
    with tqdm(total=total, desc="robustness", unit=" settings", leave=False, disable=None) as bar:
        for corruption in (None, *corruptions):
            for group in alike.values():
                for run, embeddings in zip(group, _embed(group, corruption), strict=True):
                    evaluation = run.recipe.evaluation
                    if metric not in ("nmi", "nmi_geometric", "ami"):
                        evaluation = replace(evaluation, nmi=False)  # k-means would take most of the time
                    values[run.path].append(evaluate_embeddings(embeddings, run.test, evaluation)[metric])
                bar.update()
    return values


def _embed(group: Sequence[FinishedRun], corruption: Corruption | None) -> Sequence[Float[Tensor, "images dim"]]:
    recipe, images = group[0].recipe, group[0].test
    if corruption is not None:
        images = images.with_pixels(CorruptedPixels(images.pictures, corruption, recipe.images))
    embeddings = embed_images(
        SideBySide([run.model for run in group]).to(pick_device("auto")),
        images,
        recipe.images if corruption is None else replace(recipe.images, resize=None),
        batch_size=recipe.evaluation.batch_size,
        workers=recipe.batches.workers,
        description="clean" if corruption is None else f"{corruption.name} {corruption.severity}",
    )
    return embeddings.split([run.recipe.model.embedding_size for run in group], dim=1)


def robustness_against_paper(
    recipes: Mapping[str, Mapping[str, Any]], values: Mapping[str, Mapping[str, Sequence[float]]], metric: str, of: str
) -> str:
    """Write Markdown with a metric under corruptions of the severities ``of``, next to the paper's Table IV.

    ``values`` contains a value per run, by recipe and name of the corruption; ``none`` means clean images.
    """

    def ours(title: str, row: PublishedRow, figure: PublishedFigure) -> tuple[str, str]:
        name = figure.settings.removeprefix("corruption=")
        measured = values[title].get(name) if figure.metric == metric else None
        return f"{figure.metric} {name}", format_estimate(t_interval(measured)) if measured else MISSING

    return page(
        f"{metric} on corrupted test images, in percent. Ours: {of}, with a 95% interval over seeds; theirs as "
        "printed.",
        recipes,
        "analyze robustness",
        ours,
        lambda title: len(next(iter(values[title].values()))),
    )
