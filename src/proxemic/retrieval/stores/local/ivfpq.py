"""Lists of compressed vectors, by Faiss: a small index, of which the vectors found are compared again exactly."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from jaxtyping import Bool, Float32, Int64

from proxemic.extras import optional_dependency
from proxemic.retrieval.stores.local.engine import search_index
from proxemic.retrieval.stores.local.hnsw import Fetch

with optional_dependency("retrieval"):
    import faiss

_LEAST_ROWS = 1000  # there are 256 codes of a byte to learn
_PER_LIST = 64  # rows from which the centre of a list is learnt


class IvfPqIndex:
    """Faiss's `IndexIVFPQ`, which is built, taken apart into arrays and put together again.

    Args:
        index: It.
        settings: `lists`, into which rows are sorted, `code_bytes`, the length of a compressed vector, and `probes`,
            the lists in which a query is looked for.
    """

    names = ("lists", "code_bytes", "probes")
    effort = "probes"
    candidates, is_exact = 10, False  # to each neighbour asked for, and whether their distances are exact

    def __init__(self, index: faiss.IndexIVFPQ, settings: Mapping[str, int]) -> None:
        self.index = index
        self.settings = settings

    @staticmethod
    def check(settings: Mapping[str, int], rows: int, dim: int) -> dict[str, int]:
        """All settings but the effort of a search, unless that is given; `ValueError` where one is out of range."""
        if rows < _LEAST_ROWS:
            raise ValueError(f"ivfpq needs {_LEAST_ROWS:,} rows or more, but there are {rows:,}: take exact or hnsw.")
        divisors = [each for each in range(1, dim + 1) if dim % each == 0]
        # A byte for four numbers, or for as few more as divide dim.
        least_bytes = min(each for each in divisors if 4 * each >= dim)
        chosen = {"lists": max(1, min(2 * math.isqrt(rows), rows // 64)), "code_bytes": least_bytes, **settings}
        for name, most in (("lists", rows), ("probes", chosen["lists"])):
            if name in chosen and not 1 <= chosen[name] <= most:
                raise ValueError(f"{name} is {chosen[name]}, but must be from 1 to {most:,}.")
        if chosen["code_bytes"] not in divisors:
            allowed = ", ".join(map(str, divisors))
            raise ValueError(f"code_bytes is {chosen['code_bytes']}, but must divide {dim}: give one of {allowed}.")
        return chosen

    @classmethod
    def new(cls, some: Float32[np.ndarray, "some dim"], settings: Mapping[str, int]) -> Self:
        """An index that is to get rows, after learning from some of them."""
        made = cls._empty(some.shape[1], settings)
        made.index.cp.niter = 10
        made.index.cp.max_points_per_centroid = _PER_LIST
        made.index.train(some)
        return made

    @classmethod
    def _empty(cls, dim: int, settings: Mapping[str, int]) -> Self:
        quantizer = faiss.IndexFlatL2(dim)
        index = faiss.IndexIVFPQ(quantizer, dim, settings["lists"], settings["code_bytes"], 8)
        index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1  # Faiss warns on standard output
        return cls(index, settings)

    def add(self, vectors: Float32[np.ndarray, "rows dim"]) -> None:
        self.index.add(vectors)

    def arrays(self) -> dict[str, np.ndarray]:
        """Centres of lists and of codes, and the lists one after the other."""
        lists: Any = self.index.invlists
        sizes = np.array([lists.list_size(number) for number in range(lists.nlist)], np.int64)
        found = [
            (
                faiss.rev_swig_ptr(lists.get_codes(number), int(size) * lists.code_size),
                faiss.rev_swig_ptr(lists.get_ids(number), int(size)),
            )
            for number, size in enumerate(sizes)
            if size
        ]
        return {
            "centres": self.index.quantizer.reconstruct_n(0, lists.nlist),
            "codebook": faiss.vector_to_array(self.index.pq.centroids),
            "sizes": sizes,
            "codes": np.concatenate([codes for codes, _ in found]),
            "places": np.concatenate([places for _, places in found]),
        }

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, np.ndarray],
        settings: Mapping[str, int],
        there: Bool[np.ndarray, " rows"],
        _fetch: Fetch,
        dim: int,
    ) -> Self:
        """Put it together; `ValueError` where arrays would lead Faiss out of its memory."""
        rows = len(there)
        cls.check(settings, rows, dim)
        lists, length = settings["lists"], settings["code_bytes"]
        shapes = {name: (array.dtype.str, array.shape) for name, array in arrays.items()}
        right = {
            "centres": ("<f4", (lists, dim)),
            "codebook": ("<f4", (256 * dim,)),
            "sizes": ("<i8", (lists,)),
            "codes": ("|u1", (rows * length,)),
            "places": ("<i8", (rows,)),
        }
        if shapes != right:
            raise ValueError(f"its arrays are {shapes}")
        sizes, places = arrays["sizes"], arrays["places"]
        # One by one: their sum may be too large for an integer.
        if not 0 <= sizes.min() <= sizes.max() <= rows or sizes.sum() != rows:
            raise ValueError("its lists have other sizes")
        if not 0 <= places.min() <= places.max() < rows:
            raise ValueError("its places are out of range")
        if not (np.isfinite(arrays["centres"]).all() and np.isfinite(arrays["codebook"]).all()):
            raise ValueError("its centres are not finite")
        made = cls._empty(dim, settings)
        index: Any = made.index
        index.quantizer.add(np.ascontiguousarray(arrays["centres"]))
        faiss.copy_array_to_vector(np.ascontiguousarray(arrays["codebook"]), index.pq.centroids)
        index.is_trained = True
        index.precompute_table()
        first = 0
        for number, size in enumerate(sizes.tolist()):
            codes = np.ascontiguousarray(arrays["codes"][first * length : (first + size) * length])
            of_list = np.ascontiguousarray(places[first : first + size])
            index.invlists.add_entries(number, size, faiss.swig_ptr(of_list), faiss.swig_ptr(codes))
            first += size
        index.ntotal = rows
        return made

    def efforts(self) -> Sequence[int]:
        """Of a search, from the least that is of use to the most."""
        return [2**power for power in range(self.settings["lists"].bit_length())]

    @property
    def most_effort(self) -> int:
        """From where on more is of no use."""
        return self.settings["lists"]

    def compared(self, k: int, effort: int) -> int:
        """About as many vectors as a query takes the time of to be compared with."""
        return 20 * k + self.index.ntotal * effort // self.settings["lists"] // 4

    def search(
        self,
        queries: Float32[np.ndarray, "queries dim"],
        k: int,
        effort: int,
        allowed: Bool[np.ndarray, " rows"] | None,
    ) -> tuple[Float32[np.ndarray, "queries k"], Int64[np.ndarray, "queries k"]]:
        """Squared distances and places, of -1 where fewer are found."""
        return search_index(self.index, queries, k, allowed, "SearchParametersIVF", nprobe=effort)
