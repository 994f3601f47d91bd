"""Measure whether the proxies of a class found its local centres."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from proxemic.analysis.local_centers import (
    LocalCenters,
    nearest_own_proxy,
    proxies_used,
    proxy_cosine,
    shuffled_information,
)
from proxemic.analyze.results import Analysis, PathLike
from proxemic.data import EmbeddingDataset, derive_seed
from proxemic.errors import UserError
from proxemic.files import write_json
from proxemic.losses import ProxyLoss
from proxemic.losses.checks import check_count
from proxemic.studies.finished import FinishedRun, find_runs
from proxemic.studies.statistics import t_interval
from proxemic.tables import Table


def local_centers(
    runs: Sequence[PathLike], *, draws: int = 8, shuffles: int = 200, seed: int = 0, json: PathLike | None = None
) -> Analysis[Mapping[Path, tuple[Mapping[str, LocalCenters], Mapping[str, float]]]]:
    """Measure the bits that the nearest proxy of its class gives about an image's attribute, compared with chance.

    An attribute is the typeface of a glyph, or the column subclass of a table.

    Args:
        runs: Finished runs with several proxies per class, on images with `ImageSet.attributes`.
        draws: Number of augmented versions of each image.
        shuffles: Number of shuffles for the range of chance.
        seed: Seed of augmentation and shuffles.
        json: JSON file for the figures.

    Returns:
        For each run, the information by attribute, such as ``family`` for glyphs, and the mean number of proxies per
        class that are ``used``, the number ``per_class``, and their mean ``cosine``.
    """
    check_count("draws", draws, 1, "an image is embedded as often")
    measured = {run.path: _measure(run, draws, shuffles, seed) for run in find_runs([Path(path) for path in runs])}
    centers = {path: centers for path, (centers, _) in measured.items()}
    names = {run: run.name if len({path.name for path in centers}) == len(centers) else str(run) for run in centers}
    rows = [
        [names[run], name, _bits(center.information), _chance(center), _bits(center.most)]
        for run, properties in centers.items()
        for name, center in properties.items()
    ]
    title = "Bits that the nearest proxy of its class gives about a training image"
    summary: list[Table | str] = [Table(["run", "property", "bits", "by chance (95%)", "at most"], rows, title)]
    if len(centers) > 1:
        title = "Bits beyond chance, mean and 95% interval over the runs (t distribution)"
        summary.append(Table(["property", "bits beyond chance"], _means([*centers.values()]), title))
    summary += [
        f"{run}: {proxies['used']:.2f} of the {proxies['per_class']:.0f} proxies of a class are the nearest of some "
        f"image; mean cosine between two of them {proxies['cosine']:.4f}"
        for run, (_, proxies) in measured.items()
    ]
    if json is not None:
        content = {
            str(run): {name: asdict(center) for name, center in properties.items()} | {"proxies": proxies}
            for run, (properties, proxies) in measured.items()
        }
        write_json(Path(json), content)
    return Analysis(figures=measured, summary=summary, written=[] if json is None else [Path(json)])


def _means(runs: Sequence[Mapping[str, LocalCenters]]) -> list[list[str]]:
    names = [name for name in runs[0] if all(name in run for run in runs)]
    beyond = {name: t_interval([run[name].information - run[name].chance for run in runs]) for name in names}
    return [[name, f"{_bits(estimate.mean)} ± {estimate.half_width:.3f}"] for name, estimate in beyond.items()]


def _chance(center: LocalCenters) -> str:
    least, most = center.chance_range
    return f"{_bits(center.chance)} ({_bits(least)} … {_bits(most)})"


def _bits(value: float) -> str:
    return f"{round(value, 3) + 0.0:.3f}"  # no -0.000


def _measure(
    run: FinishedRun, draws: int, shuffles: int, seed: int
) -> tuple[dict[str, LocalCenters], dict[str, float]]:
    train, loss = run.train, run.loss
    if not train.attributes:
        raise UserError(
            f"The training {train.kind} of {run.path} have no attributes that differ within their classes: give a run "
            "on Glyphs, GlyphLetters, or a table with a column subclass."
        )
    if not isinstance(loss, ProxyLoss) or loss.proxies_per_class == 1:
        raise UserError(
            f"{run.path} has one proxy per class, or none, but the analysis needs several: train with "
            "--loss.proxies_per_class 2 or more."
        )
    embeddings = _embed_augmented(run, draws, seed)
    labels = train.labels.repeat(draws)
    nearest = nearest_own_proxy(loss, embeddings, labels)
    # Whole images are shuffled, because the draws of an image are similar.
    images = torch.arange(len(train)).repeat(draws)
    centers = {}
    for name in train.attributes:
        known = (values := train.rows.numbers(name)[0].repeat(draws)) >= 0
        centers[name] = shuffled_information(
            labels[known], values[known], nearest[known], units=images[known], shuffles=shuffles, seed=seed
        )
    used = {"used": proxies_used(labels, nearest), "per_class": loss.proxies_per_class, "cosine": proxy_cosine(loss)}
    return centers, used


@torch.no_grad()
def _embed_augmented(run: FinishedRun, draws: int, seed: int) -> Float[Tensor, "images dim"]:
    """Embed ``draws`` augmented versions of every training image, version by version."""
    recipe, train = run.recipe, run.train
    transform = recipe.augment.training(recipe.images)
    augmented = EmbeddingDataset(train, transform, recipe.vectors, recipe.images.reduced_side, recipe.images.bits)
    keys = [(index, derive_seed(seed, draw, index)) for draw in range(draws) for index in range(len(train))]
    size = recipe.evaluation.batch_size
    batches = (augmented.__getitems__(keys[start : start + size]) for start in range(0, len(keys), size))
    return torch.cat([run.model(torch.stack([tensor for tensor, _ in batch])) for batch in batches])
