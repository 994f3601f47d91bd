"""Make Arrow arrays of texts and numbers without `pyarrow.array`, whose import of pandas takes half of a search."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from proxemic.extras import optional_dependency

with optional_dependency("train"):
    import pyarrow as pa


def as_numbers(numbers: Int64[np.ndarray, " some"]) -> pa.Array:
    """Convert to an Arrow array, which shares the memory.

    >>> as_numbers(np.arange(2)).to_pylist()
    [0, 1]
    """
    content = pa.py_buffer(np.ascontiguousarray(numbers, np.int64))
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, content])


def as_texts(texts: Sequence[str | None]) -> pa.Array:
    """Convert to an Arrow array of strings, in which None is null.

    Raises:
        UnicodeEncodeError: If a text has bytes that are not UTF-8.

    >>> as_texts(["owl", None, ""]).to_pylist()
    ['owl', None, '']
    """
    encoded = [b"" if text is None else text.encode() for text in texts]
    ends = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([*map(len, encoded)], out=ends[1:])
    is_there = np.packbits(np.array([text is not None for text in texts], bool), bitorder="little")
    buffers = [*map(pa.py_buffer, (is_there, ends, b"".join(encoded)))]
    return pa.Array.from_buffers(pa.large_string(), len(encoded), buffers).cast(pa.string())
