"""The losses with the values that searches found, over seeds; the differences that papers claim; how far seeds spread.

    python docs/experiments/compare.py glyphs-small --table docs/experiments

Losses whose search is not finished are left out; the same command adds them later. Finished runs are kept beside this
script.
"""

import statistics
from collections.abc import Sequence

from _experiments import (
    DATA_SETS,
    METRICS,
    SEARCHES,
    Kept,
    check_kept,
    check_losses,
    check_searched,
    corrected_table,
    gains,
    interval,
    keep_table,
    make_runs,
    parse,
    parser_of,
    run_script,
    searched,
)

from proxemic.studies.comparison.directory import Result
from proxemic.studies.comparison.statistics import seed_variation
from proxemic.tables import MISSING, Table

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
"""Pairs of losses of which a paper says that the first is better, or that the results page compares."""
ON_CARS = (
    ("proxy-anchor", "soft-triple"),
    *(("mpa-ap", rival) for rival in ("mpa", "mpa-dw")),
    *(("warp-off-first", rival) for rival in ("softmax", "proxy-anchor", "multi-similarity")),
)
"""More of them, from the papers' tables of Cars196."""


def main() -> None:
    """Train, or write the tables."""
    parser = parser_of(__doc__, DATA_SETS, "runs/compare")
    parser.add_argument("--seeds", type=int, metavar="N", help="(10 on features, 3 on photographs, else 5)")
    arguments, known = parse(parser)
    dataset, seeds = arguments.dataset, range(arguments.seeds or DATA_SETS[arguments.dataset].seeds)
    if arguments.table is None:
        losses = check_losses(arguments.losses, searched(dataset))
        check_searched(losses, known)
        for loss in known.lacking(losses, seeds):
            make_runs(known, loss, seeds, arguments.out / dataset, arguments.root)
        return
    means, differences = tables(known, CLAIMS + (ON_CARS if dataset.startswith("cars") else ()))
    for name, table in {"losses": means, "claims": differences, "spread": spread(known)}.items():
        keep_table(table, arguments.table / f"{name}-{dataset}.csv", f"compare.py {dataset}")


def _all_runs(known: Kept) -> dict[str, dict[str, dict[int, float]]]:
    runs = {name: values for name in SEARCHES if (values := known.runs(name))["map@r"]}
    check_kept(runs, "run", known)
    return runs


def tables(known: Kept, pairs: Sequence[tuple[str, str]] = CLAIMS) -> tuple[Table, Table]:
    """Tabulate the means with their intervals, and the claimed differences, paired by seed, with Holm's correction.

    The best MAP@R comes first. The correction is over the claims, by MAP@R, which all searches maximise.
    """
    runs = _all_runs(known)
    best_first = sorted(runs, key=lambda name: -statistics.fmean(runs[name]["map@r"].values()))
    means = [[name, *(interval(runs[name][metric].values()) for metric in METRICS)] for name in best_first]
    rows = []
    for one, other in pairs:
        if one in runs and other in runs:
            shown, p = gains(runs[one], runs[other])
            rows.append(([f"{one} − {other}", *shown], p))
    return Table(["loss", *METRICS.values()], means), corrected_table(["difference", *METRICS.values()], rows)


def spread(known: Kept) -> Table:
    """Tabulate the deviations of each metric over the seeds of a loss, and of the means of the losses, in percent."""
    results = [
        {
            seed: Result({"test": {metric: values[metric][seed] for metric in METRICS}}, 0, "validation", 0.0)
            for seed in values["recall@1"]
        }
        for values in _all_runs(known).values()
    ]
    rows = []
    for metric, name in METRICS.items():
        if (found := seed_variation(results, metric, "recall@1")) is not None:
            ratio = "{:.2f} ({:.2f} to {:.2f})".format(*found.ratio) if found.ratio else MISSING
            shown = (f"{100 * found.seeds:.2f}", f"{100 * found.recipes:.2f}", f"{found.separability:.1f}")
            rows.append([name, *shown, ratio])
    columns = ["over seeds", "of losses' means", "losses / seeds", "over seeds, to Recall@1's"]
    return Table(["metric", *columns], rows)


if __name__ == "__main__":
    run_script(main)
