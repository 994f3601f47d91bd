"""The losses with the values that searches found, over seeds; the differences that papers claim; how far seeds spread.

    python docs/experiments/compare.py glyphs-small --table docs/experiments

Losses whose search is not finished are left out; the same command adds them later. Finished runs are kept beside this
script.
"""

from collections.abc import Mapping, Sequence

from _kept import METRICS, Kept, Values
from _searches import DATA_SETS, SEARCHES, check_losses, keep_table, kept, make_runs, parser_of, run_script, searched

from proxemic.studies.comparison.directory import Result
from proxemic.studies.comparison.statistics import seed_variation
from proxemic.studies.statistics import format_estimate, holm, t_interval, t_test
from proxemic.tables import MISSING, Table

NAMES = ("Recall@1", "MAP@R", "nDCG@8")
"""Of the metrics, in tables."""
CLAIMS = (
    ("softmax-mean-proxy", "softmax"),
    ("mpa", "proxy-anchor"),
    ("mpa-dw", "proxy-anchor"),
    ("mpa-ap", "proxy-anchor"),
    ("mpa", "soft-triple"),
    ("mpa-dw", "soft-triple"),
    ("mpa-ap", "soft-triple"),
    ("euclidean-softmax", "softmax"),
    ("euclidean-softmax-two-phases", "euclidean-softmax"),
    ("warp-attracting", "euclidean-softmax-two-phases"),
    ("warp-off-first-attracting", "euclidean-softmax-two-phases"),
    ("warp", "euclidean-softmax-two-phases"),
    ("warp-off-first", "euclidean-softmax-two-phases"),
)
"""Pairs of losses of which a paper says that the first is better, or that the results page compares."""
ON_CARS = (
    ("proxy-anchor", "soft-triple"),
    ("mpa-ap", "mpa"),
    ("mpa-ap", "mpa-dw"),
    ("warp-off-first", "softmax"),
    ("warp-off-first", "proxy-anchor"),
    ("warp-off-first", "multi-similarity"),
)
"""More of them, from the papers' tables of Cars196."""


def main() -> None:
    """Read the flags, and do it."""
    parser = parser_of(__doc__, DATA_SETS, "runs/compare")
    parser.add_argument("--seeds", type=int, metavar="N", help="(10 on features, 3 on photographs, else 5)")
    arguments = parser.parse_intermixed_args()
    dataset = arguments.dataset
    known, seeds = kept(dataset, arguments.kept), range(arguments.seeds or DATA_SETS[dataset].seeds)
    if arguments.table is None:
        losses = check_losses(arguments.losses, searched(dataset))
        known.check_searched(losses)
        for loss in known.lacking(losses, seeds):
            make_runs(known, loss, seeds, arguments.out / dataset, arguments.root)
        return
    command = f"python docs/experiments/compare.py {dataset}"
    means, differences = tables(known, CLAIMS + (ON_CARS if dataset.startswith("cars") else ()))
    keep_table(means, arguments.table / f"losses-{dataset}.csv", command)
    keep_table(differences, arguments.table / f"claims-{dataset}.csv", command)
    keep_table(spread(known), arguments.table / f"spread-{dataset}.csv", command)


def tables(known: Kept, pairs: Sequence[tuple[str, str]] = CLAIMS) -> tuple[Table, Table]:
    """The means with their intervals, and the claimed differences, paired by seed, with Holm's correction.

    The correction is over the claims, by MAP@R, which all searches maximise; other metrics are shown beside it.
    """
    runs = _all_runs(known)
    means = [
        [name, *(format_estimate(t_interval([*values[metric].values()])) for metric in METRICS)]
        for name, values in runs.items()
    ]
    rows: list[list[object]] = []
    p_values: list[float] = []
    for one, other in pairs:
        if one in runs and other in runs:
            gains = {metric: paired(runs[one][metric], runs[other][metric]) for metric in METRICS}
            p_values.append(t_test(gains["map@r"]))
            shown = (format_estimate(t_interval(gains[metric])) for metric in METRICS)
            rows.append([f"{one} − {other}", *shown])
    corrected = [[*row, f"{p:.3f}"] for row, p in zip(rows, holm(p_values), strict=True)]
    return Table(["loss", *NAMES], means), Table(["difference", *NAMES, "p of MAP@R, by Holm"], corrected)


def spread(known: Kept) -> Table:
    """Standard deviations of each metric over the seeds of a loss, and of the means of the losses, in percent."""
    results = [
        {
            seed: Result({"test": {metric: values[metric][seed] for metric in METRICS}}, 0, "validation", 0.0)
            for seed in values[METRICS[0]]
        }
        for values in _all_runs(known).values()
    ]
    rows: list[list[object]] = []
    for metric, name in zip(METRICS, NAMES, strict=True):
        if (found := seed_variation(results, metric, METRICS[0])) is not None:
            ratio = "{:.2f} ({:.2f} to {:.2f})".format(*found.ratio) if found.ratio else MISSING
            shown = (f"{100 * found.seeds:.2f}", f"{100 * found.recipes:.2f}", f"{found.separability:.1f}")
            rows.append([name, *shown, ratio])
    columns = ["over seeds", "of losses' means", "losses / seeds", "over seeds, to Recall@1's"]
    return Table(["metric", *columns], rows)


def _all_runs(known: Kept) -> dict[str, Values]:
    runs: dict[str, Values] = {name: values for name in SEARCHES if (values := known.runs(name))["map@r"]}
    if not runs:
        raise SystemExit(f"{known.folder} holds no run: run this command without --table first.")
    return runs


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """The differences of the seeds that both have."""
    return [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]


if __name__ == "__main__":
    run_script(main)
