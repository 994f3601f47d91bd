"""One value of a recipe varied, all others as they are, over seeds: a curve of a metric against the value."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from proxemic.errors import UserError
from proxemic.extras import extra
from proxemic.files import write_text
from proxemic.losses.own import make_loss
from proxemic.protocols.compare import finish_comparison, plan_comparison
from proxemic.protocols.comparison_directory import Comparison, Result, computed_metrics
from proxemic.protocols.comparison_entries import find_names, read_entry
from proxemic.protocols.comparison_statistics import mean
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.training import Recipe

with extra("train"):
    from matplotlib.figure import Figure

__all__ = ["Sweep", "plan_sweep", "plot_sweep", "run_sweep"]


@dataclass(frozen=True)
class Sweep:
    """One value of a recipe, varied.

    Args:
        key: Which, as a flag without its dashes: ``loss.alpha``, ``second_phase.loss.k1``.
        values: What it is set to, as a flag has it.
    """

    key: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Sweep":
        """From ``KEY=VALUE,VALUE``.

        Raises:
            UserError: If it is something else, or a value comes twice.

        >>> Sweep.parse("loss.alpha=8,16,32")
        Sweep(key='loss.alpha', values=('8', '16', '32'))
        """
        key, equals, rest = text.removeprefix("--").partition("=")
        values = tuple(value.strip() for value in rest.split(","))
        if not (key and equals and all(values)) or len(set(values)) < len(values):
            raise UserError(f"--vary is {text!r}, but must be a key and values, each once, as loss.alpha=8,16,32.")
        return cls(key, values)


def plan_sweep(
    recipe: str, sweeps: Sequence[Sweep], seeds: Sequence[int] | None, out: Path, flags: Sequence[str], metric: str
) -> tuple[Comparison, dict[Sweep, list[str]]]:
    """Write a recipe for each value, and plan a comparison of them all.

    Args:
        recipe: A recipe's name, or a YAML file.
        sweeps: Each is varied by itself, the others left as the recipe has them.
        seeds: Of each value; None is 0 to 4, or those that ``out`` has.
        out: The directory, new or of the same sweep, to go on with.
        flags: What overrides the recipe besides.
        metric: To be shown.

    Returns:
        The comparison in ``out/comparison``, and of each sweep the names of its values' recipes in it.

    Raises:
        UserError: If an argument, the recipe or a value is refused; then nothing is written.
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
        for value in sweep.values:
            try:
                read = read_recipe(path, [*flags, f"--{sweep.key}", value], own_code=True)
                _try_losses(read.recipe)
            except (UserError, ValueError) as error:
                raise UserError(f"--vary {sweep.key}={value}: {error}") from error
            file = out / "values" / f"{sweep.key}={value.replace('/', '_')}.yaml"
            texts[file] = f"# {recipe} with {sweep.key} {value}.\n{read.yaml}"
            names.setdefault(sweep, []).append(str(file.resolve()))
    for file, text in texts.items():
        if file.exists() and file.read_text(encoding="utf-8") != text:
            raise UserError(f"{out} was begun with another recipe or other flags: give the same, or another --out.")
    for file, text in texts.items():
        if not file.exists():
            write_text(file, text)
    files = [name for each in names.values() for name in each]
    return plan_comparison(files, seeds, out / "comparison", metrics=[metric], own_code=True), names


def _try_losses(recipe: Recipe) -> None:
    """Make the losses for a few classes, which refuses values that no training could begin with."""
    with torch.random.fork_rng(devices=[]):
        for phase in (recipe, recipe.second_phase):
            if phase is not None:
                make_loss(phase.loss, 4, recipe.model.embedding_size)


def run_sweep(
    comparison: Comparison, names: dict[Sweep, list[str]], metric: str, *, workers: int = 1
) -> dict[Sweep, list[dict[int, Result]]]:
    """Train what is not finished yet; the results of each value, by seed, are returned.

    Args:
        comparison: As `plan_sweep` gives it.
        names: The same.
        metric: Of the test.
        workers: Processes that train.

    Raises:
        UserError: If a run failed; another call tries it again.
    """
    finish_comparison(comparison, workers=workers)
    failed = [cell for cell in comparison.cells() if cell.state == "failed"]
    if failed:
        raise UserError(f"{len(failed)} runs failed, the first of them {failed[0]}: {failed[0].failure}")
    results = {entry.name: found for entry, found in comparison.results().items()}
    return {sweep: [dict(results[name]) for name in files] for sweep, files in names.items()}


def plot_sweep(sweep: Sweep, results: Sequence[dict[int, Result]], metric: str, recipe: str) -> Figure:
    """Draw a metric of the test, in percent, against the value: mean, 95% interval, a dot a seed."""
    figure = Figure(figsize=(5.5, 3.8), layout="constrained")
    axes = figure.subplots()
    places = _places(sweep.values)
    found = [mean(each, metric) for each in results]
    assert all(found)
    axes.errorbar(
        places,
        [100 * each.mean for each in found if each],
        yerr=[100 * (each.half_width or 0.0) for each in found if each],
        fmt="o-", color="#224466", markersize=5, capsize=3, linewidth=1.3,
    )  # fmt: skip
    for place, each in zip(places, results, strict=True):
        values = [100 * result.values["test"][metric] for result in each.values()]
        axes.plot([place] * len(values), values, ".", color="#4477aa", alpha=0.45, markeredgewidth=0)
    numbers = places != list(range(len(places)))
    if numbers and min(places) > 0 and max(places) / min(places) > 8:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(places, sweep.values)
    axes.set_xlabel(sweep.key, parse_math=False)
    axes.set_ylabel(f"test {metric}, %")
    axes.set_title(recipe, fontsize=9, parse_math=False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _places(values: Sequence[str]) -> list[float]:
    """On the axis: where the numbers are, or one after another."""
    try:
        return [float(value) for value in values]
    except ValueError:
        return [float(place) for place in range(len(values))]
