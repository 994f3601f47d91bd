"""People's decisions about the images of a gallery: store them next to it, list them, apply them to its labels."""

import csv
import os
from collections import Counter
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Literal

from proxemic.data.formats.tables import CORNERS
from proxemic.data.roots import path_and_box
from proxemic.files import check_folder, write_atomically
from proxemic.outputs import check_csv
from proxemic.retrieval.galleries.gallery import Gallery
from proxemic.retrieval.galleries.items import further_columns
from proxemic.retrieval.galleries.stores import Store

Action = Literal["keep", "relabel", "remove"]
_SHOWN_FOR = timedelta(minutes=5)  # for this long, an image is shown to one reviewer only


@dataclass(frozen=True)
class Decision:
    """A person's decision about an image.

    Args:
        number: Number of the decision.
        time: Time of the decision in UTC, in ISO 8601.
        reviewer: The name that the person gave, or None.
        path: The image.
        action: ``keep`` the label, ``relabel`` the image or ``remove`` it.
        previous: Label of the image at that time, or None.
        label: The new label; None for an image that is removed or has no label.
        state: ``open``; ``applied``; or ``outdated`` if the image had another label, or was gone, when the decisions
            were applied.
    """

    number: int
    time: str
    reviewer: str | None
    path: str
    action: Action
    previous: str | None
    label: str | None
    state: str

    @property
    def is_waiting(self) -> bool:
        """Whether it is still to be applied."""
        return self.state == "open"


_COLUMNS = [column.name for column in fields(Decision)]
_CLAIM = """
INSERT INTO {decisions} AS known (path, state, time, session) VALUES (?, 'looking', ?, ?)
ON CONFLICT (path) WHERE state IN ('looking', 'open') DO UPDATE
SET time = excluded.time, session = excluded.session
WHERE known.state = 'looking' AND (known.session = excluded.session OR known.time < ?) RETURNING number"""
_DECIDE = """
INSERT INTO {decisions} AS known (path, state, time, session, reviewer, action, previous, label)
VALUES (?, 'open', ?, ?, ?, ?, ?, ?)
ON CONFLICT (path) WHERE state IN ('looking', 'open') DO UPDATE
SET state = 'open', time = excluded.time, session = excluded.session, reviewer = excluded.reviewer,
action = excluded.action, previous = excluded.previous, label = excluded.label
WHERE known.state = 'looking' RETURNING number"""
_WITHDRAW = """
UPDATE {decisions} SET state = 'looking', time = ?, session = ?, action = NULL WHERE number = ? AND state = 'open'
RETURNING number"""
_LIST = f"SELECT {', '.join(_COLUMNS)} FROM {{decisions}} WHERE state <> 'looking' ORDER BY time, number"
_OPEN = f"SELECT {', '.join(_COLUMNS)} FROM {{decisions}} WHERE state = 'open' ORDER BY number"
_CLOSE = "UPDATE {{decisions}} SET state = ? WHERE number IN ({}) RETURNING number"
_AT_ONCE = 500  # most values of a statement


def _now(before: timedelta = timedelta()) -> str:
    return (datetime.now(UTC) - before).isoformat(timespec="milliseconds")


def looked_at(store: Store) -> dict[str, tuple[str, bool]]:
    """Return the last session that was shown each undecided image, and whether it is still reserved for it."""
    found = store.decisions("SELECT path, session, time FROM {decisions} WHERE state = 'looking' ORDER BY time")
    return {path: (session, time >= _now(_SHOWN_FOR)) for path, session, time in found}


def claim(store: Store, path: str, session: str) -> bool:
    """Reserve an undecided image for a session; return False if another has it, or it was decided."""
    return bool(store.decisions(_CLAIM, (path, _now(), session, _now(_SHOWN_FOR))))


def decide(
    store: Store,
    path: str,
    session: str,
    action: Action,
    previous: str | None,
    label: str | None,
    reviewer: str | None = None,
) -> int | None:
    """Store a decision at once and return its number; None if someone has decided already."""
    values = (path, _now(), session, reviewer, action, previous, label)
    return next((number for (number,) in store.decisions(_DECIDE, values)), None)


def withdraw(store: Store, number: int, session: str) -> bool:
    """Withdraw a decision and reserve its image for a session; return False if it is not open any more."""
    return bool(store.decisions(_WITHDRAW, (_now(), session, number)))


def list_decisions(gallery: Gallery | str | os.PathLike[str]) -> tuple[Decision, ...]:
    """List people's decisions about the images of a gallery, oldest first.

    Args:
        gallery: A gallery in a folder or in PostgreSQL, or its address.

    Returns:
        The decisions.

    Raises:
        UserError: If there is no such gallery, or its store cannot keep decisions.

    >>> import tempfile
    >>> gallery = Gallery.create(Path(tempfile.mkdtemp()) / "shop", dim=2)
    >>> _ = gallery.add_vectors([[1.0, 0.0]], ["hat.jpg"], ["shoe"])
    >>> _ = decide(gallery.store, "hat.jpg", "session", "relabel", "shoe", "hat")
    >>> [(made.path, made.previous, made.label) for made in list_decisions(gallery)]
    [('hat.jpg', 'shoe', 'hat')]
    """
    gallery = gallery if isinstance(gallery, Gallery) else Gallery.open(gallery)
    return tuple(Decision(*row) for row in gallery.store.decisions(_LIST))


@dataclass(frozen=True)
class Applied:
    """Result of applying decisions.

    Args:
        relabelled: Number of images whose label changed.
        removed: Number of rows removed from the gallery.
        kept: Number of images whose label was confirmed.
        outdated: Decisions that were not applied, as their images have another label by now, or are gone.
    """

    relabelled: int
    removed: int
    kept: int
    outdated: tuple[Decision, ...]


def apply_decisions(gallery: Gallery | str | os.PathLike[str]) -> Applied:
    """Apply the open decisions to the labels of a gallery, in one step, and mark them as applied.

    Removed images leave the gallery, but no file is moved or deleted. If the process is killed, all decisions are
    applied or none.

    Args:
        gallery: A gallery in a folder or in PostgreSQL, or its address.

    Returns:
        How many decisions were applied, and those that were not.

    Raises:
        UserError: If there is no such gallery, or its store cannot keep decisions.

    >>> import tempfile
    >>> gallery = Gallery.create(Path(tempfile.mkdtemp()) / "shop", dim=2)
    >>> _ = gallery.add_vectors([[1.0, 0.0], [0.0, 1.0]], ["hat.jpg", "dust.jpg"], ["shoe", "hat"])
    >>> _ = decide(gallery.store, "hat.jpg", "session", "relabel", "shoe", "hat")
    >>> _ = decide(gallery.store, "dust.jpg", "session", "remove", "hat", None)
    >>> found = apply_decisions(gallery)
    >>> found.relabelled, found.removed, gallery.store.count_labels()
    (1, 1, Counter({'hat': 1}))
    """
    gallery = gallery if isinstance(gallery, Gallery) else Gallery.open(gallery)
    return gallery.store.transaction(partial(_apply, gallery.store))


def _apply(store: Store) -> Applied:
    made = [Decision(*row) for row in store.decisions(_OPEN)]
    labels: dict[str, str | None] = {}
    if paths := [item.path for item in made]:
        items = store.items(store.next_ids(count=len(paths), where={"path": paths}))
        labels.update(zip(items["path"].to_pylist(), items["label"].to_pylist(), strict=True))
    outdated = tuple(item for item in made if item.path not in labels or labels[item.path] != item.previous)
    valid = [item for item in made if item not in {*outdated}]
    if removed := [item.path for item in valid if item.action == "remove"]:
        store.remove({"path": removed})
    store.set_labels({item.path: item.label for item in valid if item.action == "relabel"})
    for state, closed in (("applied", valid), ("outdated", outdated)):
        for first in range(0, len(closed), _AT_ONCE):
            numbers = [item.number for item in closed[first : first + _AT_ONCE]]
            store.decisions(_CLOSE.format(", ".join("?" * len(numbers))), (state, *numbers))
    counts = Counter(item.action for item in valid)
    return Applied(counts["relabel"], counts["remove"], counts["keep"], outdated)


def write_corrected_table(gallery: Gallery | str | os.PathLike[str], out: str | os.PathLike[str]) -> int:
    """Write the labels that a gallery has after `apply_decisions`, as a table to train on.

    The table has the columns ``path`` and ``label`` and the gallery's further ones. Images to remove, and images
    without a label, are left out.

    Args:
        gallery: A gallery in a folder or in PostgreSQL, or its address; it is unchanged.
        out: A .csv file.

    Returns:
        Number of images in the table.

    Raises:
        UserError: If there is no such gallery, its store cannot keep decisions, or the file cannot be written.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> gallery = Gallery.create(folder / "shop", dim=2)
    >>> _ = gallery.add_vectors([[1.0, 0.0]], ["hat.jpg"], ["shoe"])
    >>> _ = decide(gallery.store, "hat.jpg", "session", "relabel", "shoe", "hat")
    >>> write_corrected_table(gallery, folder / "photos.csv")
    1
    >>> print((folder / "photos.csv").read_text().strip())
    path,label
    hat.jpg,hat
    """
    check_csv(out, ("path", "label"))
    gallery = gallery if isinstance(gallery, Gallery) else Gallery.open(gallery)
    check_folder(Path(out).parent)
    waiting = {decision.path: decision for decision in list_decisions(gallery) if decision.is_waiting}
    rows, further = [], further_columns(gallery.store.columns)
    for _, items in gallery.store.iterate():
        for row in items.to_pylist():
            decision = waiting.get(row["path"])
            label = row["label"]
            if decision is not None and label == decision.previous:
                label = decision.label
            if label is not None:
                path, box = path_and_box(row["path"])
                rows.append([path, label, *(row[name] for name in further), *(box or [None] * len(CORNERS))])
    width = 2 + len(further) + (len(CORNERS) if any(row[-1] is not None for row in rows) else 0)
    # `write_csv` would quote texts that a spreadsheet takes for formulas.
    with write_atomically(Path(out)) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(row[:width] for row in [["path", "label", *further, *CORNERS], *rows])
    return len(rows)
