"""The section of the classes that are most confused, as pairs with pictures."""

from proxemic.analysis import confused_pairs
from proxemic.pages import Section, table
from proxemic.report.judged import Judged
from proxemic.report.pictured import name_of, render, shown
from proxemic.tables import Table, percent

_PAIRS, _EXAMPLES, _LISTED = 8, 2, 30


def confused(judged: Judged) -> Section | None:
    """Pairs of classes by the queries of either whose nearest neighbour is of the other."""
    labels, names, near = judged.rows.labels, judged.rows.class_names, judged.found
    if labels is None or names is None or not near.neighbours.shape[1] or len(names) < 2:
        return None
    nearest = near.neighbours[:, 0]
    found = confused_pairs(labels[near.queries], labels[nearest].masked_fill(nearest < 0, -1), near.distances[:, 0])
    wrong = sum(pair.count for pair in found)
    said = f"Of {len(near.queries):,} queries, {wrong:,} have a picture of another class as the nearest, in "
    said += f"{len(found):,} pairs of classes." if found else "no pair of classes."
    pairs = [
        {
            "names": [names[each] for each in pair.classes],
            "count": pair.count,
            "queries": pair.queries,
            "examples": [
                {
                    "pictures": [shown(judged, row, alt) for row, alt in ((one, "query"), (other, "its nearest"))],
                    "labels": [names[int(labels[row])] for row in (one, other)],
                    "paths": [name_of(judged, row) for row in (one, other)],
                    "distance": float(near.distances[place, 0]),
                }
                for place in pair.examples[:_EXAMPLES].tolist()
                for one, other in [(int(near.queries[place]), int(nearest[place]))]
            ],
        }
        for pair in found[:_PAIRS]
    ]
    rows = [
        [*(names[each] for each in pair.classes), f"{pair.count:,}", f"{pair.queries:,}", percent(pair.share)]
        for pair in found[:_LISTED]
    ]
    title = f"The first {_LISTED} of {len(found):,} pairs" if len(found) > _LISTED else "All pairs"
    listed = Table(["class", "other class", "confused", "queries of both", "percent"], rows, align="llrrr")
    return Section(
        "Confused classes",
        render(
            "confused.html", said=said, pairs=pairs, title=title, table=table(listed, description=title) if rows else ""
        ),
    )
