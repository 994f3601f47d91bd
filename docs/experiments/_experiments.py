"""Helpers of the experiments: the kept searches, runs with the values that they found, tables and command lines.

Kept runs are not repeated. The searches were made by programs of an older commit, see README.md.
"""

import functools
import json
import re
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import _kept
from _kept import MEASURES, METRICS

from proxemic.errors import UserError
from proxemic.files import write_text
from proxemic.recipes import list_recipes
from proxemic.recipes.reader import read_recipe
from proxemic.studies.comparison import compare
from proxemic.studies.comparison.statistics import metric_values
from proxemic.studies.statistics import format_estimate, holm, t_interval, t_test
from proxemic.studies.tuning.curves import SearchCurve, curve_of_trials
from proxemic.tables import Table
from proxemic.training import RunDirectory

HERE = Path(__file__).parent
KEPT = HERE / "kept"
FEATURES, PHOTOGRAPHS = "cars-features", "cars-pretrained"
LEAN = {"training.loggers": [], "evaluation.untrained": False}
"""Overrides that switch off what no figure depends on."""
NO_SHARES = ("avg_dtp", "alignment")
"""Measures that are not shown in percent."""


@dataclass(frozen=True)
class Size:
    """The size of the experiments on a data set: seeds per trial of a search, and seeds of comparisons."""

    trial_seeds: int = 2
    seeds: int = 5


DATA_SETS = {
    "glyphs-small": Size(seeds=10),
    "omniglot": Size(),
    FEATURES: Size(seeds=10),
    PHOTOGRAPHS: Size(trial_seeds=1, seeds=3),
}
MORE_SEEDS = {(PHOTOGRAPHS, loss): 6 for loss in ("mpa", "proxy-anchor")}
"""The seeds of single comparisons, if they are not as many as those of their data set."""


SWAPPED = "swapped colours"
"""The condition of runs on the first copy of the photographs, whose red and blue were swapped."""
AGAIN = ("-search-2", "-search-3")
"""What the names of repeated searches end with, those with seeds 1 and 2 of the sampler."""


@dataclass(frozen=True)
class Search:
    """The search for a loss: the recipe that it varied."""

    recipe: str
    layer_norm: bool | None = None
    """Whether the pooled features are normalised before the last layer; None leaves the recipe unchanged."""
    seed: int = 0
    """The seed of the sampler."""

    @property
    def suffix(self) -> str:
        """The suffix of the name of a search that changes the norm of its recipe, or repeats another with a seed."""
        norm = {None: "", True: "-with-norm", False: "-without-norm"}[self.layer_norm]
        return norm + (AGAIN[self.seed - 1] if self.seed else "")


SEARCHES: dict[str, Search] = {
    # The losses of the papers' claims come first.
    "softmax": Search("softmax"),
    "softmax-mean-proxy": Search("softmax-mean-proxy"),
    "proxy-anchor": Search("proxy-anchor"),
    "mpa-ap": Search("mpa-ap"),
    "soft-triple": Search("soft-triple"),
    "mpa": Search("mpa"),
    "mpa-dw": Search("mpa-dw"),
    "euclidean-softmax": Search("euclidean-softmax"),
    "euclidean-softmax-two-phases": Search("euclidean-softmax-two-phases"),
    "warp-off-first-attracting": Search("warped-softmax-warp-off-first"),
    "warp-attracting": Search("warped-softmax"),
    "multi-similarity": Search("multi-similarity"),
    "arcface": Search("arcface"),
    "warp-off-first": Search("warped-softmax-warp-off-first"),
    "warp": Search("warped-softmax"),
    "proxy-nca-plus-plus": Search("proxy-nca-plus-plus"),
    "magface": Search("magface"),
    "cosface": Search("cosface"),
    "sphereface": Search("sphereface"),
    "proxy-nca": Search("proxy-nca"),
    "contrastive": Search("contrastive"),
    "hist": Search("hist"),
    "arcface-sub-centers": Search("arcface-sub-centers"),
    "adaface": Search("adaface"),
    "curricularface": Search("curricularface"),
    "elasticface": Search("elasticface"),
}
_TRAINED_WITHOUT = (
    *("softmax", "softmax-mean-proxy", "proxy-nca-plus-plus", "arcface", "proxy-anchor", "soft-triple"),
    *("mpa", "mpa-dw", "mpa-ap", "multi-similarity", "hist"),
)
TRAINED_WITH_NORM = ("euclidean-softmax", "euclidean-softmax-two-phases", "warp", "warp-off-first")
"""The losses whose recipes on characters have a layer norm, of those that are trained with and without it."""
OTHER_NORM: dict[str, Search] = {
    name + search.suffix: search
    for names, layer_norm in ((_TRAINED_WITHOUT, True), (TRAINED_WITH_NORM, False))
    for name in names
    for search in [replace(SEARCHES[name], layer_norm=layer_norm)]
}
"""Searches on characters that switch the layer norm of a loss's recipe on or off, by name."""
HEADLINES = (
    ("arcface-with-norm", "softmax-with-norm"),
    ("euclidean-softmax", "softmax-with-norm"),
    ("mpa", "proxy-anchor"),
    ("softmax-mean-proxy", "softmax"),
    ("warp", "euclidean-softmax-two-phases"),
    ("softmax-with-norm", "softmax"),
)
"""Pairs whose searches are repeated."""
REPEATED: dict[str, Search] = {
    name + suffix: replace((SEARCHES | OTHER_NORM)[name], seed=seed)
    for seed, suffix in enumerate(AGAIN, 1)
    for name in dict.fromkeys(name for pair in HEADLINES for name in reversed(pair))
}
"""The searches of these pairs with other seeds, by name."""


@dataclass(frozen=True)
class Kept:
    """The kept results of a data set."""

    kept: Path
    dataset: str
    table: str = "runs"
    """The table with the rows of runs: ``runs``, or ``evidence`` for those of rule.md."""

    def recipe(self, loss: str, folder: Path | None = None) -> Path:
        """Write the best recipe of a search to a file, which by default is temporary, and return its path."""
        path = (folder or temporary_folder()) / self.dataset / f"{loss}.yaml"
        write_text(path, self.recipe_text(loss))
        return path

    def recipe_text(self, loss: str) -> str:
        """Return the best recipe of a search as YAML."""
        if not self.is_searched(loss):
            raise UserError(f"{self.kept} holds no search of {loss} on {self.dataset}.")
        return self._rows("searches", loss)[0]["recipe"]

    def is_searched(self, loss: str) -> bool:
        """Return whether the search for a loss is finished."""
        return bool(self._rows("searches", loss))

    def trials(self, loss: str) -> Sequence[Mapping[str, Any]]:
        """Return the trials of a search."""
        return self._rows("trials", loss)

    def curve(self, loss: str) -> SearchCurve:
        """Return the expected results of shorter searches; an earlier stage of a search only adds to its cost."""
        rows = self.trials(loss)
        stage = max(row["stage"] for row in rows)
        last, earlier = ([row for row in rows if (row["stage"] == stage) == is_last] for is_last in (True, False))
        before = sum(max(1, row["epochs"]) for row in earlier)
        return curve_of_trials(last, self._rows("searches", loss)[0]["epochs"], loss, before)

    def runs(self, loss: str, condition: str = "") -> dict[str, dict[int, float]]:
        """Return the test metrics of the best recipe's runs under a condition, by metric and seed."""
        rows = [row for row in self._rows(self.table, loss) if row["condition"] == condition]
        return {name: {row["seed"]: row[name] for row in rows if row[name] is not None} for name in METRICS | MEASURES}

    def keep_runs(
        self, loss: str, values: Mapping[str, Mapping[int, float]], condition: str = "", **made: str | None
    ) -> None:
        """Keep runs, and replace kept runs of the same condition and seed; ``made`` says how they were made."""
        rows = [
            {"dataset": self.dataset, "name": loss, "condition": condition, "seed": seed}
            | {name: by_seed[seed] for name, by_seed in values.items() if seed in by_seed}
            | made
            for seed in values["recall@1"]
        ]
        _kept.merge(self.kept, self.table, rows)

    def lacking(self, losses: Sequence[str], seeds: Sequence[int], condition: str = "") -> list[str]:
        """Return the losses that have a finished search, but not a run of every seed."""
        finished = [loss for loss in losses if self.is_searched(loss)]
        return [loss for loss in finished if not {*seeds} <= self.runs(loss, condition)["recall@1"].keys()]

    def check(self, loss: str) -> dict[tuple[str, str], dict[int, float]]:
        """Return the values of a kept reality check by kind and metric, for each repetition."""
        values = defaultdict[tuple[str, str], dict[int, float]](dict)
        for row in self._rows("checks", loss):
            values[row["kind"], row["metric"]][row["repeat"]] = row["value"]
        return dict(values)

    def keep_check(self, loss: str, values: Mapping[tuple[str, str], Mapping[int, float]]) -> None:
        """Keep the values of a finished reality check, by kind and metric, for each repetition."""
        rows = [
            {"dataset": self.dataset, "name": loss, "kind": kind, "metric": metric, "repeat": repeat, "value": value}
            for (kind, metric), by_repeat in values.items()
            for repeat, value in by_repeat.items()
        ]
        _kept.merge(self.kept, "checks", rows)

    def _rows(self, table: str, loss: str) -> Sequence[Mapping[str, Any]]:
        return _kept.read(self.kept, table, self.dataset, loss)


def temporary_folder() -> Path:
    """Return a folder for the recipes that this process reads."""
    return Path(_temporary_directory().name)


@functools.cache
def _temporary_directory() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="proxemic-recipes-")


def searched(dataset: str) -> list[str]:
    """Return the names of the searches for whose losses a data set has recipes."""
    recipes = {*list_recipes()}
    return [name for name, search in SEARCHES.items() if f"{dataset}/{search.recipe}" in recipes]


def run_script(
    doc: str | None,
    train: Callable[[Namespace, Kept], object] | None,
    tables: Callable[[Namespace, Kept], Mapping[str, Table]],
    datasets: Iterable[str],
    out: str,
    draw: Callable[[Kept], object] | None = None,
    **choices: Iterable[str],
) -> None:
    """Run a script: read its command line, and train, or with --table write its tables into the pages that have them.

    The command line has a data set, a word for each of ``choices``, losses, and where things lie. A `UserError` ends
    the script by its sentence. If ``train`` is None, the script only writes tables. ``draw`` writes pictures of them.
    """
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    for name, values in {"dataset": datasets, **choices}.items():
        parser.add_argument(name, choices=[*values])
    parser.add_argument("losses", nargs="*", metavar="LOSS", help="some of the losses (all)")
    parser.add_argument("--root", type=Path, metavar="PATH", help="Omniglot's images, or the features of cars.py")
    parser.add_argument("--out", type=Path, default=Path(out), metavar="DIR", help="for searches and runs")
    add_kept(parser)
    parser.add_argument("--table", action="store_true", help="train nothing; write the tables of what is kept")
    arguments = parser.parse_intermixed_args()
    known = Kept(arguments.kept, arguments.dataset)
    try:
        if not arguments.table:
            if train is None:
                parser.error("give --table: README.md names the commit that makes these searches and runs")
            train(arguments, known)
            return
        words = " ".join([Path(sys.argv[0]).name, *(getattr(arguments, name) for name in ("dataset", *choices))])
        for name, table in tables(arguments, known).items():
            write_table(table, name, words, known.kept)
        if draw is not None and known.kept == KEPT:
            draw(known)
    except UserError as error:
        raise SystemExit(str(error)) from None


def add_kept(parser: ArgumentParser) -> None:
    """Add the flag for the folder of kept runs."""
    parser.add_argument("--kept", type=Path, default=KEPT, metavar="DIR", help="where finished ones are kept")


def check_losses(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the given names, or all known names if none is given; an unknown name ends the command."""
    for name in names:
        if name not in known:
            raise SystemExit(f"There is no {name} here: take some of {', '.join(known)}, or name none for all.")
    return [*(names or known)]


def check_searched(losses: Sequence[str], known: Kept) -> None:
    """End the command if none of the losses has a finished search."""
    if not any(known.is_searched(loss) for loss in losses):
        raise SystemExit(
            f"{known.kept} holds no finished search of {', '.join(losses)} on {known.dataset}: name losses whose "
            "searches are kept."
        )


def check_kept(found: object, what: str, known: Kept) -> None:
    """End a command whose table would be empty."""
    if not found:
        raise SystemExit(f"{known.kept} holds no {what} on {known.dataset}: run this command without --table first.")


def read_features(file: Path, columns: Sequence[str] | None = None) -> Any:
    """Read some or all columns of the file that cars.py writes, as an Arrow table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(file, columns=columns and [*columns])
    except (OSError, pa.ArrowInvalid) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(
            f"{file} is not a file of features ({reason}): create it with python docs/experiments/cars.py."
        ) from None


def place_of(root: Path | None) -> dict[str, object]:
    """Return the overrides for the location of the data."""
    return {} if root is None else {"data.root": str(root)}


def _print(line: str) -> None:
    print(line, flush=True)


def make_runs(
    known: Kept,
    loss: str,
    seeds: Sequence[int],
    out: Path,
    root: Path | None,
    condition: str = "",
    overrides: Mapping[str, object] = MappingProxyType({}),
    recipe: Path | None = None,
    measure: Callable[[Path], Mapping[str, float]] | None = None,
) -> None:
    """Train a recipe, by default the best of a loss, with each seed that is not kept, or go on, and keep the metrics.

    ``measure`` gets the directory of each finished run, and returns some of `MEASURES`.

    Raises:
        UserError: If a run failed, once the others are kept.
    """
    changed = LEAN | place_of(root) | {**overrides}
    seeds = [seed for seed in seeds if seed not in known.runs(loss, condition)["recall@1"]]
    words = f"{loss} {condition} from {seeds[0]}".replace("%", "").split()
    folder, recipe = out / "-".join(words), recipe or known.recipe(loss, out / "recipes")
    compared = compare([recipe], out=folder, seeds=seeds, overrides=changed, report=_print)
    (results,) = compared.results().values()
    values: dict[str, dict[int, float]] = {name: metric_values(results, name) for name in METRICS | MEASURES}
    values |= {
        "epoch": {seed: result.epoch for seed, result in results.items()},
        "seconds": {seed: result.seconds for seed, result in results.items()},
    }
    for cell in compared.cells():
        if measure is not None and RunDirectory(cell.path).metrics.exists():
            for name, value in measure(cell.path).items():
                values[name][cell.seed] = value
    made = {"recipe": full_text(recipe), "values": json.dumps(LEAN | {**overrides}), "commit": described_commit()}
    known.keep_runs(loss, values, condition, **made, versions=versions([cell.path for cell in compared.cells()]))
    for cell in compared.cells():  # gigabytes that no table needs
        RunDirectory(cell.path).drop_weights(model=known.dataset in (FEATURES, PHOTOGRAPHS))
    compared.check_finished()


def full_text(recipe: Path) -> str:
    """Return the text of a recipe, or if it extends another one, that with all values."""
    text = recipe.read_text(encoding="utf-8")
    return read_recipe(recipe, own_code=True).yaml if "\nextends:" in f"\n{text}" else text


def versions(paths: Iterable[Path]) -> str | None:
    """Return the versions of Python and libraries that the first finished run has used, as JSON."""
    for path in paths:
        if (run := RunDirectory(path)).environment.exists():
            environment = run.read_environment()
            return json.dumps({"python": environment.get("python"), **environment.get("packages", {})})
    return None


def interval(values: Iterable[float]) -> str:
    """Format the mean of values with its 95% interval, in percent."""
    return format_estimate(t_interval([*values]))


def estimate(metric: str, values: Iterable[float]) -> str:
    """Format the mean of a metric with its 95% interval, in percent where it is a share; no values are missing."""
    found = [*values]
    return format_estimate(t_interval(found) if found else None, factor=1 if metric in NO_SHARES else 100)


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """Return the differences over the common seeds."""
    return [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]


def gains(one: Mapping[str, Mapping[int, float]], other: Mapping[str, Mapping[int, float]]) -> tuple[list[str], float]:
    """Format the differences in all metrics, paired by seed; return also the p-value of MAP@R, the searched metric."""
    return [interval(paired(one[name], other[name])) for name in METRICS], t_test(paired(one["map@r"], other["map@r"]))


def corrected_table(columns: Sequence[str], rows: Sequence[tuple[Sequence[object], float]]) -> Table:
    """Make a table of rows with their p-values, corrected by Holm's procedure."""
    p_values = holm([p for _, p in rows])
    cells = [[*row, f"{p:.3f}"] for (row, _), p in zip(rows, p_values, strict=True)]
    return Table([*columns, "p of MAP@R, by Holm"], cells)


def described_commit() -> str:
    """Return the commit of the working tree, with a + if it has changes."""
    describe = ["git", "describe", "--always", "--dirty=+", "--abbrev=8", "--exclude=*"]
    return subprocess.run(describe, cwd=HERE, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def write_table(table: Table, name: str, command: str, kept: Path) -> None:
    """Print a table as Markdown with its command and commit.

    If it is that of the repository's own runs, it is also written into each page that has a mark for it and shows
    another; a table that stays the same keeps its commit.
    """
    text = table.text("markdown")
    shown = f"<!-- table: {name} -->\n`python docs/experiments/{command}`, at commit {described_commit()}:\n\n{text}\n"
    print(shown)
    for page in HERE.parent.rglob("*.md") if kept == KEPT else ():
        before = page.read_text(encoding="utf-8")
        after = _block(name).sub(lambda found: found[0] if found["table"] == f"{text}\n" else shown, before)
        if after != before:
            write_text(page, after)


def _block(name: str) -> re.Pattern[str]:
    return re.compile(rf"<!-- table: {re.escape(name)} -->\n(?:(?!<!--)[^|\n].*\n|\n)+(?P<table>(?:\|.*\n)+)")
