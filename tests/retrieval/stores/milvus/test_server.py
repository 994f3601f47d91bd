import gc
from pathlib import Path
from typing import Any

import pytest

from ports import free_port
from proxemic.errors import UserError
from proxemic.retrieval.stores import GalleryInfo, create_store, open_store
from proxemic.retrieval.stores.milvus.server import _LEFT, _OPEN, Address

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("address", "shown", "uri", "database"),
    [
        ("milvus://host/shop", "milvus://host/shop", "http://host:19530", ""),
        (f"milvus://me:{SECRET}%40@host:1/shop", "milvus://me:***@host:1/shop", "http://host:1", ""),
        (
            f"milvus://me:{SECRET}@h/db/shop?secure=true",
            "milvus://me:***@h/db/shop?secure=true",
            "https://h:19530",
            "db",
        ),
        ("milvus://[::1]:2/shop", "milvus://[::1]:2/shop", "http://[::1]:2", ""),
    ],
)
def test_an_address_is_read_and_shown_without_its_password(address: str, shown: str, uri: str, database: str) -> None:
    read = Address.parse(address)
    assert (read.shown, read.gallery, read.uri, read.database) == (shown, "shop", uri, database)
    assert read.token in ("", f"me:{SECRET}", f"me:{SECRET}@")
    assert SECRET not in repr(read)


@pytest.mark.parametrize(
    "address",
    [
        f"milvus://me:{SECRET}@host",
        f"milvus://me:{SECRET}@host/a/b/c",
        f"milvus://me:{SECRET}/x@host/shop",
        f"MILVUS://me:1/{SECRET}@host/shop",
        f"milvus://host/shop?token={SECRET}",
        f"milvus:me:{SECRET}@host/shop",
        "milvus://host:99999/shop",
        f"milvus://me:{SECRET}?x@host/shop",
        f"milvus://me:{SECRET}#x@host/shop",
        f"milvus://me:{SECRET}@host:port/shop",
        f"milvus://me:{SECRET}@host/shop?password={SECRET}",
        f"milvus://me:{SECRET}@127.0.0.1:PORT/shop",
        "milvus://host/shop%20two",
        "milvus://host/2shops",
        "milvus://host/shop'; drop",
        "milvus://host/größe",
        "milvus://host/proxemic_galleries",
        "milvus-lite:",
        "milvus-lite:nowhere/at/all",
    ],
)
def test_a_bad_address_is_one_sentence_without_the_password(address: str) -> None:
    address = address.replace("PORT", str(free_port()))  # here, as all workers of pytest must name their tests alike
    for call in (open_store, lambda address: create_store(address, GalleryInfo(2))):
        with pytest.raises(UserError) as raised:
            call(address)
        assert SECRET not in str(raised.value)
        assert "\n" not in str(raised.value)


def test_a_file_that_is_no_gallery_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    for call in (open_store, lambda address: create_store(address, GalleryInfo(2))):
        with pytest.raises(UserError, match="a folder of something else"):
            call(f"milvus-lite:{tmp_path / 'photos'}")
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["a.jpg"]
    with pytest.raises(UserError, match="does not exist"):
        open_store(f"milvus-lite:{tmp_path / 'nothing'}")
    assert not (tmp_path / "nothing").exists()


def test_a_file_of_milvus_lite_is_of_one_process(tmp_path: Path) -> None:
    fcntl: Any = pytest.importorskip("fcntl", reason="Milvus Lite has no Windows")
    address, lock = f"milvus-lite:{tmp_path / 'shop'}", tmp_path / "shop" / "LOCK"
    store = create_store(address, GalleryInfo(2))
    other = open_store(address)
    store.close()
    store.close()
    assert len(other) == 0
    other.close()
    with lock.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as another process would, and fails while this one has it
        with pytest.raises(UserError, match="another process has it open"):
            open_store(address)
    again = open_store(address)
    assert len(again) == 0
    again.close()


def test_a_store_that_nobody_closed_keeps_no_file_for_ever(tmp_path: Path) -> None:
    address = f"milvus-lite:{tmp_path / 'shop'}"
    create_store(address, GalleryInfo(2))
    gc.collect()
    assert _LEFT
    create_store(f"milvus-lite:{tmp_path / 'other'}", GalleryInfo(2)).close()
    assert tmp_path / "shop" not in +_OPEN
    store = open_store(address)
    assert len(store) == 0
    store.close()
    store.close()
    assert tmp_path / "shop" not in +_OPEN
