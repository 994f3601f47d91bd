"""Train each loss with and without a layer norm of the pooled features, each tuned by a search of the same size.

    python docs/experiments/norm.py glyphs-small softmax-with-norm
    python docs/experiments/norm.py omniglot --root DIR
    python docs/experiments/norm.py glyphs-small --table docs/experiments

Each recipe on characters has the norm or has it not; search.py and compare.py tune and train it so. This script tunes
and trains the other one. A stopped search continues by the same command, and finished searches and runs are kept beside
this script. --table writes a table of both, with the differences.
"""

from collections.abc import Sequence

from _kept import METRICS, Kept
from _searches import (
    DATA_SETS,
    OTHER_NORM,
    WITH_NORM,
    WITHOUT_NORM,
    check_losses,
    keep_table,
    kept,
    make_runs,
    parser_of,
    run_script,
    run_search,
)
from compare import NAMES, paired

from proxemic.studies.statistics import format_estimate, holm, t_interval, t_test
from proxemic.tables import Table


def main() -> None:
    """Parse the flags and run the searches and trainings, or write the table."""
    parser = parser_of(__doc__, ["glyphs-small", "omniglot"], "runs/norm")
    arguments = parser.parse_intermixed_args()
    known, seeds = kept(arguments.dataset, arguments.kept), range(DATA_SETS[arguments.dataset].seeds)
    if arguments.table is not None:
        command = f"python docs/experiments/norm.py {arguments.dataset}"
        keep_table(table(known), arguments.table / f"norm-{arguments.dataset}.csv", command)
        return
    for name in check_losses(arguments.losses, [*OTHER_NORM]):
        print(f"{arguments.dataset}: {name}", flush=True)
        run_search(arguments.dataset, name, arguments.out / "searches", arguments.root, known)
        for loss in known.lacking([name], seeds):
            make_runs(known, loss, seeds, arguments.out / "runs" / arguments.dataset, arguments.root)


def table(known: Kept) -> Table:
    """Tabulate MAP@R with and without the norm, and the differences of all metrics, paired by seed.

    Holm's correction is over the rows, by MAP@R, which all searches maximise.
    """
    rows: list[list[object]] = []
    p_values: list[float] = []
    for name in OTHER_NORM:
        loss = name.removesuffix(WITH_NORM).removesuffix(WITHOUT_NORM)
        other, recipe = known.runs(name), known.runs(loss)
        if other["map@r"]:
            with_norm, without = (other, recipe) if name.endswith(WITH_NORM) else (recipe, other)
            gains = {metric: paired(with_norm[metric], without[metric]) for metric in METRICS}
            p_values.append(t_test(gains["map@r"]))
            means = [_interval([*values["map@r"].values()]) for values in (with_norm, without)]
            rows.append([loss, *means, *(_interval(gains[metric]) for metric in METRICS)])
    if not rows:
        raise SystemExit(f"{known.folder} holds no run of this comparison: run this command without --table first.")
    corrected = [[*row, f"{p:.3f}"] for row, p in zip(rows, holm(p_values), strict=True)]
    gain_names = [f"gain in {name}" for name in NAMES]
    return Table(["loss", "MAP@R with", "MAP@R without", *gain_names, "p of MAP@R, by Holm"], corrected)


def _interval(values: Sequence[float]) -> str:
    return format_estimate(t_interval(values))


if __name__ == "__main__":
    run_script(main)
