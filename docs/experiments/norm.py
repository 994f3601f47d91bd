"""Train each loss with and without a layer norm of the pooled features, each tuned by a search of the same size.

    python docs/experiments/norm.py glyphs-small softmax-with-norm
    python docs/experiments/norm.py omniglot --root DIR
    python docs/experiments/norm.py glyphs-small --table docs/experiments

Each recipe on characters has the norm or has it not; search.py and compare.py tune and train it so. This script tunes
and trains the other one. A stopped search continues by the same command, and finished searches and runs are kept beside
this script. --table writes a table of both, with the differences.
"""

from _experiments import (
    DATA_SETS,
    METRICS,
    OTHER_NORM,
    Kept,
    check_kept,
    check_losses,
    corrected_table,
    gains,
    interval,
    keep_table,
    make_runs,
    parse,
    parser_of,
    run_script,
    run_search,
)

from proxemic.tables import Table


def main() -> None:
    """Search and train, or write the table."""
    arguments, known = parse(parser_of(__doc__, ["glyphs-small", "omniglot"], "runs/norm"))
    dataset, seeds = arguments.dataset, range(DATA_SETS[arguments.dataset].seeds)
    if arguments.table is not None:
        keep_table(table(known), arguments.table / f"norm-{dataset}.csv", f"norm.py {dataset}")
        return
    for name in check_losses(arguments.losses, [*OTHER_NORM]):
        run_search(dataset, name, arguments.out / "searches", arguments.root, known)
        for loss in known.lacking([name], seeds):
            make_runs(known, loss, seeds, arguments.out / "runs" / dataset, arguments.root)


def table(known: Kept) -> Table:
    """Tabulate MAP@R with and without the norm, and the differences of all metrics, paired by seed.

    Holm's correction is over the rows, by MAP@R, which all searches maximise.
    """
    rows = []
    for name, search in OTHER_NORM.items():
        loss = name.removesuffix(search.suffix)
        other, recipe = known.runs(name), known.runs(loss)
        if other["map@r"]:
            with_norm, without = (other, recipe) if search.layer_norm else (recipe, other)
            shown, p = gains(with_norm, without)
            rows.append(([loss, *(interval(values["map@r"].values()) for values in (with_norm, without)), *shown], p))
    check_kept(rows, "run of this comparison", known)
    gain_names = [f"gain in {name}" for name in METRICS.values()]
    return corrected_table(["loss", "MAP@R with", "MAP@R without", *gain_names], rows)


if __name__ == "__main__":
    run_script(main)
