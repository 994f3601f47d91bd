"""What the experiments have found, as small text files beside the scripts: no search or run is made twice.

A folder for each data set holds ``searches/LOSS.csv``, the trials of a finished search, ``searches/LOSS.yaml``, the
best recipe, ``runs/LOSS.csv``, a row for each run with it, and ``reality/LOSS.csv``, the repetitions of a reality
check.
"""

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from proxemic.files import write_csv, write_text
from proxemic.studies.tuning.curves import SearchCurve, curve_of_trials, read_trials

METRICS = ("recall@1", "map@r", "ndcg@8")
TAR = "tar"
"""What is measured under the condition ``verification`` alone."""
COMPLETE = "epochs of a complete trial"
COLUMNS = ("condition", "seed", *METRICS, TAR)
Values = Mapping[str, Mapping[int, float]]
"""For each metric, the value of each seed."""


@dataclass(frozen=True)
class Kept:
    """The folder of a data set."""

    folder: Path

    def recipe(self, loss: str) -> Path:
        """The best recipe of a search; it exists if the search is finished."""
        return self.folder / "searches" / f"{loss}.yaml"

    def keep_search(self, loss: str, search: Path) -> None:
        """Keep the trials and the best recipe of a finished search, without the place of its data."""
        base = yaml.safe_load((search / "base.yaml").read_text(encoding="utf-8"))
        # Not of the best recipe, whose first phase ends where it was best.
        rows = [{**row, COMPLETE: base["training"]["epochs"]} for row in read_trials(search / "trials.csv")]
        write_csv(self.recipe(loss).with_suffix(".csv"), [*rows[0]], [[*row.values()] for row in rows])
        text = (search / "best.yaml").read_text(encoding="utf-8")
        content = yaml.safe_load(text)
        content["data"].get("init_args", {}).pop("root", None)
        note = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
        write_text(self.recipe(loss), note + yaml.safe_dump(content, sort_keys=False))

    def curve(self, loss: str) -> SearchCurve:
        """What searches of other lengths would have found."""
        rows = read_trials(self.recipe(loss).with_suffix(".csv"))
        return curve_of_trials(rows, int(rows[0][COMPLETE]), loss)

    def runs(self, loss: str, condition: str = "") -> Values:
        """The test metrics of the runs with the best recipe; under a condition, if one is named."""
        rows = [row for row in self._rows(loss) if row["condition"] == condition]
        metrics = (*METRICS, TAR)
        return {name: {int(row["seed"]): float(row[name]) for row in rows if row[name]} for name in metrics}

    def keep_runs(self, loss: str, values: Values, condition: str = "") -> None:
        """Add runs to those that are kept; of the same condition and seed, in place of them."""
        rows = {(row["condition"], int(row["seed"])): row for row in self._rows(loss)}
        for seed in values[METRICS[0]]:
            given = {name: str(values.get(name, {}).get(seed, "")) for name in (*METRICS, TAR)}
            rows[condition, seed] = {"condition": condition, "seed": str(seed), **given}
        sorted_rows = [[rows[key][name] for name in COLUMNS] for key in sorted(rows)]
        write_csv(self._file(loss), COLUMNS, sorted_rows)

    def check_searched(self, losses: Sequence[str]) -> None:
        """End the command where none of the losses has a finished search."""
        if not any(self.recipe(loss).exists() for loss in losses):
            search = f"python docs/experiments/search.py {self.folder.name} {' '.join(losses)}"
            raise SystemExit(f"{self.folder} holds no finished search of these losses: {search} comes first.")

    def lacking(self, losses: Sequence[str], seeds: Sequence[int], condition: str = "") -> list[str]:
        """The losses of finished searches without a run of some seed."""
        finished = [loss for loss in losses if self.recipe(loss).exists()]
        return [loss for loss in finished if not {*seeds} <= self.runs(loss, condition)[METRICS[0]].keys()]

    def check(self, loss: str) -> dict[tuple[str, str], dict[int, float]]:
        """The values of a finished reality check, of each repetition by kind of embedding and metric."""
        file, values = self._check(loss), defaultdict[tuple[str, str], dict[int, float]](dict)
        if file.exists():
            for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
                values[row["kind"], row["metric"]][int(row["repeat"])] = float(row["value"])
        return dict(values)

    def keep_check(self, loss: str, rows: Sequence[tuple[str, str, int, float]]) -> None:
        """Keep the values of a finished reality check."""
        write_csv(self._check(loss), ("kind", "metric", "repeat", "value"), rows)

    def _check(self, loss: str) -> Path:
        return self.folder / "reality" / f"{loss}.csv"

    def _file(self, loss: str) -> Path:
        return self.folder / "runs" / f"{loss}.csv"

    def _rows(self, loss: str) -> list[dict[str, str]]:
        if not self._file(loss).exists():
            return []
        return [*csv.DictReader(self._file(loss).read_text(encoding="utf-8").splitlines())]
