"""Searching an index of Faiss, whatever else the process has imported."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int64

from proxemic.extras import optional_dependency

with optional_dependency("retrieval"):
    import faiss


def search_index(
    index: faiss.Index,
    queries: Float32[np.ndarray, "queries dim"],
    k: int,
    allowed: Bool[np.ndarray, " rows"] | None,
    parameters: str,
    **settings: int,
) -> tuple[Float32[np.ndarray, "queries k"], Int64[np.ndarray, "queries k"]]:
    """Squared distances and places of the nearest rows, of all or those allowed; places of -1 where fewer are found."""
    engine: Any = faiss  # whose stubs lack much
    bits = None if allowed is None else np.packbits(allowed, bitorder="little")
    chosen = {} if bits is None else {"sel": engine.IDSelectorBitmap(bits)}
    queries = np.ascontiguousarray(queries, np.float32)
    distances, places = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
    # Not by `search`: faiss.contrib.torch_utils, which pytorch-metric-learning imports, replaces it by one that takes
    # no parameters.
    arrays = engine.swig_ptr(queries), k, engine.swig_ptr(distances), engine.swig_ptr(places)
    engine.Index.search_c(index, len(queries), *arrays, getattr(engine, parameters)(**settings, **chosen))
    return distances, places
