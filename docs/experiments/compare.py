"""Compare the losses with the values that searches found, over seeds, and test the differences that papers claim.

    python docs/experiments/compare.py glyphs-small --table

Losses whose search is unfinished are left out; the same command adds them later. Finished runs are kept beside this
script.
"""

import statistics
from argparse import Namespace
from collections.abc import Mapping, Sequence

import _experiments as shared

from proxemic.studies.comparison.directory import Result
from proxemic.studies.comparison.statistics import seed_variation
from proxemic.tables import Table

CLAIMS = (
    ("softmax-mean-proxy", "softmax"),
    *((loss, rival) for rival in ("proxy-anchor", "soft-triple") for loss in ("mpa", "mpa-dw", "mpa-ap")),
    ("euclidean-softmax", "softmax"),
    ("euclidean-softmax-two-phases", "euclidean-softmax"),
    *(
        (loss, "euclidean-softmax-two-phases")
        for loss in ("warp-attracting", "warp-off-first-attracting", "warp", "warp-off-first")
    ),
)
"""Pairs of losses where a paper says that the first is better, or that the results page compares."""
ON_CARS = (
    ("proxy-anchor", "soft-triple"),
    *(("mpa-ap", rival) for rival in ("mpa", "mpa-dw")),
    *(("warp-off-first", rival) for rival in ("softmax", "proxy-anchor", "multi-similarity")),
)
"""Further pairs, from the papers' tables of Cars196."""
Runs = Mapping[str, Mapping[str, Mapping[int, float]]]
"""The test metrics of runs by loss, metric and seed."""


def train(arguments: Namespace, known: shared.Kept) -> None:
    """Train the best recipe of each loss with each seed."""
    dataset = arguments.dataset
    losses = shared.check_losses(arguments.losses, shared.searched(dataset))
    shared.check_searched(losses, known)
    for loss in losses:
        seeds = range(shared.MORE_SEEDS.get((dataset, loss), shared.DATA_SETS[dataset].seeds))
        if known.lacking([loss], seeds):
            shared.make_runs(known, loss, seeds, arguments.out / dataset, arguments.root)


def tables(arguments: Namespace, known: shared.Kept) -> dict[str, Table]:
    """Tabulate the means, the claimed differences, and the spread over seeds."""
    dataset = known.dataset
    runs = runs_of(known)
    shared.check_kept(runs, "run", known)
    pairs = CLAIMS + (ON_CARS if dataset.startswith("cars") else ())
    made = {"losses": means(runs), "claims": differences(runs, pairs), "spread": spread(runs)}
    if table := colors(known):
        made["colors"] = table
    return {f"{name}-{dataset}": table for name, table in made.items()}


def runs_of(known: shared.Kept) -> Runs:
    """Return the runs of the losses that are compared."""
    return {name: values for name in shared.SEARCHES if (values := known.runs(name))["map@r"]}


def means(runs: Runs) -> Table:
    """Tabulate the mean metrics of each loss with their intervals, the best MAP@R first."""
    best_first = sorted(runs, key=lambda name: -statistics.fmean(runs[name]["map@r"].values()))
    rows = [[name, *(shared.interval(runs[name][metric].values()) for metric in shared.METRICS)] for name in best_first]
    return Table(["loss", *shared.METRICS.values()], rows)


def differences(runs: Runs, pairs: Sequence[tuple[str, str]] = CLAIMS) -> Table:
    """Tabulate the claimed differences, paired by seed, with Holm's correction over them.

    The correction is by MAP@R, which all searches maximise.
    """
    rows = []
    for one, other in pairs:
        if one in runs and other in runs:
            shown, p = shared.gains(runs[one], runs[other])
            rows.append(([f"{one} − {other}", *shown], p))
    return shared.corrected_table(["difference", *shared.METRICS.values()], rows)


def colors(known: shared.Kept) -> Table | None:
    """Tabulate the metrics with swapped and with true colours; None if no runs with swapped colours are kept.

    Differences are paired by seed. A loss that was trained with swapped colours alone has no other values.
    """
    shown = ("recall@1", "map@r")
    rows = []
    for name in shared.SEARCHES:
        swapped, true = known.runs(name, shared.SWAPPED), known.runs(name)
        if swapped["map@r"]:
            cells = []
            for metric in shown:
                three = (swapped[metric].values(), true[metric].values(), shared.paired(true[metric], swapped[metric]))
                cells += [shared.estimate(metric, values) for values in three]
            rows.append([name, *cells])
    titles = [f"{shared.METRICS[metric]}, {what}" for metric in shown for what in ("swapped", "true", "true − swapped")]
    return Table(["loss", *titles], rows) if rows else None


def spread(runs: Runs) -> Table:
    """Tabulate the standard deviation of each metric over seeds, and over the means of the losses, in percent."""
    results = [
        {
            seed: Result({"test": {metric: values[metric][seed] for metric in shared.METRICS}}, 0, "validation", 0.0)
            for seed in values["recall@1"]
        }
        for values in runs.values()
    ]
    rows = []
    for metric, name in shared.METRICS.items():
        if (found := seed_variation(results, metric, "recall@1")) is not None:
            shown = (f"{100 * found.seeds:.2f}", f"{100 * found.recipes:.2f}", f"{found.separability:.1f}")
            rows.append([name, *shown, found.ratio_text()])
    columns = ["over seeds", "of losses' means", "losses / seeds", "over seeds, to Recall@1's"]
    return Table(["metric", *columns], rows)


def main() -> None:
    """Train, or write the tables."""
    shared.run_script(__doc__, train, tables, shared.DATA_SETS, "runs/compare")


if __name__ == "__main__":
    main()
