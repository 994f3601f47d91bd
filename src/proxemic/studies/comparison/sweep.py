"""One or two values of a recipe varied, all others as they are, over seeds: a curve of a metric, or a heat map."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import write_text
from proxemic.losses.user_defined import make_loss
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.studies.comparison.directory import Comparison, Result, computed_metrics
from proxemic.studies.comparison.entries import find_names, read_entry
from proxemic.studies.comparison.run import finish_comparison, plan_comparison
from proxemic.studies.comparison.statistics import mean
from proxemic.studies.statistics import Estimate

with optional_dependency("train"):
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Axis:
    """The keys of a recipe that are set alike, and the values that they take, as flags without their dashes."""

    keys: tuple[str, ...]
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Axis":
        """Read ``KEY[,KEY…]=VALUE,VALUE``.

        >>> Axis.parse("loss.alpha,second_phase.loss.alpha=8,16,32")
        Axis(keys=('loss.alpha', 'second_phase.loss.alpha'), values=('8', '16', '32'))
        """
        before, _, after = text.partition("=")
        keys = tuple(key.strip().removeprefix("--") for key in before.split(","))
        values = tuple(value.strip() for value in after.split(","))
        if not (all(keys) and all(values)) or len(set(keys)) < len(keys) or len(set(values)) < len(values):
            raise UserError(
                f"--vary is {text!r}, but must be a key, or several with commas, and values, each once, as "
                "loss.alpha=8,16,32."
            )
        return cls(keys, values)

    @property
    def name(self) -> str:
        """The keys as ``loss.alpha+second_phase.loss.alpha``."""
        return "+".join(self.keys)


@dataclass(frozen=True)
class Sweep:
    """A curve over the values of one axis, or a heat map over those of two."""

    axes: tuple[Axis, ...]

    @property
    def name(self) -> str:
        """The axes as ``loss.k1,loss.k2``."""
        return ",".join(axis.name for axis in self.axes)

    def points(self) -> list[dict[str, str]]:
        """Return the values of all keys at each point; the last axis varies fastest.

        >>> Sweep((Axis(("k1",), ("0.5", "1")), Axis(("k2",), ("1", "2")))).points()[1]
        {'k1': '0.5', 'k2': '2'}
        """
        return [
            {key: value for axis, value in zip(self.axes, values, strict=True) for key in axis.keys}
            for values in product(*(axis.values for axis in self.axes))
        ]


def read_sweeps(texts: Sequence[str], *, grid: bool = False) -> list[Sweep]:
    """Make a sweep of each text that `Axis.parse` takes, or one ``grid`` of two: every value with every value."""
    axes = [Axis.parse(text) for text in texts]
    if grid and len(axes) != 2:
        raise UserError(f"--grid takes two --vary, not {len(axes)}: set other values by their flags.")
    keys = [key for axis in axes for key in axis.keys] if grid else [axis.name for axis in axes]
    if len(set(keys)) < len(keys):
        raise UserError(f"--vary names {', '.join(keys)}: vary each once, with all of its values.")
    return [Sweep(tuple(axes))] if grid else [Sweep((axis,)) for axis in axes]


def plan_sweep(
    recipe: str, sweeps: Sequence[Sweep], seeds: Sequence[int] | None, out: Path, flags: Sequence[str], metric: str
) -> tuple[Comparison, dict[Sweep, list[str]]]:
    """Write a recipe for each point, and plan a comparison of them all in ``out/comparison``.

    Returns the comparison, and the names of the recipes of each sweep's points. Nothing is written before all is
    checked.
    """
    name, *others = find_names([recipe])
    if others:
        raise UserError(f"{recipe} is {1 + len(others)} recipes, but a sweep varies one: name it alone.")
    path, computed = find_recipe(recipe), computed_metrics(read_entry(name, flags, own_code=True))
    if metric not in computed:
        raise UserError(f"--metric is {metric}, but these are computed: {', '.join(computed)}.")
    texts: dict[Path, str] = {}
    names: dict[Sweep, list[str]] = {}
    for sweep in sweeps:
        for point in sweep.points():
            setting = ", ".join(f"{key}={value}" for key, value in point.items())
            try:
                read = read_recipe(path, [*flags, *(f"--{key}={value}" for key, value in point.items())], own_code=True)
                with torch.random.fork_rng(devices=[]):  # the losses refuse values that no training could begin with
                    for phase in filter(None, (read.recipe, read.recipe.second_phase)):
                        # How many classes there are is unknown before the images are; a list of margins has one each.
                        margin = getattr(phase.loss, "keywords", {}).get("margin")
                        classes, model = len(margin) if isinstance(margin, list) else 4, read.recipe.model
                        make_loss(phase.loss, classes, model.embedding_size, normalized=model.normalize)
            except (UserError, ValueError) as error:
                raise UserError(f"--vary {setting}: {error}") from error
            stem = ",".join(f"{axis.name}={point[axis.keys[0]]}" for axis in sweep.axes)
            file = out / "values" / f"{stem.replace('/', '_')}.yaml"
            texts[file] = f"# {recipe} with {setting}.\n{read.yaml}"
            names.setdefault(sweep, []).append(str(file.resolve()))
    if any(file.exists() and file.read_text(encoding="utf-8") != text for file, text in texts.items()):
        raise UserError(f"{out} was begun with another recipe or other flags: give the same, or another --out.")
    for file, text in texts.items():
        write_text(file, text)
    files = [file for points in names.values() for file in points]
    return plan_comparison(files, seeds, out / "comparison", metrics=[metric], own_code=True), names


def run_sweep(
    comparison: Comparison,
    names: Mapping[Sweep, Sequence[str]],
    *,
    workers: int = 1,
    report: Callable[[str], object] | None = None,
) -> dict[Sweep, list[dict[int, Result]]]:
    """Train the unfinished runs that `plan_sweep` returned, and return the results of each point by seed."""
    finish_comparison(comparison, workers=workers, report=report)
    comparison.check_finished()
    results = {entry.name: by_seed for entry, by_seed in comparison.results().items()}
    return {sweep: [results[name] for name in files] for sweep, files in names.items()}


def plot_sweep(sweep: Sweep, results: Sequence[Mapping[int, Result]], metric: str, recipe: str) -> Figure:
    """Draw a test metric in percent: over one axis a curve with 95% intervals and all seeds, over two a heat map."""
    means = [estimate for estimate in (mean(by_seed, metric) for by_seed in results) if estimate]
    first, *second = sweep.axes
    figure, axes = _heat_map(first, second[0], means, metric) if second else _curve(first, means, results, metric)
    axes.set_title(recipe, fontsize=9, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _curve(
    axis: Axis, means: Sequence[Estimate], results: Sequence[Mapping[int, Result]], metric: str
) -> tuple[Figure, Any]:
    figure = Figure(figsize=(5.5, 3.8), layout="constrained")
    axes = figure.subplots()
    try:
        places = [float(value) for value in axis.values]
        is_log = min(places) > 0 and max(places) / min(places) > 8
    except ValueError:
        places, is_log = [float(place) for place in range(len(axis.values))], False
    axes.errorbar(
        places,
        [100 * estimate.mean for estimate in means],
        yerr=[100 * (estimate.half_width or 0.0) for estimate in means],
        fmt="o-", color="#224466", markersize=5, capsize=3, linewidth=1.3,
    )  # fmt: skip
    for place, by_seed in zip(places, results, strict=True):
        values = [100 * result.values["test"][metric] for result in by_seed.values()]
        axes.plot([place] * len(values), values, ".", color="#4477aa", alpha=0.45, markeredgewidth=0)
    if is_log:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(places, axis.values)
    axes.set_xlabel(" = ".join(axis.keys), parse_math=False)
    axes.set_ylabel(f"test {metric}, %")
    axes.grid(color="#dddddd", linewidth=0.6)
    return figure, axes


def _heat_map(up: Axis, across: Axis, estimates: Sequence[Estimate], metric: str) -> tuple[Figure, Any]:
    rows, columns = len(up.values), len(across.values)
    figure = Figure(figsize=(1.8 + 0.8 * columns, 1.4 + 0.55 * rows), layout="constrained")
    axes = figure.subplots()
    means = [[100 * estimates[row * columns + column].mean for column in range(columns)] for row in range(rows)]
    image = axes.imshow(means, cmap="viridis", aspect="auto", origin="lower")
    low, high = min(map(min, means)), max(map(max, means))
    for place, estimate in enumerate(estimates):
        row, column = divmod(place, columns)
        half = estimate.half_width
        text = f"{100 * estimate.mean:.2f}" + ("" if half is None else f"\n±{100 * half:.2f}")
        dark = 100 * estimate.mean < low + 0.6 * (high - low)
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_xticks(range(columns), across.values)
    axes.set_yticks(range(rows), up.values)
    axes.set_xlabel(" = ".join(across.keys), parse_math=False)
    axes.set_ylabel(" = ".join(up.keys), parse_math=False)
    figure.colorbar(image, ax=axes).set_label(f"test {metric}, %")
    return figure, axes
