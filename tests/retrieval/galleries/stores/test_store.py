"""The tests of the interface, which run on every store."""

import numpy as np
import pytest

from galleries import clustered_vectors, naive_search, random_vectors, recall, some_items
from proxemic.data.rows import Rows
from proxemic.errors import UserError
from proxemic.retrieval.galleries.items import make_items
from proxemic.retrieval.galleries.stores import GalleryInfo, IndexKind, Store, create_store, delete_store, open_store
from proxemic.retrieval.galleries.stores import store as formats
from proxemic.spelling import canonical

DIM = 8

NASTY = [
    "it's",
    'a "quoted" one',
    "'; DROP TABLE gallery; --",
    "' OR '1'='1",
    '{"label": "x"}',
    "a\\b\\",
    "%",
    "_",
    "$1 %s {} [0]",
    "Zoë – 猫 🐈",
    "line\nbreak\ttab",
    " blank ",
    "NULL",
    "",
]


def test_a_new_gallery_is_empty(store: Store, address: str) -> None:
    for value in (store, open_store(address)):
        assert len(value) == 0
        assert value.info == GalleryInfo(DIM, "cosine", "checksum", "model")
        assert value.columns == ("id", "path", "label")
        assert value.known_paths(["a", "b"]) == set()
        found = value.search(random_vectors(2, DIM), 3)
        assert found.distances.tolist() == [[np.inf] * 3] * 2
        assert found.ids.tolist() == [[-1] * 3] * 2
        assert [*value.iterate()] == []
        assert value.remove({"label": "x"}) == 0
        assert value.add(random_vectors(0, DIM), some_items(0)).tolist() == []
        assert value.items(np.array([], np.int64)).column_names == ["id", "path", "label"]
        assert value.index["kind"] == "exact"
        assert value.verify() == []


def test_a_calibration_is_kept_and_seen_by_others(store: Store, address: str) -> None:
    other = open_store(address)
    assert other.calibration is store.calibration is None
    for threshold in (0.5, 0.25):
        store.keep_calibration({"threshold": threshold, "low": None})
        assert other.calibration == open_store(address).calibration == {"threshold": threshold, "low": None}
    store.add_roots(["/photos"])
    assert store.calibration == {"threshold": 0.25, "low": None}


def test_roots_are_kept_and_seen_by_others(store: Store, address: str) -> None:
    other = open_store(address)
    assert other.roots == ()
    store.add_roots(["/photos/b", "s3://bucket"])
    store.add(random_vectors(3, DIM), some_items(3))
    other.add_roots([f"/{NASTY[0]}", "/photos"])
    assert (
        {*store.roots} == {*other.roots} == {*open_store(address).roots} == {"/photos", "s3://bucket", f"/{NASTY[0]}"}
    )
    assert len(other) == 3


def test_a_gallery_is_not_made_over_another(store: Store, address: str) -> None:
    store.add(random_vectors(3, DIM), some_items(3))
    with pytest.raises(UserError, match=r"gallery"):
        create_store(address, GalleryInfo(DIM + 1))
    assert len(open_store(address)) == 3


def test_what_is_not_there_is_not_opened(address: str) -> None:
    with pytest.raises(UserError, match=r"no gallery|does not exist|not a gallery"):
        open_store(address)


@pytest.mark.parametrize(("change", "message"), [(1, "newer version .*: update"), (-1, "older version .*: create it")])
def test_a_gallery_of_another_version_is_refused(
    address: str, monkeypatch: pytest.MonkeyPatch, change: int, message: str
) -> None:
    with monkeypatch.context() as other:
        other.setattr(formats, "FORMAT", formats.FORMAT + change)
        create_store(address, GalleryInfo(DIM)).close()
    with pytest.raises(UserError, match=f"was written by an? {message}"):
        open_store(address)


def test_features_are_kept_beside_vectors(address: str) -> None:
    info = GalleryInfo(DIM, features=3)
    store = create_store(address, info)
    features = np.arange(30, dtype=np.float32).reshape(10, 3)
    store.add(random_vectors(6, DIM), some_items(6), features[:6])
    store.add(random_vectors(4, DIM), some_items(4, 6), features[6:])
    other = open_store(address)
    assert other.info == info
    order = np.array([7, 2, 2, 9])
    np.testing.assert_array_equal(other.features(order), features[order])
    assert store.remove({"path": [f"/{row}.jpg" for row in range(5)]}) == 5
    (new,) = store.add(random_vectors(1, DIM), some_items(1, 7), features[:1])
    left = np.array([int(new), 5, 6, 8, 9])
    np.testing.assert_array_equal(store.features(left), features[[0, 5, 6, 8, 9]])
    assert store.search(random_vectors(1, DIM), 9).ids[0].tolist()[5:] == [-1] * 4
    assert store.verify() == []
    other.close()
    store.close()


def test_ids_ascend_and_are_not_used_again(store: Store) -> None:
    assert store.add(random_vectors(4, DIM), some_items(4)).tolist() == [0, 1, 2, 3]
    assert store.remove({"path": "/3.jpg"}) == 1
    assert store.remove({"path": "/3.jpg"}) == 0
    assert store.add(random_vectors(2, DIM), some_items(2, 4)).tolist() == [4, 5]
    assert store.remove({"label": ["class 0", "class 1", "class 2"]}) == 5
    assert len(store) == 0
    assert store.add(random_vectors(1, DIM), some_items(1)).tolist() == [6]
    assert len(store) == 1
    assert store.known_paths(["/0.jpg", "/1.jpg", "no"]) == {"/0.jpg"}
    assert store.verify() == []


def test_a_row_replaces_that_of_the_same_path(store: Store) -> None:
    vectors = random_vectors(6, DIM)
    store.add(vectors[:4], some_items(4))
    assert store.add(vectors[4:], some_items(2, 1, ["new", None])).tolist() == [4, 5]
    assert [*store.items(store.next_ids())["path"].to_pylist()] == ["/0.jpg", "/3.jpg", "/1.jpg", "/2.jpg"]
    assert store.items(np.array([4, 5]))["label"].to_pylist() == ["new", None]
    np.testing.assert_allclose(store.rows(np.array([4, 5]))[0], vectors[4:], atol=1e-6)
    assert store.set_labels({"/0.jpg": "class 0", "/1.jpg": None, "/2.jpg": "new", "/9.jpg": "x"}) == 2
    assert store.items(store.next_ids())["label"].to_pylist() == ["class 0", "class 0", None, "new"]


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_search_is_that_of_the_formula(address: str, distance: str) -> None:
    store = create_store(address, GalleryInfo(DIM, distance))  # pyright: ignore[reportArgumentType]
    vectors = random_vectors(40, DIM, distance=distance)
    store.add(vectors[:25], some_items(25))
    store.add(vectors[25:], some_items(15, 25))
    store.remove({"path": ["/3.jpg", "/30.jpg"]})
    rows = {number: vector for number, vector in enumerate(vectors) if number not in (3, 30)}
    queries = np.concatenate([vectors[5:6], random_vectors(32, DIM, seed=1, distance=distance)])
    for asked, k in ((queries[:1], 1), (queries[:1], 10), (queries, 10), (queries, 45)):
        distances, ids = naive_search(asked, rows, k, distance)
        found = store.search(asked, k)
        assert found.ids.dtype == np.int64
        assert found.distances.dtype == np.float32
        np.testing.assert_array_equal(found.ids, ids)
        np.testing.assert_allclose(found.distances, distances, rtol=1e-4, atol=1e-4)
    store.close()


def test_of_equal_rows_the_first_added_comes_first(store: Store) -> None:
    vectors = random_vectors(3, DIM)
    store.add(vectors[[0, 1, 0, 2, 0]], some_items(5))
    assert store.search(vectors[:1], 3).ids.tolist() == [[0, 2, 4]]


def test_conditions_leave_rows_out(store: Store) -> None:
    vectors = random_vectors(12, DIM)
    labels = ["cat", "dog", None] * 4
    shops = ["x"] * 6 + ["y", None] * 3
    store.add(vectors, make_items(Rows.of(path=[f"/{n}" for n in range(12)], label=labels, shop=shops)))
    for where, allowed in (
        ({"label": "cat"}, lambda n: labels[n] == "cat"),
        ({"label": ["cat", "dog"]}, lambda n: labels[n] is not None),
        ({"label": None}, lambda n: labels[n] is None),
        ({"label": ("cat", None)}, lambda n: labels[n] != "dog"),
        ({"label": "cat", "shop": "y"}, lambda n: labels[n] == "cat" and shops[n] == "y"),
        ({"shop": None}, lambda n: shops[n] is None),
        ({"path": "/7"}, lambda n: n == 7),
        ({"label": "cow"}, lambda n: n < 0),
        ({}, lambda n: n >= 0),
        (None, lambda n: n >= 0),
    ):
        rows = {number: vector for number, vector in enumerate(vectors) if allowed(number)}
        found = store.search(vectors[:3], 5, where)
        np.testing.assert_array_equal(found.ids, naive_search(vectors[:3], rows, 5, "cosine")[1], str(where))
    for call in (lambda where: store.search(vectors[:1], 1, where), store.remove):
        with pytest.raises(ValueError, match="no column 'price': its columns are path, label, shop"):
            call({"price": "1"})
        with pytest.raises(ValueError, match="no column 'id'"):
            call({"id": "1"})
        with pytest.raises(ValueError, match="allows no value"):
            call({"label": []})
    assert store.remove({"shop": "x", "label": ["dog", None]}) == 4
    assert len(store) == 8


def test_any_text_is_a_value_and_a_name(store: Store) -> None:
    texts = [canonical(name) if name else name for name in NASTY]  # as `Gallery.add` gives them to a store
    rows = len(NASTY)
    columns = {'a column\'s "name"; --': texts, "größe": texts, "price": texts, "Price": texts[::-1]}
    store.add(
        random_vectors(rows, DIM), make_items(Rows.of(path=[f"/{name}" for name in NASTY], label=texts, **columns))
    )
    for number, value in enumerate(NASTY):
        for name in ("label", *columns):
            row = rows - 1 - number if name == "Price" else number
            assert store.search(random_vectors(1, DIM), 2, {name: value}).ids.tolist() == [[row, -1]], (name, value)
        assert store.known_paths([f"/{value}"]) == {f"/{value}"}
    assert store.items(np.arange(rows)).column("label").to_pylist() == texts
    for value in ("x' OR 'a'='a", "it''s", "Zoë", "null"):
        assert store.search(random_vectors(1, DIM), 1, {"label": value}).ids.tolist() == [[-1]]
        assert store.remove({"label": value}) == 0
    for name in ("label = 'x' OR label", "label; --", "größe "):
        with pytest.raises(ValueError, match="no column"):
            store.search(random_vectors(1, DIM), 1, {name: "x"})
    assert store.remove({"label": NASTY[2]}) == 1
    assert len(store) == rows - 1


def test_items_come_in_the_order_asked(store: Store) -> None:
    store.add(random_vectors(5, DIM), some_items(5, shop=["a", "b", None, "d", "e"]))
    store.add(random_vectors(3, DIM), some_items(3, 5))
    table = store.items(np.array([6, 0, 2, 6, 4]))
    assert table.to_pylist() == [
        {"id": 6, "path": "/6.jpg", "label": "class 0", "shop": None},
        {"id": 0, "path": "/0.jpg", "label": "class 0", "shop": "a"},
        {"id": 2, "path": "/2.jpg", "label": "class 2", "shop": None},
        {"id": 6, "path": "/6.jpg", "label": "class 0", "shop": None},
        {"id": 4, "path": "/4.jpg", "label": "class 1", "shop": "e"},
    ]


def test_all_rows_are_gone_through(store: Store) -> None:
    vectors = random_vectors(20, DIM)
    store.add(vectors[:15], some_items(15))
    store.add(vectors[15:], some_items(5, 15))
    store.remove({"label": "class 1"})
    kept = [number for number in range(20) if number % 3 != 1]
    for size in (1, 4, 100):
        batches = [*store.iterate(size)]
        assert all(len(part) == len(table) <= size for part, table in batches)
        assert [number for _, table in batches for number in table["id"].to_pylist()] == kept
        assert [path for _, table in batches for path in table["path"].to_pylist()] == [f"/{n}.jpg" for n in kept]
        np.testing.assert_allclose(np.concatenate([part for part, _ in batches]), vectors[kept], atol=1e-6)


def test_rows_are_found_by_their_ids(store: Store) -> None:
    vectors = random_vectors(20, DIM)
    assert store.next_ids().tolist() == []
    store.add(vectors[:15], some_items(15))
    store.add(vectors[15:], some_items(5, 15, shop=["x", "y", "x", None, "x"]))
    store.remove({"label": "class 1"})
    kept = [number for number in range(20) if number % 3 != 1]
    for after, count in ((-1, 3), (-1, 100), (5, 4), (6, 1), (18, 5), (1000, 5)):
        assert store.next_ids(after, count).tolist() == [number for number in kept if number > after][:count]
    assert store.next_ids(3, 2, {"label": "class 0"}).tolist() == [6, 9]
    assert store.next_ids(where={"shop": ["x", None], "label": "class 2"}).tolist() == [2, 5, 8, 11, 14, 17]
    with pytest.raises(ValueError, match="no column 'price'"):
        store.next_ids(where={"price": "1"})
    found, table = store.rows(np.array([17, 3, 4, 3, 99, -1]))
    assert table.to_pylist() == [
        {"id": 3, "path": "/3.jpg", "label": "class 0", "shop": None},
        {"id": 17, "path": "/17.jpg", "label": "class 2", "shop": "x"},
    ]
    np.testing.assert_allclose(found, vectors[[3, 17]], atol=1e-6)
    found, table = store.rows(np.array([4]))
    assert (found.shape, len(table)) == ((0, DIM), 0)


def test_columns_may_come_later(store: Store) -> None:
    store.add(random_vectors(2, DIM), some_items(2))
    store.add(random_vectors(2, DIM, 1), some_items(2, 2, price=["1", None]))
    store.add(random_vectors(1, DIM, 2), some_items(1, 4, shop=["x"]))
    assert store.columns == ("id", "path", "label", "price", "shop")
    assert store.items(np.arange(5))["price"].to_pylist() == [None, None, "1", None, None]
    assert [item for _, table in store.iterate(2) for item in table["shop"].to_pylist()] == [None] * 4 + ["x"]
    found = store.search(random_vectors(1, DIM), 5, {"price": None}).ids
    assert sorted(found[0].tolist()) == [-1, 0, 1, 3, 4]
    assert store.remove({"price": None, "shop": None}) == 3


def test_others_see_what_one_changes(store: Store, address: str) -> None:
    other = open_store(address)
    vectors = random_vectors(6, DIM)
    store.add(vectors[:4], some_items(4))
    assert len(other) == 4
    assert other.search(vectors[3:4], 1).ids.tolist() == [[3]]
    assert other.add(vectors[4:], some_items(2, 4, shop=["x", "y"])).tolist() == [4, 5]
    assert store.columns == ("id", "path", "label", "shop")
    assert store.known_paths(["/5.jpg"]) == {"/5.jpg"}
    assert store.search(vectors[5:], 1).ids.tolist() == [[5]]
    assert other.remove({"shop": "y"}) == 1
    assert len(store) == 5
    assert store.search(vectors[5:], 6).ids[0, -1] == -1
    assert store.verify() == other.verify() == []


def test_a_walk_of_random_changes(store: Store, address: str) -> None:
    """Any sequence of additions and removals leaves what a dictionary would hold."""
    rng = np.random.default_rng(0)
    rows: dict[int, tuple[str, str, np.ndarray]] = {}
    number = 0
    for step in range(25):
        if rng.random() < 0.6:
            count = int(rng.choice([1, 3, 40]))
            vectors = random_vectors(count, DIM, seed=step)
            ids = store.add(vectors, some_items(count, number))
            assert ids[0] >= max(rows, default=-1) + 1
            for place, row in enumerate(ids.tolist()):
                rows[row] = (f"/{number + place}.jpg", f"class {(number + place) % 3}", vectors[place])
            number += count
        elif rng.random() < 0.5 and rows:
            gone = [str(path) for path in rng.choice([path for path, _, _ in rows.values()], min(7, len(rows)))]
            assert store.remove({"path": gone}) == len({*gone})
            rows = {row: kept for row, kept in rows.items() if kept[0] not in gone}
        else:
            label = f"class {rng.integers(3)}"
            assert store.remove({"label": label}) == sum(kept[1] == label for kept in rows.values())
            rows = {row: kept for row, kept in rows.items() if kept[1] != label}
        assert len(store) == len(rows)
    for value in (store, open_store(address)):
        content = [
            (row["id"], row["path"], row["label"], vector.tobytes())
            for vectors, table in value.iterate()
            for row, vector in zip(table.to_pylist(), vectors, strict=True)
        ]
        assert [row[:3] for row in content] == [(row, *rows[row][:2]) for row in sorted(rows)]
        queries = random_vectors(5, DIM, seed=99)
        right = naive_search(queries, {row: vector for row, (_, _, vector) in rows.items()}, 9, "cosine")
        np.testing.assert_array_equal(value.search(queries, 9).ids, right[1])
        assert value.verify() == []


@pytest.mark.parametrize("kind", ["exact", "hnsw", "ivfpq"])
def test_an_index_finds_the_neighbours(address: str, kind: IndexKind) -> None:
    dim = 16
    store = create_store(address, GalleryInfo(dim))
    if kind not in store.indexes:
        with pytest.raises(ValueError, match=kind):
            store.build_index(kind)
        return
    vectors, queries = np.split(clustered_vectors(1220, dim), [1200])
    store.add(vectors[:900], some_items(900))
    store.add(vectors[900:1100], some_items(200, 900))
    store.build_index(kind)
    assert store.index["kind"] == kind
    assert store.index["rows"] == 1100
    store.add(vectors[1100:], some_items(100, 1100))
    store.remove({"path": [f"/{number}.jpg" for number in range(0, 1200, 7)]})
    rows = {number: vector for number, vector in enumerate(vectors) if number % 7}
    for value in (store, open_store(address)):
        assert value.index["kind"] == kind
        distances, ids = naive_search(queries, rows, 10, "cosine")
        found = value.search(queries, 10)
        assert recall(found.ids, ids) >= 0.9
        assert (np.diff(found.distances) >= 0).all()
        same = found.ids[:, 0] == ids[:, 0]
        np.testing.assert_allclose(found.distances[same, 0], distances[same, 0], atol=1e-4)
        of_class = {number: vector for number, vector in rows.items() if number % 3 == 1}
        filtered = value.search(queries, 10, {"label": "class 1"}).ids
        assert (filtered % 3 == 1).all()
        assert recall(filtered, naive_search(queries, of_class, 10, "cosine")[1]) >= 0.9
        few = value.search(queries[:2], 4, {"path": ["/1.jpg", "/1101.jpg", "/7.jpg"]}).ids
        assert [sorted(one) for one in few.tolist()] == [[-1, -1, 1, 1101]] * 2
        assert (value.search(queries[:1], 1200).ids >= 0).sum() == len(rows)
    assert store.verify() == []
    store.build_index("exact")
    assert store.index["kind"] == "exact"
    np.testing.assert_array_equal(store.search(queries, 10).ids, ids)


def test_labels_are_counted(store: Store) -> None:
    store.add(random_vectors(7, DIM), some_items(7, labels=["a", "b", None, "a", "", "b", "a"]))
    store.remove({"path": "/3.jpg"})
    assert store.count_labels() == {"a": 2, "b": 2, None: 1, "": 1}
    assert store.size is None or store.size > 7 * DIM * 4


def test_a_deleted_gallery_is_gone_and_may_be_made_anew(store: Store, address: str) -> None:
    store.add(random_vectors(5, DIM), some_items(5))
    delete_store(address)
    with pytest.raises(UserError, match=r"no gallery|does not exist"):
        len(store)
    for call in (open_store, delete_store):
        with pytest.raises(UserError, match=r"no gallery|does not exist|not a gallery"):
            call(address)
    again = create_store(address, GalleryInfo(DIM + 1))
    assert len(again) == 0
    assert again.add(random_vectors(1, DIM + 1), some_items(1)).tolist() == [0]
    again.close()
