"""A state of a gallery's folder, as a reader has it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float32, Int64
from pyarrow.compute import is_in  # pyright: ignore[reportAttributeAccessIssue]

from proxemic.errors import UserError
from proxemic.retrieval.items import Where, check_where, matching
from proxemic.retrieval.stores.local.database import State
from proxemic.retrieval.stores.local.exact import BLOCK, search_segments
from proxemic.retrieval.stores.local.segments import Segment, as_numbers
from proxemic.retrieval.stores.store import Neighbours

Masks = Sequence[Bool[np.ndarray, " rows"] | None]
"""Of each segment, the rows that are meant; None is all."""

_KEPT = 16  # conditions whose rows are remembered


class Snapshot:
    """The files that a state names, opened: it stays whole when a writer replaces the state.

    Args:
        folder: Where it is.
        state: What the database says.
        before: An older snapshot, whose open files are used again.

    Raises:
        UserError: If a file is missing, or cannot be what the state says.
    """

    def __init__(self, folder: Path, state: State, before: "Snapshot | None" = None) -> None:
        self.folder = folder
        self.state = state
        self.columns = ("id", *state.columns)
        opened = {segment.entry.vectors.name: segment for segment in before.segments} if before else {}
        self.segments: list[Segment] = []
        for entry in state.segments:
            same = opened.get(entry.vectors.name)
            if same is not None and (same.entry.vectors, same.entry.items) == (entry.vectors, entry.items):
                self.segments.append(same.updated(entry))
            else:
                self.segments.append(Segment(folder, entry, state.info.dim))
        self._matching: dict[object, Masks] = {}

    @cached_property
    def live(self) -> Masks:
        """The rows that are not removed."""
        return [segment.live for segment in self.segments]

    @cached_property
    def rows(self) -> int:
        """The number of rows that are not removed."""
        return sum(len(each.ids) if each.live is None else int(each.live.sum()) for each in self.segments)

    def allowed(self, where: Where | None) -> Masks:
        """Return the rows that are not removed and meet all conditions."""
        conditions = check_where(where, self.columns)
        if not conditions:
            return self.live
        key = tuple(conditions.items())
        if key not in self._matching:
            if len(self._matching) >= _KEPT:
                self._matching.clear()
            self._matching[key] = [matching_rows(segment, conditions) for segment in self.segments]
        return self._matching[key]

    def search(self, queries: Float32[np.ndarray, "queries dim"], k: int, masks: Masks) -> Neighbours:
        """Find the nearest of some rows."""
        return search_segments(self.segments, masks, queries, k, self.state.info.distance)

    def live_ids(self) -> Int64[np.ndarray, " live"]:
        """Return the ids of the rows that are not removed, ascending."""
        return np.concatenate([np.empty(0, np.int64), *(each.ids[each.live_places] for each in self.segments)])

    def next_ids(self, after: int, count: int, masks: Masks) -> Int64[np.ndarray, " some"]:
        """Return the ids of the first of some rows that follow an id."""
        found = np.empty(0, np.int64)
        for segment, mask in zip(self.segments, masks, strict=True):
            first = np.searchsorted(segment.ids, after, "right")
            ids = segment.ids[first:] if mask is None else segment.ids[first:][mask[first:]]
            found = np.concatenate([found, ids[: count - len(found)]])
        return found

    def vectors_of(self, ids: Int64[np.ndarray, " some"]) -> Float32[np.ndarray, "some dim"]:
        """Return the vectors of rows that the segments have."""
        vectors = np.zeros((len(ids), self.state.info.dim), np.float32)
        for segment in self.segments:
            places, own = segment.places(ids)
            vectors[own] = segment.vectors[places]
        return vectors

    def known_paths(self, paths: Sequence[str]) -> set[str]:
        """Return those of the paths that have rows."""
        wanted, known = pa.array(paths, pa.string()), set()
        for segment in self.segments:
            column = segment.read(["path"])["path"]
            there = is_in(column, value_set=wanted).to_numpy(zero_copy_only=False)
            there = there if segment.live is None else there & segment.live
            known.update(column.take(as_numbers(np.flatnonzero(there))).to_pylist())
        return known

    def count_labels(self) -> Counter[str | None]:
        """Return how many rows have each label."""
        counts: Counter[str | None] = Counter()
        for segment in self.segments:
            counts.update(segment.read(["label"], segment.live_places)["label"].to_pylist())
        return counts

    def items(self, ids: Int64[np.ndarray, " some"]) -> pa.Table:
        """Return the columns of some rows, in their order."""
        parts, order = [self._with_ids(np.empty(0, np.int64), pa.table({}))], [np.empty(0, np.int64)]
        for segment in self.segments:
            places, own = segment.places(ids)
            if len(own):
                parts.append(self._with_ids(ids[own], segment.read(None, places)))
                order.append(own)
        found = np.concatenate(order)
        if len(found) < len(ids):
            missing = np.delete(ids, found)[0]
            raise UserError(f"Row {missing} is not in {self.folder} any more: search again.")
        return pa.concat_tables(parts).take(as_numbers(np.argsort(found)))

    def _with_ids(self, ids: np.ndarray, table: pa.Table) -> pa.Table:
        """Add ids and all columns, which rows that were added before a column was there have empty."""
        cells = [
            table[name] if name in table.column_names else pa.nulls(len(ids), pa.string()) for name in self.columns[1:]
        ]
        return pa.table([as_numbers(ids), *cells], names=[*self.columns])

    def iterate(self, batch_size: int) -> Iterator[tuple[Float32[np.ndarray, "rows dim"], pa.Table]]:
        """Yield all rows that are not removed."""
        for segment in self.segments:
            places = segment.live_places
            # A table is read in parts much larger than a batch may be.
            for start in range(0, len(places), BLOCK):
                part = places[start : start + BLOCK]
                table = self._with_ids(segment.ids[part], segment.read(None, part))
                for first in range(0, len(part), batch_size):
                    some = part[first : first + batch_size]
                    yield segment.vectors[some], table[first : first + len(some)]


def matching_rows(segment: Segment, conditions: Mapping[str, Sequence[str | None]]) -> Bool[np.ndarray, " rows"]:
    """Return which rows of a segment are not removed and meet all conditions of `check_where`."""
    mask = np.ones(len(segment.ids), bool) if segment.live is None else segment.live
    return mask & matching(segment.read([*conditions]), conditions) if conditions else mask
