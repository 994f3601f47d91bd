"""How much wrong labels cost each loss: 0, 10, 20 and 40% of the training labels flipped at random.

    python docs/experiments/noise.py glyphs-small --table docs/experiments

Every loss has the values that its search found on clean labels; the runs on clean labels are those of compare.py.
Losses whose search is not finished are left out, and added by the same command later. Finished runs are kept beside
this script.
"""

import argparse
from pathlib import Path

from _kept import Kept
from _searches import HERE, check_losses, keep_table, kept, make_runs, run_script
from compare import paired

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
    parser.add_argument("losses", nargs="*", metavar="LOSS", help=f"of {', '.join(LOSSES)} (all)")
    parser.add_argument("--root", type=Path, metavar="FILE", help="the file of cars.py, for cars-features")
    parser.add_argument("--out", type=Path, default=Path("runs/noise"), metavar="DIR", help="for the runs")
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    parser.add_argument("--kept", type=Path, default=HERE / "kept", metavar="DIR", help="where finished ones are kept")
    parser.add_argument("--table", type=Path, metavar="DIR", help="train nothing; write the table of what is kept")
    arguments = parser.parse_intermixed_args()
    dataset = arguments.dataset
    known, seeds = kept(dataset, arguments.kept), range(arguments.seeds)
    if arguments.table is None:
        losses = check_losses(arguments.losses, LOSSES)
        for share in SHARES:
            for loss in known.lacking(losses, seeds, share):
                make_runs(known, loss, seeds, arguments.out / dataset, arguments.root, share)
        return
    command = f"python docs/experiments/noise.py {dataset}"
    keep_table(table(known, seeds), arguments.table / f"noise-{dataset}.csv", command)


def table(known: Kept, seeds: range) -> Table:
    """Test MAP@R of each loss by the share of wrong labels, and what 40% cost, paired by seed."""
    rows: list[list[object]] = []
    for name in LOSSES:
        if any(known.lacking([name], seeds, share) for share in SHARES) or not known.recipe(name).exists():
            continue
        runs = [{seed: known.runs(name, share)["map@r"][seed] for seed in seeds} for share in SHARES]
        shown = [t_interval([*values.values()]) for values in runs]
        rows.append([name, *map(format_estimate, [*shown, t_interval(paired(runs[-1], runs[0]))])])
    return Table(["loss", *(f"{share:.0%} wrong" for share in SHARES), "difference, 40% to 0%"], rows)


if __name__ == "__main__":
    run_script(main)
