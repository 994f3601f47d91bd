"""The directory of a comparison: what is compared, and a run directory for every recipe and seed."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from proxemic.errors import UserError
from proxemic.files import read_json, write_json, write_text
from proxemic.protocols.comparison.entries import Entry
from proxemic.protocols.recipe_content import metric_names
from proxemic.protocols.runs.same_recipe import same_recipe


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
        test_classes: Number of test classes; None where that is not known.
    """

    values: dict[str, dict[str, float]]
    epoch: int
    selected_on: str
    seconds: float
    test_classes: int | None = None


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
        """The state of the run."""
        if (self.path / "metrics.json").exists():
            return "finished"
        if self._failed.exists():
            return "failed"
        return "begun" if (self.path / "recipe.yaml").exists() else "not begun"

    def result(self) -> Result | None:
        """The result, or None if the run is not finished; a run of another recipe or seed raises `UserError`."""
        if self.state != "finished":
            return None
        if not same_recipe((self.path / "recipe.yaml").read_text(encoding="utf-8"), self.entry.with_seed(self.seed)):
            raise UserError(
                f"{self.path} holds another run than that of {self}: move it away, and the cell is trained anew."
            )
        content = read_json(self.path / "metrics.json")
        seconds = sum(row["seconds"] for row in self.history())
        splits = ("test", "start", "untrained", "validation", "measured", "measured_before")
        values = {split: content[split] for split in splits if split in content}
        return Result(values, content["epoch"], content["selected_on"], seconds, content.get("test_classes"))

    def history(self) -> list[dict[str, float]]:
        """One mapping per epoch."""
        from proxemic.training import RunDirectory  # imports torch

        return RunDirectory(self.path).read_history()

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

    @classmethod
    def read(cls, path: Path) -> "Comparison":
        """Read the comparison in a directory; `UserError` if there is none, or it is damaged."""
        file = path / "comparison.json"
        if not file.is_file():
            raise UserError(
                f"{path} holds no comparison (there is no comparison.json in it): give a directory that "
                "proxemic compare made."
            )
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            entries = tuple(
                Entry(**each, yaml=(path / "recipes" / f"{each['slug']}.yaml").read_text(encoding="utf-8"))
                for each in content.pop("recipes")
            )
            lists = {key: tuple(content.pop(key)) for key in ("seeds", "flags", "metrics")}
            return cls(path, entries, **lists, **content)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file} or a recipe beside it is damaged: begin anew with another --out.") from error

    def write(self) -> None:
        """Write what is compared; `read` gives it back."""
        for entry in self.entries:
            write_text(self.recipe_file(entry), entry.yaml)
        recipes = [{key: getattr(each, key) for key in ("name", "slug", "dataset", "loss")} for each in self.entries]
        settings = {key: getattr(self, key) for key in ("seeds", "flags", "baseline", "metrics")}
        write_json(self.path / "comparison.json", {"recipes": recipes, **settings})

    def recipe_file(self, entry: Entry) -> Path:
        """The file with all values of a recipe, as they were when it was added."""
        return self.path / "recipes" / f"{entry.slug}.yaml"

    def cell(self, entry: Entry, seed: int) -> Cell:
        """One recipe with one seed."""
        return Cell(entry, seed, self.path / "runs" / entry.slug / f"seed-{seed}")

    def cells(self) -> Iterator[Cell]:
        """All cells, seed by seed, so that all recipes of an unfinished comparison have results."""
        return (self.cell(entry, seed) for seed in self.seeds for entry in self.entries)

    def results(self) -> dict[Entry, dict[int, Result]]:
        """The results of the finished cells by recipe and seed; recipes without any have an empty mapping."""
        results: dict[Entry, dict[int, Result]] = {entry: {} for entry in self.entries}
        for cell in self.cells():
            if result := cell.result():
                results[cell.entry][cell.seed] = result
        return results

    def failed(self) -> list[Cell]:
        """The cells whose last training failed."""
        return [cell for cell in self.cells() if cell.state == "failed"]

    def states(self) -> str:
        """The states of each recipe's seeds, one line per recipe, such as ``glyphs: finished 0 1, not begun 2``."""
        lines = []
        for entry in self.entries:
            seeds: dict[str, list[str]] = {}
            for seed in self.seeds:
                seeds.setdefault(self.cell(entry, seed).state, []).append(str(seed))
            states = ", ".join(" ".join([state, *numbers]) for state, numbers in seeds.items())
            lines.append(f"{entry.title}: {states}")
        return "\n".join(lines)

    def datasets(self) -> dict[str, list[Entry]]:
        """The recipes of each table."""
        return {
            name: [entry for entry in self.entries if entry.dataset == name]
            for name in dict.fromkeys(entry.dataset for entry in self.entries)
        }

    def baseline_of(self, entries: Sequence[Entry]) -> Entry:
        """The baseline of the recipes of a data set: the first that `baseline` names, or else the first."""
        named = (entry for entry in entries if self.baseline is not None and entry.is_named(self.baseline))
        return next(named, entries[0])

    def shown_metrics(self, entries: Sequence[Entry]) -> list[str]:
        """The metrics to show for some recipes; the first is the main one."""
        computed = [computed_metrics(entry) for entry in entries]
        wanted = self.metrics or ("recall@1", "map@r", "ndcg@8")
        return [metric for metric in wanted if any(metric in each for each in computed)] or ["map@r"]


def computed_metrics(entry: Entry) -> list[str]:
    """Names of the metrics that the runs of a recipe have."""
    return metric_names(entry.recipe["evaluation"])
