"""Helpers of the experiments: the kept searches, runs with the values that they found, tables and command lines.

`kept/` has a folder for each data set: ``searches/LOSS.csv`` holds the trials of a finished search,
``searches/LOSS.yaml`` the best recipe, ``runs/LOSS.csv`` a row for each run of it, and ``reality/LOSS.csv`` the
repetitions of a reality check. Kept runs are not repeated. ``configurations`` and ``evidence`` hold what rule.md says
of them. The searches were made by programs of an older commit, see README.md.
"""

import csv
import re
import subprocess
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from proxemic.errors import UserError
from proxemic.files import write_csv, write_text
from proxemic.recipes import list_recipes
from proxemic.studies.comparison import compare
from proxemic.studies.comparison.statistics import metric_values
from proxemic.studies.statistics import format_estimate, holm, t_interval, t_test
from proxemic.studies.tuning.curves import SearchCurve, curve_of_trials, read_trials
from proxemic.tables import Table
from proxemic.training import RunDirectory

HERE = Path(__file__).parent
FEATURES, PHOTOGRAPHS = "cars-features", "cars-pretrained"
LEAN = {"training.loggers": [], "evaluation.untrained": False}
"""Overrides that switch off what no figure depends on."""
METRICS = {"recall@1": "Recall@1", "map@r": "MAP@R", "ndcg@8": "nDCG@8"}
"""The metrics with their names in tables."""
MEASURES = {
    "tar": "TAR at a FAR of 0.001",
    "nmi": "NMI",
    "avg_dtp": "AvgDTP",
    "alignment": "rise of the cosine of forces",
    "within": "images within α",
    "corrupted": "Recall@1, corrupted",
}
"""What only some runs measure, with its name in tables."""
NO_SHARES = ("avg_dtp", "alignment")
"""Measures that are not shown in percent."""
COMPLETE = "epochs of a complete trial"


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


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file; a missing file has none."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


def recipe_text(text: str, content: Mapping[str, Any]) -> str:
    """Return the YAML of a recipe's new content, below the comments of its text."""
    note = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    return note + yaml.safe_dump(content, sort_keys=False)


@dataclass(frozen=True)
class Kept:
    """The kept results of a data set."""

    folder: Path
    rows: str = "runs"
    """The subfolder with the rows of runs."""

    def recipe(self, loss: str) -> Path:
        """Return the path of the best recipe, which exists if the search is finished."""
        return self.folder / "searches" / f"{loss}.yaml"

    def curve(self, loss: str) -> SearchCurve:
        """Return the expected results of shorter searches; an earlier stage of a search only adds to its cost."""
        rows = read_trials(self.recipe(loss).with_suffix(".csv"))
        stage = max(int(row["stage"]) for row in rows)
        last, earlier = ([row for row in rows if (int(row["stage"]) == stage) == is_last] for is_last in (True, False))
        before = sum(max(1, int(row["epochs"])) for row in earlier)
        return curve_of_trials(last, int(rows[0][COMPLETE]), loss, before)

    def runs(self, loss: str, condition: str = "") -> dict[str, dict[int, float]]:
        """Return the test metrics of the best recipe's runs under a condition, by metric and seed."""
        rows = [row for row in read_rows(self._runs(loss)) if row["condition"] == condition]
        return {
            name: {int(row["seed"]): float(row[name]) for row in rows if row.get(name)} for name in METRICS | MEASURES
        }

    def keep_runs(self, loss: str, values: Mapping[str, Mapping[int, float]], condition: str = "") -> None:
        """Keep runs, and replace kept runs of the same condition and seed."""
        rows = {(row["condition"], int(row["seed"])): row for row in read_rows(self._runs(loss))}
        for seed in values["recall@1"]:
            given = {name: str(by_seed[seed]) for name, by_seed in values.items() if seed in by_seed}
            rows[condition, seed] = {"condition": condition, "seed": str(seed), **given}
        measured = [name for name in MEASURES if any(row.get(name) for row in rows.values())]
        columns = ["condition", "seed", *METRICS, *measured]
        write_csv(self._runs(loss), columns, [[rows[key].get(name, "") for name in columns] for key in sorted(rows)])

    def lacking(self, losses: Sequence[str], seeds: Sequence[int], condition: str = "") -> list[str]:
        """Return the losses that have a finished search, but not a run of every seed."""
        finished = [loss for loss in losses if self.recipe(loss).exists()]
        return [loss for loss in finished if not {*seeds} <= self.runs(loss, condition)["recall@1"].keys()]

    def check(self, loss: str) -> dict[tuple[str, str], dict[int, float]]:
        """Return the values of a kept reality check by kind and metric, for each repetition."""
        values = defaultdict[tuple[str, str], dict[int, float]](dict)
        for row in read_rows(self.folder / "reality" / f"{loss}.csv"):
            values[row["kind"], row["metric"]][int(row["repeat"])] = float(row["value"])
        return dict(values)

    def keep_check(self, loss: str, rows: Sequence[tuple[str, str, int, float]]) -> None:
        """Keep the values of a finished reality check."""
        write_csv(self.folder / "reality" / f"{loss}.csv", ("kind", "metric", "repeat", "value"), rows)

    def _runs(self, loss: str) -> Path:
        return self.folder / self.rows / f"{loss}.csv"


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
    **choices: Iterable[str],
) -> None:
    """Run a script: read its command line, and train, or with --table write its tables by the names of their files.

    The command line has a data set, a word for each of ``choices``, losses, and where things lie. A `UserError` ends
    the script by its sentence. If ``train`` is None, the script only writes tables.
    """
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    for name, values in {"dataset": datasets, **choices}.items():
        parser.add_argument(name, choices=[*values])
    parser.add_argument("losses", nargs="*", metavar="LOSS", help="some of the losses (all)")
    parser.add_argument("--root", type=Path, metavar="PATH", help="Omniglot's images, or the features of cars.py")
    parser.add_argument("--out", type=Path, default=Path(out), metavar="DIR", help="for searches and runs")
    parser.add_argument("--kept", type=Path, default=HERE / "kept", metavar="DIR", help="where finished ones are kept")
    parser.add_argument("--table", type=Path, metavar="DIR", help="train nothing; write the tables of what is kept")
    arguments = parser.parse_intermixed_args()
    known = Kept(arguments.kept / arguments.dataset)
    try:
        if arguments.table is None:
            if train is None:
                parser.error("give --table DIR: README.md names the commit that makes these searches and runs")
            train(arguments, known)
            return
        words = " ".join([Path(sys.argv[0]).name, *(getattr(arguments, name) for name in ("dataset", *choices))])
        for name, table in tables(arguments, known).items():
            keep_table(table, arguments.table / f"{name}.csv", words)
    except UserError as error:
        raise SystemExit(str(error)) from None


def check_losses(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the given names, or all known names if none is given; an unknown name ends the command."""
    for name in names:
        if name not in known:
            raise SystemExit(f"There is no {name} here: take some of {', '.join(known)}, or name none for all.")
    return [*(names or known)]


def check_searched(losses: Sequence[str], known: Kept) -> None:
    """End the command if none of the losses has a finished search."""
    if not any(known.recipe(loss).exists() for loss in losses):
        raise SystemExit(
            f"{known.folder} holds no finished search of {', '.join(losses)}: name losses whose searches are kept."
        )


def check_kept(found: object, what: str, known: Kept) -> None:
    """End a command whose table would be empty."""
    if not found:
        raise SystemExit(f"{known.folder} holds no {what}: run this command without --table first.")


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
    folder = out / "-".join(words)
    compared = compare([recipe or known.recipe(loss)], out=folder, seeds=seeds, overrides=changed, report=_print)
    (results,) = compared.results().values()
    values = {metric: metric_values(results, metric) for metric in METRICS | MEASURES}
    for cell in compared.cells():
        if measure is not None and RunDirectory(cell.path).metrics.exists():
            for name, value in measure(cell.path).items():
                values[name][cell.seed] = value
    known.keep_runs(loss, values, condition)
    for cell in compared.cells():  # gigabytes that no table needs
        RunDirectory(cell.path).drop_weights(model=known.folder.name in (FEATURES, PHOTOGRAPHS))
    compared.check_finished()


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


def keep_table(table: Table, path: Path, command: str) -> None:
    """Write a table as CSV, and as Markdown, with its command and commit, to the pages that have a mark for it."""
    describe = ["git", "describe", "--always", "--dirty=+", "--abbrev=8", "--exclude=*"]
    commit = subprocess.run(describe, cwd=HERE, capture_output=True, text=True, check=False).stdout.strip()
    write_text(path, table.text("csv") + "\n")
    place = f"`python docs/experiments/{command}`, at commit {commit or 'unknown'}"
    shown = f"<!-- table: {path.name} -->\n{place}:\n\n{table.text('markdown')}\n"
    print(shown)
    if path.parent.resolve() == HERE:
        block = re.compile(rf"<!-- table: {re.escape(path.name)} -->\n(?:(?!<!--)[^|\n].*\n|\n)+(?:\|.*\n)+")
        for page in HERE.parent.rglob("*.md"):
            text = page.read_text(encoding="utf-8")
            if (written := block.sub(lambda _: shown, text)) != text:
                write_text(page, written)
