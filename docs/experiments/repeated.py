"""Repeat the searches of five pairs of losses with two other seeds, and show how far their differences move.

    python docs/experiments/repeated.py glyphs-small
    python docs/experiments/repeated.py glyphs-small --table docs/experiments

A search depends on chance: the sampler draws the trials, and trainings with the same values differ. The intervals over
seeds that other tables have do not cover this. Here each search is made three times; the first is that of search.py or
norm.py. The same command continues a stopped search, and finished searches and runs are kept beside this script.
"""

from argparse import Namespace

import _experiments as shared

from proxemic.tables import Table


def train(arguments: Namespace, known: shared.Kept) -> None:
    """Search for each loss of the pairs with the other seeds, and train what each search found."""
    shared.search_and_train(arguments, known, [*shared.REPEATED])


def tables(_: Namespace, known: shared.Kept) -> dict[str, Table]:
    """Tabulate the difference in MAP@R of each pair for each search, paired by seed, and the mean over searches.

    The last interval is over the means of the three searches.
    """
    rows = []
    for pair in shared.HEADLINES:
        searches = [[known.runs(name + suffix)["map@r"] for name in pair] for suffix in ("", "-search-2", "-search-3")]
        gains = [shared.paired(*runs) for runs in searches]
        if all(gains):
            means = [sum(gain) / len(gain) for gain in gains]
            rows.append([" − ".join(pair), *map(shared.interval, gains), shared.interval(means)])
    shared.check_kept(rows, "pair whose searches were repeated", known)
    columns = ["difference in MAP@R", "search 1", "search 2", "search 3", "over the three searches"]
    return {f"repeated-{known.folder.name}": Table(columns, rows)}


def main() -> None:
    """Search and train, or write the table."""
    shared.run_script(__doc__, train, tables, ["glyphs-small"], "runs/repeated")


if __name__ == "__main__":
    main()
