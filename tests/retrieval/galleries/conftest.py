"""The stores that every test of `test_store.py` runs on, and a gallery in each."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from proxemic.retrieval.galleries.stores import GalleryInfo, Store, create_store

STORES = ("local", "postgres", "milvus")
DIM = 8
_NUMBERS = count()


@pytest.fixture(params=STORES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address without a gallery."""
    match request.param:
        case "local":
            return str(tmp_path / "gallery")
        case "postgres":
            return request.getfixturevalue("postgres").address(f"gallery {next(_NUMBERS)}")
        case "milvus":
            pytest.importorskip("milvus_lite", reason="Milvus Lite has no Windows")
            return f"milvus-lite:{tmp_path / 'gallery'}"
    raise AssertionError(request.param)


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    """An empty gallery, searched by cosine."""
    store = create_store(address, GalleryInfo(DIM, "cosine", "checksum", "model"))
    yield store
    store.close()
