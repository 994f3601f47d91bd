"""Packs of faces as pickles, and the NumPy arrays that they may hold."""

import pickle
from pathlib import Path

import numpy as np

IMAGES = [b"a", b"b", b"c", b"d"]


def pack(path: Path, content: object, protocol: int = 2) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol))
    return path


def array(content: bytes, *, writeable: bool = True, step: int = 1) -> np.ndarray:
    """The bytes as NumPy has them, perhaps as every second one of others."""
    found = np.zeros(step * len(content), np.uint8)[::step]
    found[:] = np.frombuffer(content, np.uint8)
    found.flags.writeable = writeable
    return found


# As Python 2.7 writes numpy.dtype("u1"), and an array of no items before it is given its state.
U1 = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
EMPTY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
