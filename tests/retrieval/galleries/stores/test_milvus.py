import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galleries import random_vectors, some_items
from proxemic.errors import UserError
from proxemic.retrieval.galleries.stores import GalleryInfo, create_store, open_store
from proxemic.retrieval.galleries.stores import milvus as module
from proxemic.retrieval.galleries.stores.milvus_server import _LEFT, _OPEN, Address
from proxemic.retrieval.galleries.stores.store import PartlyWritten
from servers import Milvus

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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Milvus]:
    server = Milvus(tmp_path_factory.mktemp("milvus") / "data")
    yield server
    server.kill()


def test_galleries_of_a_server_are_each_their_own(server: Milvus) -> None:
    addresses = [server.address(name) for name in ("one", "two", "ONE")]
    stores = [create_store(address, GalleryInfo(2 + place)) for place, address in enumerate(addresses)]
    for place, store in enumerate(stores):
        store.add(random_vectors(place + 1, 2 + place), some_items(place + 1))
    with pytest.raises(UserError, match="holds a gallery"):
        create_store(addresses[0], GalleryInfo(2))
    with pytest.raises(UserError, match="holds no gallery"):
        open_store(server.address("three"))
    for place, (store, address) in enumerate(zip(stores, addresses, strict=True)):
        other = open_store(address)
        assert (len(other), other.info.dim) == (place + 1, place + 2)
        other.close()
        store.close()


def test_what_milvus_does_not_take_is_refused(server: Milvus) -> None:
    with pytest.raises(UserError, match=r"32,769 dimensions, but Milvus keeps up to 32,768"):
        create_store(server.address("long"), GalleryInfo(32_769))
    store = create_store(server.address("small"), GalleryInfo(2))
    with pytest.raises(ValueError, match=r"'ivfpq', but milvus://.* has one of exact, hnsw"):
        store.build_index("ivfpq")
    with pytest.raises(ValueError, match="ef_search is 0"):
        store.build_index("hnsw", ef_search=0)
    with pytest.raises(PartlyWritten, match="refuses this") as raised:
        store.add(random_vectors(1, 2), some_items(1, labels=["x" * 70_000]))
    assert raised.value.rows == 0
    store.close()


def test_k_beyond_what_milvus_finds(server: Milvus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FOUND", 4)
    store = create_store(server.address("beyond"), GalleryInfo(2))
    store.add(random_vectors(4, 2), some_items(4))
    assert (store.search(random_vectors(1, 2), 9).ids >= 0).sum() == 4
    store.add(random_vectors(1, 2), some_items(1, 4))
    with pytest.raises(ValueError, match="k is 9, but Milvus finds up to 4 rows"):
        store.search(random_vectors(1, 2), 9)
    assert store.search(random_vectors(1, 2), 4).ids.shape == (1, 4)
    store.close()


def test_damage_is_found(server: Milvus) -> None:
    store: Any = create_store(server.address("damage"), GalleryInfo(2))
    store.add(random_vectors(3, 2), some_items(3, shop=["a", "b", None]))
    row = {"path": "/1.jpg", "label": "x", "columns": {}, "cells": [], "vector": [3.0, 4.0]}
    store._client.upsert("damage", [row | {"key": module._digest("/1.jpg"), "id": 0}, row | {"key": "k", "id": 9}])
    assert sorted(problem.partition(" has ")[2] for problem in store.verify()) == [
        "1 rows with ids that come twice.",
        "1 rows with ids that were not given yet.",
        "1 rows with keys of other values.",
        "1 rows with vectors not of length 1.",
    ]
    store.close()


def test_an_index_that_was_not_finished_is_made_when_the_gallery_is_opened(server: Milvus) -> None:
    store: Any = create_store(server.address("unfinished"), GalleryInfo(4))
    store.add(random_vectors(9, 4), some_items(9))

    class KilledError(Exception):
        pass

    def killed() -> None:
        raise KilledError

    store._load = killed
    with pytest.raises(KilledError):
        store.build_index("hnsw", m=4)
    store.close()
    store = open_store(server.address("unfinished"))
    assert store.index == {"kind": "hnsw", "rows": 9, "m": 4, "ef_construction": 128, "ef_search": 100}
    assert store._client.describe_index("unfinished", "vector")["index_type"] == "HNSW"
    assert store.search(random_vectors(9, 4), 1).ids.tolist() == [[number] for number in range(9)]
    store.close()


def test_a_reader_does_not_keep_an_index_from_being_made(server: Milvus, monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = create_store(server.address("read"), GalleryInfo(4))
    store.add(random_vectors(9, 4), some_items(9))
    release, released = store._client.release_collection, count(1)

    def disturbed(name: str) -> None:
        release(name)
        if next(released) < 3:
            store._client.load_collection(name)

    monkeypatch.setattr(store._client, "release_collection", disturbed)
    store.build_index("hnsw")
    assert next(released) == 4
    assert store.search(random_vectors(9, 4), 1).ids.tolist() == [[number] for number in range(9)]
    monkeypatch.undo()
    store._client.release_collection("read")
    assert store.search(random_vectors(9, 4), 1).ids.tolist() == [[number] for number in range(9)]
    store.close()


def test_each_of_several_writers_gets_ids_of_its_own(server: Milvus) -> None:
    address = server.address("writers")
    reader = create_store(address, GalleryInfo(2))

    def write(writer: int) -> None:
        store = open_store(address)
        store.add_roots([f"/photos {writer}"])
        for part in range(5):
            first = 100 * writer + 3 * part
            store.add(random_vectors(3, 2), some_items(3, first, **{f"column {writer} {part}": ["x"] * 3}))
        store.close()

    with ThreadPoolExecutor(3) as pool:
        assert [*pool.map(write, range(3))] == [None] * 3
    rows = [row for _, table in reader.iterate() for row in table.to_pylist()]
    assert len({row["path"] for row in rows}) == len({row["id"] for row in rows}) == len(rows) == 45
    assert sorted(reader.columns[3:]) == [f"column {writer} {part}" for writer in range(3) for part in range(5)]
    assert {*reader.roots} == {f"/photos {writer}" for writer in range(3)}
    assert reader.verify() == []
    reader.close()


def test_labels_are_changed_in_place(server: Milvus) -> None:
    store = create_store(server.address("labels"), GalleryInfo(2, features=2))
    vectors = random_vectors(4, 2)
    store.add(vectors, some_items(4, shop=["a", "b", None, "d"]), vectors)
    assert store.set_labels({"/1.jpg": "new", "/2.jpg": None, "/0.jpg": "class 0", "/9.jpg": "x"}) == 2
    assert store.remove({"path": "/3.jpg"}) == 1
    found, table = store.rows(np.arange(9))
    assert table.to_pylist() == [
        {"id": 0, "path": "/0.jpg", "label": "class 0", "shop": "a"},
        {"id": 1, "path": "/1.jpg", "label": "new", "shop": "b"},
        {"id": 2, "path": "/2.jpg", "label": None, "shop": None},
    ]
    np.testing.assert_array_equal(found, vectors[:3])
    np.testing.assert_array_equal(store.features(np.arange(3)), vectors[:3])
    assert store.next_ids(where={"label": ["new", None]}).tolist() == [1, 2]
    assert store.verify() == []
    store.close()


def test_a_gallery_of_an_older_version_is_refused(server: Milvus) -> None:
    store: Any = create_store(server.address("older"), GalleryInfo(2))
    store._client.upsert("proxemic_galleries", [{"name": "older", "state": {"next_id": 3}, "vector": [0.0, 0.0]}])
    store.close()
    with pytest.raises(UserError, match=r"older is not a gallery that can be read: .*create it again"):
        open_store(server.address("older"))


def test_a_server_that_is_killed_in_an_addition(server: Milvus, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, items = random_vectors(100, 8), some_items(100)
    store = create_store(server.address("killed"), GalleryInfo(8))
    monkeypatch.setattr(module, "BATCH", 10 * (4 * 8 + 512))
    make, made = module._row, count(1)

    def row(*parts: Any) -> dict[str, Any]:
        if next(made) == 36:
            server.kill()
        return make(*parts)

    monkeypatch.setattr(module, "_row", row)
    with pytest.raises(PartlyWritten, match="cannot be reached") as raised:
        store.add(vectors, items)
    assert raised.value.rows == 30
    with pytest.raises(UserError, match="cannot be reached"):
        len(store)
    server.start()
    # A process that has failed to connect waits longer each time before it tries again.
    for _ in range(1200):
        try:
            other = open_store(server.address("killed"))
            break
        except UserError:
            time.sleep(0.1)
    else:
        raise AssertionError("the server does not answer")
    for item in (store, other):
        known = item.known_paths(items["path"].to_pylist())
        assert known == {f"/{number}.jpg" for number in range(30)}
    other.close()
    new = np.arange(30, 100)
    assert store.add(vectors[new], items.take(new)).tolist() == [*range(100, 170)]  # skips those of the broken addition
    parts = [*store.iterate(16)]
    assert [path for _, table in parts for path in table["path"].to_pylist()] == [f"/{n}.jpg" for n in range(100)]
    np.testing.assert_array_equal(np.concatenate([part for part, _ in parts]), vectors)
    assert store.verify() == []
    store.close()
