"""How much wrong labels cost each loss: 0, 10, 20 and 40% of the training labels flipped at random.

    python docs/experiments/noise.py glyphs-small --searches runs/searches --out runs/noise --table docs/experiments

Every loss has the values that its search found on clean labels. Finished runs are kept; losses whose search is not
finished are left out, and added by the same command later.
"""

import argparse
from pathlib import Path

from _searches import LEAN, keep_table, report_to
from compare import best_recipes

from proxemic.protocols.comparison import Comparison, compare
from proxemic.protocols.comparison.statistics import metric_values
from proxemic.protocols.statistics import format_estimate, t_interval
from proxemic.tables import Table

SHARES = (0.0, 0.1, 0.2, 0.4)
LOSSES = (
    *("softmax", "arcface", "proxy-anchor", "mpa-ap", "euclidean-softmax", "euclidean-softmax-two-phases"),
    *("warp-off-first-attracting", "multi-similarity", "soft-triple", "arcface-sub-centers"),
)


def main() -> None:
    """Read the flags, and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=["glyphs-small", "cars-features"])
    parser.add_argument("--searches", type=Path, required=True, metavar="DIR", help="the --out of search.py")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a folder for the comparisons")
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    parser.add_argument("--table", type=Path, metavar="DIR", help="where the table is written as CSV")
    arguments = parser.parse_args()
    files = [path for path in best_recipes(arguments.searches / arguments.dataset) if path.stem in LOSSES]
    outs = {share: arguments.out / f"{arguments.dataset}-{round(100 * share)}" for share in SHARES}
    compared = {
        share: compare(
            files,
            out=out,
            seeds=range(arguments.seeds),
            overrides=LEAN | {"training.label_noise": share},
            report=report_to(out, arguments.dataset),
        )
        for share, out in outs.items()
    }
    if arguments.table is not None:
        keep_table(
            table(compared),
            arguments.table / f"noise-{arguments.dataset}.csv",
            f"python docs/experiments/noise.py {arguments.dataset}",
        )


def table(compared: dict[float, Comparison]) -> Table:
    """Test MAP@R of each loss by the share of wrong labels, and what 40% cost, paired by seed."""
    values = {
        share: {Path(entry.name).stem: metric_values(cells, "map@r") for entry, cells in each.results().items()}
        for share, each in compared.items()
    }
    clean, worst = values[SHARES[0]], values[SHARES[-1]]
    rows: list[list[object]] = []
    for name in clean:
        lost = [worst[name][seed] - clean[name][seed] for seed in clean[name]]
        shown = [t_interval(list(values[share][name].values())) for share in SHARES]
        rows.append([name, *map(format_estimate, [*shown, t_interval(lost)])])
    return Table(["loss", *(f"{share:.0%} wrong" for share in SHARES), "difference, 40% to 0%"], rows)


if __name__ == "__main__":
    main()
