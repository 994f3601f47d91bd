"""The directory of a comparison: what is compared, and a run directory for every recipe and seed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from proxemic.errors import UserError
from proxemic.files import write_text
from proxemic.studies.comparison.entries import Entry
from proxemic.studies.directories import StudyDirectory
from proxemic.studies.recipe_content import metric_names, same_recipe


@dataclass(frozen=True)
class Result:
    """The result of a finished cell.

    Args:
        values: Metrics in [0, 1] by split: ``test`` and, where they were computed, ``start``, ``untrained`` and
            ``validation``; and what callbacks measured at the chosen epoch (``measured``) and before the first
            (``measured_before``).
        epoch: The chosen epoch.
        selected_on: The split that chose it.
        seconds: Training time over all epochs.
        test_classes: Number of test classes; None if that is not known.
        history: One mapping per epoch.
    """

    values: Mapping[str, Mapping[str, float]]
    epoch: int
    selected_on: str
    seconds: float
    test_classes: int | None = None
    history: Sequence[Mapping[str, float]] = ()


@dataclass(frozen=True)
class Cell:
    """One recipe with one seed, and the path of its run directory, whether it exists or not."""

    entry: Entry
    seed: int
    path: Path

    def __str__(self) -> str:
        return f"{self.entry.title}, seed {self.seed}"

    @property
    def state(self) -> Literal["finished", "failed", "begun", "not begun"]:
        if (self.path / "metrics.json").exists():
            return "finished"
        if self._failed.exists():
            return "failed"
        return "begun" if (self.path / "recipe.yaml").exists() else "not begun"

    def result(self) -> Result | None:
        """Return the result, or None if the run is not finished; a run of another recipe or seed raises `UserError`."""
        if self.state != "finished":
            return None
        if not same_recipe((self.path / "recipe.yaml").read_text(encoding="utf-8"), self.entry.with_seed(self.seed)):
            raise UserError(
                f"{self.path} holds another run than that of {self}: move it away, and the cell is trained anew."
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
        """Why the training failed, or None."""
        return self._failed.read_text(encoding="utf-8") if self.state == "failed" else None

    def fail(self, sentence: str) -> None:
        """Record why the training failed."""
        write_text(self._failed, " ".join(sentence.split()))

    def forget_failure(self) -> None:
        """Remove what `fail` recorded, before the cell is tried again."""
        self._failed.unlink(missing_ok=True)

    @property
    def _failed(self) -> Path:
        return self.path.with_name(f"{self.path.name}.failed")


class _NamedRecipe(TypedDict):
    """What ``comparison.json`` has of an `Entry`, whose values are in a file."""

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


@dataclass(frozen=True)
class Comparison:
    """Recipes × seeds, and where their runs are.

    Args:
        path: The directory.
        entries: The recipes.
        seeds: Seeds of each recipe.
        flags: Overrides of every recipe, as on the command line.
        baseline: Name or pattern of the recipe that the others of its data set are compared with; None is the first.
        metrics: The metrics to show; empty shows ``recall@1``, ``map@r`` and ``ndcg@8``, as far as they are computed.
    """

    path: Path
    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    flags: tuple[str, ...] = ()
    baseline: str | None = None
    metrics: tuple[str, ...] = ()

    @property
    def directory(self) -> StudyDirectory[_Settings]:
        """The directory, which the command continues."""
        return StudyDirectory(self.path, "comparison.json", "comparison", "compare", _Settings)

    @classmethod
    def read(cls, path: Path) -> "Comparison":
        """Read the comparison in a directory; `UserError` if there is none, or it is damaged."""
        empty = cls(path, (), ())
        kept = empty.directory.read()
        try:
            texts = [empty.recipe_file(recipe["slug"]).read_text(encoding="utf-8") for recipe in kept.recipes]
        except OSError as error:
            raise UserError(f"A recipe of the comparison cannot be read ({error}): put it back from a copy.") from error
        entries = tuple(Entry(**recipe, yaml=text) for recipe, text in zip(kept.recipes, texts, strict=True))
        return cls(path, entries, kept.seeds, kept.flags, kept.baseline, kept.metrics)

    def write(self) -> None:
        """Write what is compared; `read` returns it."""
        for entry in self.entries:
            write_text(self.recipe_file(entry.slug), entry.yaml)
        recipes = tuple(_NamedRecipe(name=e.name, slug=e.slug, dataset=e.dataset, loss=e.loss) for e in self.entries)
        self.directory.write(_Settings(recipes, self.seeds, self.flags, self.baseline, self.metrics))

    def recipe_file(self, slug: str) -> Path:
        """Return the file with all values of a recipe, as they were when it was added."""
        return self.path / "recipes" / f"{slug}.yaml"

    def cell(self, entry: Entry, seed: int) -> Cell:
        """Return one recipe with one seed."""
        return Cell(entry, seed, self.path / "runs" / entry.slug / f"seed-{seed}")

    def cells(self) -> Iterator[Cell]:
        """Return all cells, seed by seed, so that all recipes of an unfinished comparison have results."""
        return (self.cell(entry, seed) for seed in self.seeds for entry in self.entries)

    def results(self) -> dict[Entry, dict[int, Result]]:
        """Return the results of the finished cells by recipe and seed; recipes without any have an empty mapping."""
        results: dict[Entry, dict[int, Result]] = {entry: {} for entry in self.entries}
        for cell in self.cells():
            if result := cell.result():
                results[cell.entry][cell.seed] = result
        return results

    def failed(self) -> list[Cell]:
        """Return the cells whose last training failed."""
        return [cell for cell in self.cells() if cell.state == "failed"]

    def check_finished(self) -> None:
        """Raise `UserError`, which names the first run that failed, if there is one."""
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
        """Return the recipes of each table."""
        return {
            name: [entry for entry in self.entries if entry.dataset == name]
            for name in dict.fromkeys(entry.dataset for entry in self.entries)
        }

    def baseline_of(self, entries: Sequence[Entry]) -> Entry:
        """Return the baseline of the recipes of a data set: the first that `baseline` names, or else the first."""
        named = (entry for entry in entries if self.baseline is not None and entry.is_named(self.baseline))
        return next(named, entries[0])

    def shown_metrics(self, entries: Sequence[Entry]) -> list[str]:
        """Return the metrics to show for some recipes; the first is the main one."""
        computed = [computed_metrics(entry) for entry in entries]
        wanted = self.metrics or ("recall@1", "map@r", "ndcg@8")
        return [metric for metric in wanted if any(metric in item for item in computed)] or ["map@r"]


def computed_metrics(entry: Entry) -> list[str]:
    """Return the names of the metrics that the runs of a recipe have."""
    return metric_names(entry.recipe["evaluation"])
