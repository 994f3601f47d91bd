import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import pytest

from galleries import clustered_vectors, random_vectors, some_items
from ports import free_port
from proxemic.data.rows import Rows
from proxemic.errors import UserError
from proxemic.retrieval import Gallery
from proxemic.retrieval.galleries import adding
from proxemic.retrieval.galleries.items import make_items
from proxemic.retrieval.galleries.stores import GalleryInfo, Store, create_store, open_store
from proxemic.retrieval.galleries.stores import postgres as module
from proxemic.retrieval.galleries.stores.postgres_server import Address
from servers import Postgres

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("address", "shown", "gallery"),
    [
        (f"postgresql://me:{SECRET}@host:5433/db/shop", "postgresql://me:***@host:5433/db/shop", "shop"),
        (f"postgres://me:{SECRET}%40%2F@host/db/a%2Fb%20c", "postgres://me:***@host/db/a%2Fb%20c", "a/b c"),
        ("postgresql:///db/shop", "postgresql:///db/shop", "shop"),
        ("postgresql://me@/db/shop?host=/run/pg", "postgresql://me@/db/shop?host=/run/pg", "shop"),
        ("postgresql:///db/shop?host=/run/pg", "postgresql:///db/shop?host=/run/pg", "shop"),
        (
            f"postgresql://a:1,b:2/db/shop?user=me&password={SECRET}&sslmode=require",
            "postgresql://a:1,b:2/db/shop?user=me&password=***&sslmode=require",
            "shop",
        ),
    ],
)
def test_an_address_is_read_and_shown_without_its_password(address: str, shown: str, gallery: str) -> None:
    read = Address.parse(address)
    assert (read.shown, read.gallery) == (shown, gallery)
    assert "dbname=db" in read.conninfo
    assert "connect_timeout=5" in read.conninfo
    assert (SECRET in read.conninfo) == (SECRET in address)
    assert SECRET not in repr(read)


def test_a_server_that_is_not_there_is_one_sentence() -> None:
    address = f"postgresql://me:{SECRET}@127.0.0.1:{free_port()}/db/shop"
    for call in (open_store, lambda address: create_store(address, GalleryInfo(2))):
        with pytest.raises(UserError, match=r"cannot be reached: .*refused.* Start the server") as raised:
            call(address)
        assert SECRET not in str(raised.value)
        assert "\n" not in str(raised.value)


def test_a_wrong_database_and_a_wrong_user_are_named(postgres: Postgres) -> None:
    with pytest.raises(UserError, match=r'database "nowhere" does not exist'):
        open_store(postgres.address("shop", database="nowhere"))
    with pytest.raises(UserError, match=r'role "nobody" does not exist'):
        open_store(postgres.address("shop", user="nobody"))


def test_what_an_administrator_must_allow_is_said(postgres: Postgres) -> None:
    postgres.execute("CREATE ROLE guest LOGIN", "CREATE DATABASE rights")
    theirs, ours = (postgres.address("shop", user=user, database="rights") for user in ("guest", "postgres"))
    with pytest.raises(UserError, match=r"have an administrator run CREATE EXTENSION vector"):
        create_store(theirs, GalleryInfo(2))
    with pytest.raises(UserError, match=r"have an administrator run CREATE EXTENSION vector"):
        open_store(theirs)
    postgres.execute("CREATE EXTENSION vector", database="rights")
    with pytest.raises(UserError, match=r"holds no gallery"):
        open_store(theirs)
    with pytest.raises(UserError, match=r"refuses this to guest \(permission denied .*have an administrator grant"):
        create_store(theirs, GalleryInfo(2))
    create_store(ours, GalleryInfo(2)).close()
    with pytest.raises(UserError, match=r"refuses this to guest"):
        open_store(theirs)
    postgres.execute("GRANT SELECT ON proxemic_galleries, proxemic_gallery_1 TO guest", database="rights")
    reader = open_store(theirs)
    assert len(reader) == 0
    with pytest.raises(UserError, match=r"refuses this to guest \(permission denied for table"):
        reader.remove({"label": "x"})
    reader.close()


def test_a_dropped_connection_is_made_again(postgres: Postgres) -> None:
    store = create_store(postgres.address("dropped"), GalleryInfo(2))
    for _ in range(2):
        # All connections but the administrator's.
        postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename IS NOT NULL AND pid <> "
            "pg_backend_pid()"
        )
        assert len(store) == 0
    store.close()
    assert len(store) == 0
    store.close()


HOSTILE = [
    "x'; DROP TABLE proxemic_galleries; --",
    'x"; DROP TABLE proxemic_galleries; --',
    "%s {} $1",
    "a/b",
    "Zoë 猫",
]


def test_names_of_galleries_are_parameters(postgres: Postgres) -> None:
    stores = [create_store(postgres.address(name), GalleryInfo(2)) for name in HOSTILE]
    for number, store in enumerate(stores):
        assert store.add(random_vectors(number + 1, 2), some_items(number + 1)).tolist() == [*range(number + 1)]
    for number, (name, store) in enumerate(zip(HOSTILE, stores, strict=True)):
        with pytest.raises(UserError, match="holds a gallery"):
            create_store(postgres.address(name), GalleryInfo(2))
        other = open_store(postgres.address(name))
        assert len(other) == number + 1
        for value in (other, store):
            value.close()
    names = {name for (name,) in postgres.execute("SELECT name FROM proxemic_galleries")}
    assert {*HOSTILE} <= names
    tables = [name for (name,) in postgres.execute("SELECT relname FROM pg_class WHERE relname LIKE 'proxemic%'")]
    assert all(name.replace("_", "").replace("proxemic", "").replace("gallery", "").isascii() for name in tables)


def test_a_text_that_postgresql_does_not_keep_is_refused_whole(postgres: Postgres) -> None:
    store = create_store(postgres.address("texts"), GalleryInfo(2))
    for items in (
        make_items(Rows.of(path=["a", "b"], label=["ok", "x\0y"])),
        make_items(Rows.of(path=["a", "b"], c=["ok", "x\0y"])),
    ):
        with pytest.raises(UserError, match=r"0x00|NUL|u0000"):
            store.add(random_vectors(2, 2), items)
    assert len(store) == 0
    store.close()


def test_lengths_that_pgvector_does_not_take(postgres: Postgres) -> None:
    with pytest.raises(UserError, match="16,001 dimensions, but pgvector keeps up to 16,000"):
        create_store(postgres.address("long"), GalleryInfo(16_001))
    store = create_store(postgres.address("long"), GalleryInfo(2001))
    vectors = random_vectors(3, 2001)
    store.add(vectors, some_items(3))
    assert store.search(vectors[1:2], 1).ids.tolist() == [[1]]
    with pytest.raises(UserError, match=r"2,001 dimensions, but pgvector makes an index of up to 2,000"):
        store.build_index("hnsw")
    store.close()


def test_the_index_is_used(postgres: Postgres) -> None:
    query = "SELECT count(*), sum(idx_scan) FROM pg_stat_user_indexes WHERE indexrelname LIKE '%embedding%'"
    [(others, _)] = postgres.execute(query)  # of other galleries
    store = create_store(postgres.address("index"), GalleryInfo(16))
    vectors = clustered_vectors(3000, 16)
    store.add(vectors, some_items(3000))
    store.build_index("hnsw", m=8, ef_search=60)
    store.build_index("hnsw", ef_construction=64)
    assert store.index == {"kind": "hnsw", "rows": 3000, "m": 16, "ef_construction": 64, "ef_search": 100}
    for settings, message in (({"m": 1}, "m is 1, but"), ({"nlist": 3}, "nlist is not a setting of hnsw")):
        with pytest.raises(ValueError, match=message):
            store.build_index("hnsw", **settings)
    store.close()
    [(count, before)] = postgres.execute(query)
    assert count == others + 1
    # A table as small as this is gone through faster, and that is what the server would choose.
    postgres.execute("ALTER ROLE postgres SET enable_seqscan = off")
    try:
        for where in (None, {"label": "class 1"}):
            assert store.search(vectors[1:10:3], 3, where).ids[:, 0].tolist() == [1, 4, 7]
        assert (store.search(vectors[:1], 1100).ids >= 0).all()
        store.close()
    finally:
        postgres.execute("ALTER ROLE postgres RESET enable_seqscan")
    for _ in range(100):  # it counts when the connection has ended, some time
        [(_, scans)] = postgres.execute(query)
        if scans > before:
            return
        time.sleep(0.1)
    raise AssertionError("the index was not used")


def test_writers_at_once_all_succeed(postgres: Postgres) -> None:
    address = postgres.address("writers")
    reader, vectors = create_store(address, GalleryInfo(8)), random_vectors(400, 8)

    def write(writer: int) -> None:
        # Each writer shares half of its rows with the next.
        store = open_store(address)
        rows = (np.arange(200) + 100 * writer) % 400
        parts = rows.reshape(10, 20)
        for part in parts:
            store.add(vectors[part], some_items(400).take(part))
        store.close()

    def read() -> int:
        return len(reader.search(vectors[:1], 5).ids)

    with ThreadPoolExecutor(5) as pool:
        writing = [pool.submit(write, writer) for writer in range(4)]
        while not all(item.done() for item in writing):
            assert read() == 1
        assert [item.result() for item in writing] == [None] * 4
    paths = [path for _, table in reader.iterate() for path in table["path"].to_pylist()]
    assert sorted(paths) == sorted(f"/{n}.jpg" for n in range(400))
    assert reader.verify() == []
    reader.close()


def test_damage_is_found(postgres: Postgres) -> None:
    store = create_store(postgres.address("damage"), GalleryInfo(2))
    store.add(random_vectors(3, 2), some_items(3, shop=["a", "b", None]))
    number = f"proxemic_gallery_{store._number}"  # pyright: ignore[reportAttributeAccessIssue]
    update: str = f"UPDATE {number} SET id = 9, columns = '{{\"x\": \"y\"}}', embedding = '[3, 4]' WHERE id = 1"
    postgres.execute(update)  # pyright: ignore[reportArgumentType]
    assert [problem.partition(" has ")[2] for problem in store.verify()] == [
        "1 rows with ids that were not given yet.",
        "1 rows with columns that the gallery does not have.",
        "1 rows with vectors not of length 1.",
    ]
    postgres.execute(f"DROP TABLE {number}")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="holds no gallery any more"):
        len(store)
    postgres.execute("DELETE FROM proxemic_galleries WHERE name = 'damage'")
    with pytest.raises(UserError, match="holds no gallery any more"):
        store.search(random_vectors(1, 2), 1)
    store.close()


def whole(store: Store, vectors: np.ndarray) -> None:
    """All rows are there, each once."""
    parts = [*store.iterate()]
    paths = [path for _, table in parts for path in table["path"].to_pylist()]
    assert sorted(paths) == sorted(f"/{n}.jpg" for n in range(len(vectors)))
    rows = [int(path[1:-4]) for path in paths]
    np.testing.assert_allclose(np.concatenate([part for part, _ in parts]), vectors[rows], atol=1e-6)
    assert store.verify() == []


def test_a_server_that_is_killed_between_and_within_batches(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = postgres
    address, vectors, items = server.address("killed"), random_vectors(100, 8), some_items(100)
    store = create_store(address, GalleryInfo(8))
    make, kill_at = module.Vector, 31
    sent = count(1)

    def vector(values: np.ndarray) -> object:
        if next(sent) == kill_at:
            server.kill()
        return make(values)

    monkeypatch.setattr(module, "Vector", vector)
    with pytest.raises(UserError, match="cannot be reached"):
        store.add(vectors, items)
    with pytest.raises(UserError, match="cannot be reached"):
        len(store)
    server.start()
    assert len(store) == 0, "an addition is one transaction"
    # A gallery adds rows in batches, says how many are written, and skips these later.
    monkeypatch.setattr(adding, "_VECTORS_AT_ONCE", 10)
    gallery, paths = Gallery(store), items["path"].to_pylist()
    there = 0
    for kill_at, written in ((31, 30), (26, 50), (15, 60)):  # noqa: B007 - `vector` reads it
        sent = count(1)
        said = (
            rf"cannot be reached: .* has {written - there} of the {100 - there} new rows: proxemic gallery add goes on"
        )
        with pytest.raises(UserError, match=said):
            gallery.add_vectors(vectors, paths, items["label"].to_pylist())
        server.start()
        there = written
        assert store.known_paths(paths) == {*paths[:written]}
    added = gallery.add_vectors(vectors, paths, items["label"].to_pylist())
    assert (added.rows, added.known) == (40, 60)
    for item in (open_store(address), store):
        whole(item, vectors)
        item.close()
