"""The losses with the values that their searches found, over seeds; and the differences that papers claim.

    python docs/experiments/compare.py glyphs-small --searches runs/searches --out runs/compare --table docs/experiments

Losses whose search is not finished are left out; the same command adds them later. Finished runs are kept.
"""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from _searches import DATA_SETS, LEAN, SEARCHES, is_finished, keep_table, report_to

from proxemic.protocols.comparison import Comparison, Entry, compare
from proxemic.protocols.comparison.statistics import difference, mean, metric_values
from proxemic.protocols.statistics import format_estimate, holm, t_test
from proxemic.tables import Table

METRICS = ("recall@1", "map@r", "ndcg@8")
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=DATA_SETS)
    parser.add_argument("--searches", type=Path, required=True, metavar="DIR", help="the --out of search.py")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the comparison, in a folder of the set")
    parser.add_argument("--seeds", type=int, metavar="N", help="(10 on features, 3 on photographs, else 5)")
    parser.add_argument("--table", type=Path, metavar="DIR", help="where the tables are written as CSV")
    arguments = parser.parse_args()
    files = best_recipes(arguments.searches / arguments.dataset)
    out = arguments.out / arguments.dataset
    comparison = compare(
        files,
        out=out,
        seeds=range(arguments.seeds or DATA_SETS[arguments.dataset].seeds),
        overrides=LEAN,
        report=report_to(out, arguments.dataset),
    )
    if arguments.table is not None:
        command = f"python docs/experiments/compare.py {arguments.dataset}"
        pairs = CLAIMS + (ON_CARS if arguments.dataset.startswith("cars") else ())
        means, differences = tables(comparison, pairs)
        keep_table(means, arguments.table / f"losses-{arguments.dataset}.csv", command)
        keep_table(differences, arguments.table / f"claims-{arguments.dataset}.csv", command)


def best_recipes(searches: Path) -> list[Path]:
    """The best recipe of each finished search, as a file that is named like the loss."""
    folder = searches / "best"
    folder.mkdir(exist_ok=True)
    finished = [name for name in SEARCHES if is_finished(searches / name)]
    return [Path(shutil.copyfile(searches / name / "best.yaml", folder / f"{name}.yaml")) for name in finished]


def tables(comparison: Comparison, pairs: Sequence[tuple[str, str]] = CLAIMS) -> tuple[Table, Table]:
    """The means with their intervals, and the claimed differences, paired by seed, with Holm's correction.

    The correction is over the claims, by MAP@R, which all searches maximise; other metrics are shown beside it.
    """
    entries: dict[str, Entry] = {Path(entry.name).stem: entry for entry in comparison.entries}
    results = comparison.results()
    means = [
        [name, *(format_estimate(mean(results[entry], metric)) for metric in METRICS)]
        for name, entry in entries.items()
    ]
    claims = [(one, other) for one, other in pairs if one in entries and other in entries]
    rows: list[list[object]] = []
    p_values: list[float] = []
    for one, other in claims:
        first, second = results[entries[one]], results[entries[other]]
        base = metric_values(second, "map@r")
        p_values.append(
            t_test([value - base[seed] for seed, value in metric_values(first, "map@r").items() if seed in base])
        )
        rows.append([f"{one} − {other}", *(format_estimate(difference(first, second, metric)) for metric in METRICS)])
    corrected = [[*row, f"{p:.3f}"] for row, p in zip(rows, holm(p_values), strict=True)]
    columns = ["Recall@1", "MAP@R", "nDCG@8"]
    return Table(["loss", *columns], means), Table(["difference", *columns, "p of MAP@R, by Holm"], corrected)


if __name__ == "__main__":
    main()
