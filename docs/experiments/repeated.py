"""Repeat the searches of pairs of losses with two other seeds, and show how far their differences move.

    python docs/experiments/repeated.py glyphs-small
    python docs/experiments/repeated.py cars-features --root runs/cars/features.parquet
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
    names = {name for pair in pairs_of(known) for name in pair}
    repeated = [name for name in shared.REPEATED if name.partition("-search-")[0] in names]
    shared.search_and_train(arguments, known, repeated)


def pairs_of(known: shared.Kept) -> list[tuple[str, str]]:
    """Return the pairs whose searches are repeated on a data set; only characters have searches with a layer norm."""
    return [pair for pair in shared.HEADLINES if known.folder.name == "glyphs-small" or pair[1] in shared.SEARCHES]


def tables(_: Namespace, known: shared.Kept) -> dict[str, Table]:
    """Tabulate the difference of each pair for each search, paired by seed, and the mean over searches.

    The last interval is over the means of the three searches.
    """
    rows = []
    for pair in pairs_of(known):
        searches = [[known.runs(name + suffix) for name in pair] for suffix in ("", *shared.AGAIN)]
        for metric in ("recall@1", "map@r"):
            gains = [shared.paired(one[metric], other[metric]) for one, other in searches]
            if all(gains):
                means = [sum(gain) / len(gain) for gain in gains]
                cells = (*map(shared.interval, gains), shared.interval(means))
                rows.append([" − ".join(pair), shared.METRICS[metric], *cells])
    shared.check_kept(rows, "pair whose searches were repeated", known)
    columns = ["difference", "metric", "search 1", "search 2", "search 3", "over the three searches"]
    return {f"repeated-{known.folder.name}": Table(columns, rows)}


def main() -> None:
    """Search and train, or write the table."""
    shared.run_script(__doc__, train, tables, ["glyphs-small", shared.FEATURES], "runs/repeated")


if __name__ == "__main__":
    main()
