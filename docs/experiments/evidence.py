"""Make the runs of rule.md, row by row, in its order.

    nice -n 19 python docs/experiments/evidence.py --features FILE --omniglot DIR --photographs FILE
    python docs/experiments/evidence.py --status

FILE are features.parquet and photographs.csv of cars.py, DIR holds Omniglot's archives. One thread trains one run after
the other. SIGTERM, Ctrl-C or a kill loses at most the running training; the same command continues. Rows are kept in
kept/evidence.parquet. All of them are made from one commit, in a worktree of its own; copy_rows.py brings them back.
"""

import argparse
import signal
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import _evidence
import _experiments as shared
import _measures
import claims
import conditions
import functions
import paired
import sweeps
from _evidence import Evidence, Runs

from proxemic.errors import UserError
from proxemic.studies.statistics import needed
from proxemic.tables import Table

HEADS, GLYPHS, OMNIGLOT, PHOTOGRAPHS = shared.FEATURES, "glyphs-small", "omniglot", shared.PHOTOGRAPHS
REGULARIZED = "softmax-mean-proxy"
WEIGHTS = (0, 0.01, 0.1, 1)
"""The weights of the regulariser in the thesis' table 4.1."""
ON_OMNIGLOT = (
    *("warp", "warp-off-first", "euclidean-softmax-two-phases"),
    *(
        f"{loss}-with-norm"
        for loss in ("softmax", "proxy-nca-plus-plus", "proxy-anchor", "soft-triple", "multi-similarity", "hist")
    ),
    *("proxy-anchor", "soft-triple", "mpa", "mpa-dw", "mpa-ap"),
    *(f"{loss}-with-norm" for loss in ("mpa", "mpa-dw", "mpa-ap")),
    *("softmax", REGULARIZED),
)
"""The 19 searches of Omniglot whose seeds 5 to 14 are trained."""
FINE_TUNED = (
    *("softmax", "mpa-dw", "mpa-ap", "soft-triple", "multi-similarity", "euclidean-softmax"),
    *("euclidean-softmax-two-phases", "warp-off-first", REGULARIZED, "mpa", "proxy-anchor"),
)
MIDDLE_ALPHA = {HEADS: 16, GLYPHS: 4, OMNIGLOT: 4}
"""The α of the sweep nearest to what the search of the warp found."""
FEWEST, MOST = 10, 30
"""The least and the largest number of seeds where a standard deviation sets it."""
NEW = 10
"""The seeds of cells that were not tested before."""


class Runner:
    """The rows of the table in rule.md as runs; ``roots`` says where the data sets are."""

    def __init__(self, kept: Path, roots: Mapping[str, Path | None], out: Path) -> None:
        self.kept, self.roots, self.out = kept, roots, out
        self.evidence = Evidence(kept)

    def known(self, dataset: str) -> shared.Kept:
        """Return the kept searches of a data set, with the rows of evidence."""
        return shared.Kept(self.kept, dataset, "evidence")

    def rows(self) -> dict[str, Callable[[], Iterable[Runs]]]:
        """Return the runs of each row of the table, in order. Later runs may depend on the rows of earlier ones."""
        return {
            "several proxies, configurations": lambda: self.paired("several-proxies"),
            "mean proxy, weights": lambda: (
                runs for dataset in (HEADS, GLYPHS) for runs in self.weights(dataset, WEIGHTS, 15)
            ),
            "mean proxy, configurations": lambda: self.paired("mean-proxy"),
            "warp, configurations": lambda: self.paired("warp"),
            "seeds on Omniglot": self.omniglot,
            "few images, small batches, K, α": self.powered,
            "cells not tested before": self.untested,
            "fine-tuned": self.fine_tuned,
        }

    def paired(self, name: str) -> Iterator[Runs]:
        """Iterate over the configurations of a component."""
        for dataset in paired.MOST:
            yield from paired.pairs(self.known(dataset), self.evidence, name, self.roots[dataset])

    def weights(self, dataset: str, weights: Iterable[float], seeds: int) -> Iterator[Runs]:
        """Iterate over the weights of the regulariser, at otherwise the same values (thesis, table 4.1)."""
        for weight in weights:
            values = {"loss.regularizers.weight": float(weight)} if weight else {"loss.regularizers": []}
            runs = self.runs(dataset, REGULARIZED, f"weight {weight:g}", values, range(seeds))
            yield replace(runs, measure=_measures.distance_to_proxy, history=True)

    def omniglot(self) -> Iterator[Runs]:
        """Iterate over seeds 0 to 14 of the searches on Omniglot, where kept seeds need not be trained again."""
        for loss in ON_OMNIGLOT:
            yield from self.joined(self.runs(OMNIGLOT, loss, "", {}, range(15)))

    def powered(self) -> Iterator[Runs]:
        """Iterate over the runs of claims whose kept seeds say how many are needed."""
        for number, datasets in {
            **dict.fromkeys(("B15", "B17", "B18"), (HEADS, GLYPHS)),
            **dict.fromkeys(("B19", "B23", "C16"), (GLYPHS,)),
        }.items():
            for dataset in datasets:
                yield from self.claim(number, dataset)

    def claim(self, number: str, dataset: str, seeds: int | None = None) -> Iterator[Runs]:
        """Iterate over the runs of a claim's parts; by default as many seeds as their kept differences ask for."""
        for part, gains in claims.CLAIMS[number]["parts"].items():
            count = seeds or self.seeds_of(number, part, dataset, gains)
            for term in part.replace(" + ", " − ").split(" − "):
                loss, _, condition = term.partition("@")
                yield from self.joined(self.condition(dataset, loss, condition, range(count)))

    def seeds_of(self, number: str, part: str, dataset: str, gains: Mapping[str, float]) -> int:
        """Return the number of seeds that finds the smallest gain of the paper, but at least 0.7 points."""
        kept = claims.Difference(self.kept, number, part, dataset, gains).values[0]
        effect = max(paired.EFFECT, min(gains.values(), default=0))
        return min(max(needed(100 * statistics.stdev(kept), effect), FEWEST), MOST)

    def untested(self) -> Iterator[Runs]:
        """Iterate over the cells that were not tested before, in the order of their time."""
        yield from self.weights(OMNIGLOT, (0, 1), NEW)  # A3, A4; A3 elsewhere has the histories of the weights above
        for dataset in (HEADS, OMNIGLOT):
            for count in (1, 4, 8, 16):  # B19, B23
                yield self.condition(dataset, "mpa", f"K={count}", range(NEW))
            for loss in ("euclidean-softmax-two-phases", "warp", "warp-off-first"):  # C11, C15
                yield self.condition(dataset, loss, "clusters", range(NEW))
            for name in functions.FUNCTIONS:  # C13, C14
                yield self.function(dataset, name)
            for sweep, names in {
                "alpha": [f"α={alpha}" for alpha in (0, MIDDLE_ALPHA[dataset], 95)],  # C16
                "k1-k2": ["k1=0.8, k2=1.5", "k1=1.0, k2=1.5", "k1=0.8, k2=1.0"],  # C17
                "delta": ["Δ×1", "Δ×2", "Δ×5.5"],  # C18
            }.items():
                values = sweeps.sweep(self.known(dataset).recipe(sweeps.LOSS), sweep)
                for name in names:
                    yield self.runs(dataset, sweeps.LOSS, name, values[name], range(NEW))
        for number in ("B15", "B16", "B17", "B18"):
            yield from self.claim(number, OMNIGLOT, NEW)
        yield from self.claim("B16", HEADS)
        yield from self.claim("B16", GLYPHS)
        for loss in ("euclidean-softmax-two-phases", "warp", "warp-off-first"):
            yield self.condition(OMNIGLOT, loss, "corruptions", range(NEW))  # C19
        for loss in ("proxy-nca-plus-plus-with-norm", "hist-with-norm"):
            yield self.condition(OMNIGLOT, loss, "corruptions", range(NEW))
        for dataset in (GLYPHS, OMNIGLOT):  # C21
            for loss in ("euclidean-softmax-two-phases", "warp", "warp-off-first-attracting"):
                yield self.condition(dataset, loss, "verification", range(NEW))

    def fine_tuned(self) -> Iterator[Runs]:
        """Iterate over the fine-tuned networks, all on one processor: 8 seeds each."""
        yield from self.weights(PHOTOGRAPHS, (0, 1), 8)
        for loss in FINE_TUNED:
            yield self.runs(PHOTOGRAPHS, loss, "", {}, range(8))

    def runs(self, dataset: str, loss: str, condition: str, values: Mapping[str, Any], seeds: range) -> Runs:
        """Return runs of the best recipe of a loss."""
        recipe = self.known(dataset).recipe(loss)
        return Runs(dataset, loss, condition, recipe, seeds, dict(values), root=self.roots[dataset])

    def condition(self, dataset: str, loss: str, name: str, seeds: range) -> Runs:
        """Return the runs of a loss under a condition of conditions.py or a sweep."""
        if not name:
            return self.runs(dataset, loss, "", {}, seeds)
        known = self.known(dataset)
        if name.startswith(("α=", "k1=", "Δ×")):
            sweep = {"α": "alpha", "k": "k1-k2", "Δ": "delta"}[name[0]]
            return self.runs(dataset, loss, name, sweeps.sweep(known.recipe(loss), sweep)[name], seeds)
        changes = [change for kind in conditions.CONDITIONS for change in conditions.changes_of(known, kind)]
        change = next(change for change in changes if change.name == name)
        runs = self.runs(dataset, loss, name, {}, seeds)
        root, values = conditions.overrides_of(known, loss, change, self.out / dataset, runs.root)
        return replace(runs, values=values, root=root, measure=change.measure)

    def function(self, dataset: str, name: str) -> Runs:
        """Return the runs of a function of distance."""
        recipe, values = functions.recipe_of(self.known(dataset), name)
        runs = Runs(dataset, functions.LOSS, name, recipe, range(NEW), values, root=self.roots[dataset])
        return replace(runs, measure=_measures.distance_to_proxy)

    def joined(self, runs: Runs) -> Iterator[Runs]:
        """Iterate over the first seed and then those that are to be trained.

        If the first seed gives the kept values to the last digit, kept seeds of an older commit are not trained again.
        """
        kept = shared.Kept(self.kept, runs.dataset).runs(runs.name, runs.condition)
        yield replace(runs, seeds=runs.seeds[:1])
        first = runs.seeds[0]
        equal = all(
            by_seed[first] == self.evidence.metric(runs.dataset, runs.name, runs.condition, metric).get(first)
            for metric, by_seed in kept.items()
            if first in by_seed
        )
        yield replace(runs, seeds=[seed for seed in runs.seeds if not (equal and seed in kept["recall@1"])])


def status(runner: Runner) -> Table:
    """Tabulate how many runs of each row are finished; the number of configurations is known once 20 are."""
    made = []
    for name, row in runner.rows().items():
        done, all_runs, note = 0, 0, ""
        try:
            for runs in row():
                missing = len(runner.evidence.missing(runs))
                done, all_runs = done + len(runs.seeds) - missing, all_runs + len(runs.seeds)
        except UserError as error:  # runs that depend on rows that are not there yet
            note = f"and more: {error}"
        made.append([name, f"{done:,} of {all_runs:,}", note])
    return Table(["row", "runs", ""], made)


def main() -> None:
    """Train what is missing, or print the status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="the beginnings of some rows' names (all)")
    parser.add_argument("--features", type=Path, metavar="FILE")
    parser.add_argument("--omniglot", type=Path, metavar="DIR")
    parser.add_argument("--photographs", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, default=Path("runs/evidence"), metavar="DIR", help="for unfinished runs")
    shared.add_kept(parser)
    parser.add_argument("--status", action="store_true", help="train nothing; print what is finished")
    arguments = parser.parse_args()
    roots = {HEADS: arguments.features, OMNIGLOT: arguments.omniglot, PHOTOGRAPHS: arguments.photographs, GLYPHS: None}
    runner = Runner(arguments.kept, roots, arguments.out)
    if arguments.status:
        print(status(runner).text("markdown"))
        return
    for name, dataset in (("features", HEADS), ("omniglot", OMNIGLOT), ("photographs", PHOTOGRAPHS)):
        if roots[dataset] is None or not roots[dataset].exists():
            parser.error(f"--{name} names the data of {dataset}, which exists; got {roots[dataset]}")
    signal.signal(signal.SIGTERM, lambda *_: _stop())
    made_by = _evidence.commit()
    try:
        for name, row in runner.rows().items():
            if not arguments.rows or name.startswith(tuple(arguments.rows)):
                print(f"# {name}", flush=True)
                for runs in row():
                    _evidence.make(runner.evidence, runs, arguments.out, made_by)
    except UserError as error:
        raise SystemExit(str(error)) from None


def _stop() -> None:
    raise SystemExit("Stopped; the same command continues.")


if __name__ == "__main__":
    main()
