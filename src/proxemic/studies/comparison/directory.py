"""The directory of a comparison, with a run directory for every recipe and seed, or configuration."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypedDict

from proxemic.errors import UserError
from proxemic.files import write_text
from proxemic.recipes.flags import as_flags
from proxemic.studies.comparison.entries import Entry, has_key
from proxemic.studies.directories import StudyDirectory
from proxemic.studies.jobs import Job
from proxemic.studies.recipe_content import metric_names, same_recipe


@dataclass(frozen=True)
class Result:
    """The result of a finished cell.

    Args:
        values: Metrics in [0, 1] by split: ``test`` and, if computed, ``start``, ``untrained`` and ``validation``. The
            values of callbacks are under ``measured`` (at that epoch) and ``measured_before`` (before training).
        epoch: Selected epoch.
        selected_on: Split on which the epoch was selected.
        seconds: Training time of all epochs.
        test_classes: Number of test classes; None if unknown.
        history: Rows of ``history.csv``, one per epoch.
    """

    values: Mapping[str, Mapping[str, float]]
    epoch: int
    selected_on: str
    seconds: float
    test_classes: int | None = None
    history: Sequence[Mapping[str, float]] = ()


@dataclass(frozen=True)
class Cell:
    """One recipe with one seed, or at one configuration, and the path of its run directory, which may not exist yet."""

    entry: Entry
    seed: int
    path: Path
    file: Path
    """The full recipe."""
    values: Mapping[str, Any] | None = field(default=None, hash=False)
    """The values of a configuration, whose number is the seed."""

    def __str__(self) -> str:
        return f"{self.entry.title}, {'seed' if self.values is None else 'configuration'} {self.seed}"

    @property
    def job(self) -> Job:
        """The training of this cell."""
        return Job(self.file, ("--seed", str(self.seed), *as_flags(self.values or {})), self.path)

    @property
    def yaml(self) -> str:
        """The full recipe of the run."""
        return self.entry.with_seed(self.seed) if not self.values else _changed(self.entry.yaml, self.job)

    @property
    def state(self) -> Literal["finished", "failed", "begun", "not begun"]:
        if (self.path / "metrics.json").exists():
            return "finished"
        if self._failed.exists():
            return "failed"
        return "begun" if (self.path / "recipe.yaml").exists() else "not begun"

    def result(self) -> Result | None:
        """Return the result, or None if the run is unfinished; a run of another recipe or seed raises `UserError`."""
        if self.state != "finished":
            return None
        if not same_recipe((self.path / "recipe.yaml").read_text(encoding="utf-8"), self.yaml):
            raise UserError(
                f"{self.path} holds a run of another recipe or seed than {self}: move it away to train this one."
            )
        from proxemic.runs.directory import RunDirectory  # imports torch

        run = RunDirectory(self.path)
        content, history = run.read_metrics(), run.read_history()
        splits = ("test", "start", "untrained", "validation", "measured", "measured_before")
        values = {split: values for split in splits if (values := content.get(split)) is not None}
        seconds = sum(row["seconds"] for row in history)
        return Result(values, content["epoch"], content["selected_on"], seconds, content.get("test_classes"), history)

    @property
    def failure(self) -> str | None:
        """The reason why the training failed, or None."""
        return self._failed.read_text(encoding="utf-8") if self.state == "failed" else None

    def fail(self, sentence: str) -> None:
        """Record why the training failed."""
        write_text(self._failed, " ".join(sentence.split()))

    def forget_failure(self) -> None:
        """Forget a failure before the next attempt."""
        self._failed.unlink(missing_ok=True)

    @property
    def _failed(self) -> Path:
        return self.path.with_name(f"{self.path.name}.failed")


@cache
def _changed(_: str, job: Job) -> str:
    from proxemic.recipes.reader import read_recipe  # imports torch

    return read_recipe(job.recipe, job.flags).yaml


class _NamedRecipe(TypedDict):
    """An `Entry` in ``comparison.json``, without its YAML, which is in a file."""

    name: str
    slug: str
    dataset: str
    loss: str


@dataclass(frozen=True)
class _Settings:
    """The content of ``comparison.json``."""

    recipes: tuple[_NamedRecipe, ...]
    seeds: tuple[int, ...]
    flags: tuple[str, ...]
    baseline: str | None
    metrics: tuple[str, ...]
    configurations: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Comparison:
    """Recipes to compare, seeds, and the directory of their runs.

    Args:
        path: Directory of the comparison.
        entries: Recipes to compare.
        seeds: Seeds of each recipe.
        flags: Overrides of every recipe, as on the command line.
        baseline: Name or pattern of the recipe that others with the same data are compared with; None takes the first.
        metrics: Metrics to show; if empty, those of ``recall@1``, ``map@r`` and ``ndcg@8`` that are computed. Only the
            first is shown for paired configurations.
        configurations: Values by dotted keys at which all recipes are trained, one seed each; if empty, the recipes are
            trained with their own values and all seeds.
    """

    path: Path
    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    flags: tuple[str, ...] = ()
    baseline: str | None = None
    metrics: tuple[str, ...] = ()
    configurations: tuple[dict[str, Any], ...] = ()

    @property
    def unit(self) -> str:
        """The property in which the runs of a recipe differ: ``seed`` or ``configuration``."""
        return "configuration" if self.configurations else "seed"

    @property
    def size(self) -> str:
        """Describe the size, such as ``2 recipes × 5 seeds``."""
        return f"{len(self.entries)} recipes × {len(self.seeds)} {self.unit}s"

    @property
    def directory(self) -> StudyDirectory[_Settings]:
        """The directory with its settings."""
        return StudyDirectory(self.path, "comparison.json", "comparison", "compare", _Settings)

    @classmethod
    def read(cls, path: Path) -> "Comparison":
        """Read the comparison in a directory; `UserError` if it is missing or damaged."""
        empty = cls(path, (), ())
        kept = empty.directory.read()
        try:
            texts = [empty.recipe_file(recipe["slug"]).read_text(encoding="utf-8") for recipe in kept.recipes]
        except OSError as error:
            raise UserError(f"A recipe of the comparison cannot be read ({error}): put it back from a copy.") from error
        entries = tuple(Entry(**recipe, yaml=text) for recipe, text in zip(kept.recipes, texts, strict=True))
        return cls(path, entries, kept.seeds, kept.flags, kept.baseline, kept.metrics, kept.configurations)

    def write(self) -> None:
        """Write the settings and the recipes."""
        for entry in self.entries:
            write_text(self.recipe_file(entry.slug), entry.yaml)
        recipes = tuple(_NamedRecipe(name=e.name, slug=e.slug, dataset=e.dataset, loss=e.loss) for e in self.entries)
        shown = (self.baseline, self.metrics, self.configurations)
        self.directory.write(_Settings(recipes, self.seeds, self.flags, *shown))

    def recipe_file(self, slug: str) -> Path:
        """Return the path of the full recipe, as it was when added to the comparison."""
        return self.path / "recipes" / f"{slug}.yaml"

    def cell(self, entry: Entry, seed: int) -> Cell:
        """Return the cell of a recipe and a seed; for configurations, the seed is the number of the configuration."""
        run, file = self.path / "runs" / entry.slug / f"{self.unit}-{seed}", self.recipe_file(entry.slug)
        if not self.configurations:
            return Cell(entry, seed, run, file)
        values = {key: value for key, value in self.configurations[seed].items() if has_key(entry.recipe, key)}
        return Cell(entry, seed, run, file, values)

    def cells(self) -> Iterator[Cell]:
        """Iterate over all cells seed by seed, so that an unfinished comparison has results of all recipes."""
        return (self.cell(entry, seed) for seed in self.seeds for entry in self.entries)

    def results(self) -> dict[Entry, dict[int, Result]]:
        """Return the results of finished cells by recipe and seed; a recipe without results maps to {}."""
        results: dict[Entry, dict[int, Result]] = {entry: {} for entry in self.entries}
        for cell in self.cells():
            if result := cell.result():
                results[cell.entry][cell.seed] = result
        return results

    def failed(self) -> list[Cell]:
        """Return the cells whose last training failed."""
        return [cell for cell in self.cells() if cell.state == "failed"]

    def check_finished(self) -> None:
        """Raise `UserError` if a run failed; the message names the first failed run."""
        if failed := self.failed():
            raise UserError(f"{len(failed)} runs failed, the first of them {failed[0]}: {failed[0].failure}")

    def states(self) -> str:
        """Describe each recipe's seeds, one line per recipe, such as ``glyphs: finished 0 1, not begun 2``."""
        lines = []
        for entry in self.entries:
            seeds: dict[str, list[str]] = {}
            for seed in self.seeds:
                seeds.setdefault(self.cell(entry, seed).state, []).append(str(seed))
            states = ", ".join(" ".join([state, *numbers]) for state, numbers in seeds.items())
            lines.append(f"{entry.title}: {states}")
        return "\n".join(lines)

    def datasets(self) -> dict[str, list[Entry]]:
        """Return the recipes by data set; each data set has its own table."""
        return {
            name: [entry for entry in self.entries if entry.dataset == name]
            for name in dict.fromkeys(entry.dataset for entry in self.entries)
        }

    def baseline_of(self, entries: Sequence[Entry]) -> Entry:
        """Return the baseline of recipes of a data set: the first that `baseline` names, or else the first."""
        named = (entry for entry in entries if self.baseline is not None and entry.is_named(self.baseline))
        return next(named, entries[0])

    def shown_metrics(self, entries: Sequence[Entry]) -> list[str]:
        """Return the metrics to show for some recipes, the main metric first."""
        computed = [computed_metrics(entry) for entry in entries]
        wanted = self.metrics or ("recall@1", "map@r", "ndcg@8")
        shown = [metric for metric in wanted if any(metric in item for item in computed)] or ["map@r"]
        return shown[:1] if self.configurations else shown


def computed_metrics(entry: Entry) -> list[str]:
    """Return the names of the metrics that a recipe computes."""
    return metric_names(entry.recipe["evaluation"])
