"""Show how far the differences of pairs of losses move if their searches are repeated with two other seeds.

    python docs/experiments/repeated.py glyphs-small --table

A search depends on chance: the sampler draws the trials, and trainings with the same values differ. The intervals over
seeds that other tables have do not cover this. Here each search was made three times; the first is that of search.py or
norm.py. README.md names the commit that makes the searches and runs.
"""

from argparse import Namespace

import _experiments as shared

from proxemic.tables import Table


def pairs_of(known: shared.Kept) -> list[tuple[str, str]]:
    """Return the pairs whose searches were repeated on a data set; only characters have searches with a layer norm."""
    with_norm = known.dataset == "glyphs-small"
    return [pair for pair in shared.HEADLINES if with_norm or shared.SEARCHES.keys() >= {*pair}]


def tables(_: Namespace, known: shared.Kept) -> dict[str, Table]:
    """Tabulate the difference of each pair, paired by seed, and each of its losses, for each search.

    The last interval is over the means of the three searches.
    """
    pairs = pairs_of(known)
    losses = dict.fromkeys((name,) for pair in pairs for name in reversed(pair))
    differences = [row for pair in pairs for row in rows(known, pair)]
    shared.check_kept(differences, "pair whose searches were repeated", known)
    columns = ["metric", "search 1", "search 2", "search 3", "over the three searches"]
    return {
        f"repeated-{known.dataset}": Table(["difference", *columns], differences),
        f"repeated-{known.dataset}-losses": Table(
            ["loss", *columns], [row for loss in losses for row in rows(known, loss)]
        ),
    }


def rows(known: shared.Kept, names: tuple[str, ...]) -> list[list[str]]:
    """Return the rows of a loss or a pair, one per metric; without all three searches there are none."""
    found = []
    for metric in ("recall@1", "map@r"):
        searches = []
        for suffix in ("", *shared.AGAIN):
            values = [known.runs(name + suffix)[metric] for name in names]
            searches.append([*values[0].values()] if len(values) == 1 else shared.paired(*values))
        if all(searches):
            means = [sum(search) / len(search) for search in searches]
            cells = (*map(shared.interval, searches), shared.interval(means))
            found.append([" − ".join(names), shared.METRICS[metric], *cells])
    return found


def main() -> None:
    """Write the tables."""
    shared.run_script(__doc__, None, tables, ["glyphs-small", shared.FEATURES], "runs/repeated")


if __name__ == "__main__":
    main()
