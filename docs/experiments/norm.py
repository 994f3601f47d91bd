"""Tabulate each loss with and without a layer norm of the pooled features, each tuned by a search of the same size.

    python docs/experiments/norm.py glyphs-small --table

Each recipe on characters is either with or without the norm, and search.py and compare.py show this variant. The other
variant was tuned and trained alike. README.md names the commit that makes the searches and runs.
"""

from argparse import Namespace

import _experiments as shared

from proxemic.tables import Table


def tables(arguments: Namespace, known: shared.Kept) -> dict[str, Table]:
    """Tabulate MAP@R with and without the norm, and the differences of all metrics, paired by seed.

    Holm's correction is over the rows, by MAP@R, which all searches maximise. The columns of validation show the best
    value that each search found.
    """
    rows = []
    for name, search in shared.OTHER_NORM.items():
        loss = name.removesuffix(search.suffix)
        names = (name, loss) if search.layer_norm else (loss, name)
        with_norm, without = map(known.runs, names)
        if with_norm["map@r"] and without["map@r"]:
            shown, p = shared.gains(with_norm, without)
            means = (shared.interval(values["map@r"].values()) for values in (with_norm, without))
            found = (f"{100 * known.curve(name).found[-1]:.2f}" for name in names)
            rows.append(([loss, *means, *shown, *found], p))
    shared.check_kept(rows, "run of this comparison", known)
    columns = ["loss", "MAP@R with", "MAP@R without", *(f"gain in {name}" for name in shared.METRICS.values())]
    columns += ["validation with", "validation without"]
    return {f"norm-{known.dataset}": shared.corrected_table(columns, rows)}


def main() -> None:
    """Write the table."""
    shared.run_script(__doc__, None, tables, ["glyphs-small", "omniglot"], "runs/norm")


if __name__ == "__main__":
    main()
