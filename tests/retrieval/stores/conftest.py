"""The stores that every test of `test_store.py` runs on, and a gallery in each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxemic.retrieval.stores import GalleryInfo, Store, create_store

STORES = ("local",)
DIM = 8


@pytest.fixture(params=STORES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where there is no gallery yet."""
    match request.param:
        case "local":
            return str(tmp_path / "gallery")
    raise AssertionError(request.param)


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    """An empty gallery, searched by cosine."""
    store = create_store(address, GalleryInfo(DIM, "cosine", "checksum", "model"))
    yield store
    store.close()
