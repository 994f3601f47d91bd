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
from proxemic.retrieval.items import matching
from proxemic.retrieval.stores.local.arrays import check_content, check_size, map_arrays
from proxemic.retrieval.stores.local.exact import BLOCK, search_shards
from proxemic.retrieval.stores.local.manifest import Damaged, Manifest
from proxemic.retrieval.stores.local.shards import OpenShard, as_numbers
from proxemic.retrieval.stores.store import Neighbours

Masks = Sequence[Bool[np.ndarray, " rows"] | None]
"""Of each shard, the rows that are meant; None is all."""

_KEPT = 16  # conditions whose rows are remembered


class Snapshot:
    """What a manifest names, opened: it stays whole when a writer replaces it.

    Args:
        folder: Where it is.
        manifest: What is to be there.

    Raises:
        UserError: If a file is missing, or is not what the manifest says; of contents, only small ones are read.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.columns = ("id", *manifest.columns)
        self.shards = [OpenShard(folder, shard, manifest.info.dim) for shard in manifest.shards]
        self.removed = self._read_removed()
        self._matching: dict[object, Masks] = {}

    def _read_removed(self) -> Int64[np.ndarray, " removed"]:
        file = self.manifest.removed
        if file is None:
            return np.empty(0, np.int64)
        path = check_size(self.folder, file)
        check_content(path, file)
        arrays, _ = map_arrays(path)
        ids = arrays.get("ids", np.empty(0))
        if ids.dtype != np.int64 or ids.shape != (self.manifest.removed_rows,) or (np.diff(ids) <= 0).any():
            raise Damaged(path, "it does not have the ids of the removed rows")
        return ids

    @cached_property
    def live(self) -> Masks:
        """The rows that are not removed."""
        return [self._live(shard) for shard in self.shards]

    def _live(self, shard: OpenShard) -> Bool[np.ndarray, " rows"] | None:
        first, last = np.searchsorted(self.removed, [shard.shard.first, shard.shard.last + 1])
        if first == last:
            return None
        mask = np.ones(len(shard.ids), bool)
        mask[shard.places(self.removed[first:last])] = False
        return mask

    def allowed(self, conditions: Mapping[str, tuple[str | None, ...]]) -> Masks:
        """The rows that are not removed and meet all conditions."""
        if not conditions:
            return self.live
        key = tuple(conditions.items())
        if key not in self._matching:
            if len(self._matching) >= _KEPT:
                self._matching.clear()
            self._matching[key] = [
                _both(matching(shard.read([*conditions]), conditions), live)
                for shard, live in zip(self.shards, self.live, strict=True)
            ]
        return self._matching[key]

    def search(self, queries: Float32[np.ndarray, "queries dim"], k: int, masks: Masks) -> Neighbours:
        """The nearest of some rows."""
        return search_shards(self.shards, masks, queries, k, self.manifest.info.distance)

    @cached_property
    def ids(self) -> Int64[np.ndarray, " rows"]:
        """Of all rows in the shards, removed ones too."""
        return np.concatenate([np.empty(0, np.int64), *(shard.ids for shard in self.shards)])

    def live_ids(self) -> Int64[np.ndarray, " live"]:
        """Of the rows that are not removed, ascending."""
        parts = [
            shard.ids if mask is None else shard.ids[mask] for shard, mask in zip(self.shards, self.live, strict=True)
        ]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def next_ids(self, after: int, count: int, masks: Masks) -> Int64[np.ndarray, " some"]:
        """The first of some rows that follow an id."""
        found = np.empty(0, np.int64)
        for shard, mask in zip(self.shards, masks, strict=True):
            first = np.searchsorted(shard.ids, after, "right")
            ids = shard.ids[first:] if mask is None else shard.ids[first:][mask[first:]]
            found = np.concatenate([found, ids[: count - len(found)]])
        return found

    def there(self, ids: Int64[np.ndarray, " asked"]) -> Int64[np.ndarray, " rows"]:
        """Those of some ids whose rows are there, ascending."""
        parts = [shard.ids[shard.places(ids)] for shard in self.shards]
        return np.setdiff1d(np.concatenate([np.empty(0, np.int64), *parts]), self.removed)

    def vectors_of(self, ids: Int64[np.ndarray, " some"]) -> Float32[np.ndarray, "some dim"]:
        """The vectors of rows that are in the shards."""
        vectors = np.zeros((len(ids), self.manifest.info.dim), np.float32)
        for shard in self.shards:
            asked = (ids >= shard.shard.first) & (ids <= shard.shard.last)
            if asked.any():
                vectors[asked] = shard.vectors[np.searchsorted(shard.ids, ids[asked])]
        return vectors

    def known_paths(self, paths: Sequence[str]) -> set[str]:
        """Those of the paths that there are rows of."""
        wanted, known = pa.array(paths, pa.string()), set()
        for shard, live in zip(self.shards, self.live, strict=True):
            column = shard.read(["path"])["path"]
            there = _both(is_in(column, value_set=wanted).to_numpy(), live)
            known.update(column.filter(pa.array(there)).to_pylist())
        return known

    def count_labels(self) -> Counter[str | None]:
        """How many rows have each label."""
        counts: Counter[str | None] = Counter()
        for shard, live in zip(self.shards, self.live, strict=True):
            column = shard.read(["label"])["label"]
            counts.update((column if live is None else column.filter(pa.array(live))).to_pylist())
        return counts

    def items(self, ids: Int64[np.ndarray, " some"]) -> pa.Table:
        """What is known of some rows, in their order."""
        parts, order = [self.whole(pa.table({"id": as_numbers(np.empty(0, np.int64))}))], [np.empty(0, np.int64)]
        for shard in self.shards:
            asked = np.flatnonzero((ids >= shard.shard.first) & (ids <= shard.shard.last))
            there = asked[np.isin(ids[asked], shard.ids)]
            if len(there):
                parts.append(self.whole(shard.read(None, np.searchsorted(shard.ids, ids[there]))))
                order.append(there)
        found = np.concatenate(order)
        if len(found) < len(ids):
            missing = np.delete(ids, found)[0]
            raise UserError(f"Row {missing} is not in {self.folder} any more: search again.")
        return pa.concat_tables(parts).take(as_numbers(np.argsort(found)))

    def whole(self, table: pa.Table) -> pa.Table:
        """With all columns, of which rows that were added before have nothing."""
        for name in self.columns:
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(len(table), pa.string()))
        return table.select(list(self.columns))

    def iterate(self, batch_size: int) -> Iterator[tuple[Float32[np.ndarray, "rows dim"], pa.Table]]:
        """All rows that are not removed."""
        for shard, live in zip(self.shards, self.live, strict=True):
            kept = np.arange(len(shard.ids)) if live is None else np.flatnonzero(live)
            # A table is read in parts much larger than a batch may be.
            for start in range(0, len(kept), BLOCK):
                table = self.whole(shard.read(None, kept[start : start + BLOCK]))
                for first in range(0, len(table), batch_size):
                    places = kept[start + first : start + min(first + batch_size, len(table))]
                    yield shard.vectors[places], table[first : first + len(places)]


def _both(one: Bool[np.ndarray, " rows"], other: Bool[np.ndarray, " rows"] | None) -> Bool[np.ndarray, " rows"]:
    return one if other is None else one & other
