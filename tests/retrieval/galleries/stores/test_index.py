"""Indexes of a folder are used, and no index file leads to wrong results."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from galleries import clustered_vectors, naive_search, random_vectors, recall, some_items
from proxemic.errors import UserError
from proxemic.retrieval.galleries.stores import GalleryInfo, IndexKind, arrays, index
from proxemic.retrieval.galleries.stores.local import LocalStore

ROWS, DIM = 1500, 16
KINDS: tuple[IndexKind, ...] = ("hnsw", "ivfpq")
VECTORS, QUERIES = np.split(clustered_vectors(ROWS + 200 + 40, DIM), [ROWS + 200])


@pytest.fixture(autouse=True)
def _always_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the index although there are few rows, which would all be compared."""
    monkeypatch.setattr(index, "_compared", lambda *_: 0)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A gallery with each kind of index, which no test changes."""
    folders = {}
    for kind in KINDS:
        store = LocalStore.create(str(tmp_path_factory.mktemp(kind) / "gallery"), GalleryInfo(DIM))
        store.add(VECTORS[:ROWS], some_items(ROWS))
        store.build_index(kind)
        folders[kind] = store.folder
    return folders


@pytest.mark.parametrize("kind", KINDS)
def test_what_others_make_of_faiss_does_not_matter(
    kind: IndexKind, built: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """faiss.contrib.torch_utils, which pytorch-metric-learning imports, replaces `search` by one without `params`."""
    before = LocalStore.open(str(built[kind])).search(QUERIES, 10)
    for value in (faiss.IndexHNSW, faiss.IndexIVF, faiss.IndexIVFPQ, faiss.Index):
        monkeypatch.setattr(value, "search", None)
    after = LocalStore.open(str(built[kind])).search(QUERIES, 10)
    np.testing.assert_array_equal(before.ids, after.ids)


def copied(folder: Path, to: Path) -> LocalStore:
    return LocalStore.open(str(shutil.copytree(folder, to)))


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were compared one by one, of each call."""
    rows: list[int] = []
    nearest = arrays.nearest

    def counted(queries: np.ndarray, vectors: np.ndarray, k: int, squares: None, mask: np.ndarray | None) -> Any:
        rows.append(len(vectors) if mask is None else int(mask.sum()))
        return nearest(queries, vectors, k, squares, mask)

    monkeypatch.setattr(arrays, "nearest", counted)
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_only_newer_rows_are_compared_one_by_one(
    built: dict[str, Path], kind: IndexKind, tmp_path: Path, compared: list[int]
) -> None:
    store = copied(built[kind], tmp_path / "gallery")
    rows = dict(enumerate(VECTORS[:ROWS]))
    assert recall(store.search(QUERIES, 10).ids, naive_search(QUERIES, rows, 10, "cosine")[1]) >= 0.95
    assert compared == []
    store.add(VECTORS[ROWS:], some_items(200, ROWS))
    rows = dict(enumerate(VECTORS))
    found = store.search(QUERIES, 10)
    assert recall(found.ids, naive_search(QUERIES, rows, 10, "cosine")[1]) >= 0.95
    assert (found.ids >= ROWS).any()
    assert compared == [200]
    for gone in (5, 2):  # rows of both, and then so many that the files are written again
        compared.clear()
        store.remove({"path": [f"/{number}.jpg" for number in range(0, len(VECTORS), gone)]})
        rows = {number: vector for number, vector in rows.items() if number % gone}
        found = store.search(QUERIES, 10)
        assert recall(found.ids, naive_search(QUERIES, rows, 10, "cosine")[1]) >= 0.9
        assert {*found.ids.ravel().tolist()} <= {*rows}
        assert max(compared) <= 200
        again = LocalStore.open(str(store.folder)).search(QUERIES, 10)
        assert recall(again.ids, naive_search(QUERIES, rows, 10, "cosine")[1]) >= 0.9
        np.testing.assert_allclose(found.distances[:, 0], again.distances[:, 0], atol=0.05)
    assert store.verify() == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.9, 0.02])
def test_conditions_cost_no_recall(built: dict[str, Path], kind: str, share: float, tmp_path: Path) -> None:
    store = copied(built[kind], tmp_path / "gallery")
    allowed = np.flatnonzero(np.random.default_rng(0).random(ROWS) < share).tolist()
    rows = {number: VECTORS[number] for number in allowed}
    for k in (1, 10):
        found = store.search(QUERIES, k, {"path": [f"/{number}.jpg" for number in allowed]})
        assert recall(found.ids, naive_search(QUERIES, rows, k, "cosine")[1]) >= 0.9
    few = store.search(QUERIES, 10, {"path": ["/3.jpg", "/4.jpg"]})
    assert [sorted(ids) for ids in few.ids[:, :2].tolist()] == [[3, 4]] * len(QUERIES)
    assert (few.ids[:, 2:] == -1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_distances_are_exact(built: dict[str, Path], kind: IndexKind, tmp_path: Path) -> None:
    found = LocalStore.open(str(built[kind])).search(QUERIES, 5)
    for query, distances, ids in zip(QUERIES.astype(np.float64), found.distances, found.ids, strict=True):
        np.testing.assert_allclose(distances, 1 - VECTORS[ids].astype(np.float64) @ query, atol=1e-6)
        assert (np.diff(distances) >= 0).all()
    euclidean = LocalStore.create(str(tmp_path / "euclidean"), GalleryInfo(DIM, "euclidean"))
    vectors = 100 * random_vectors(ROWS, DIM, distance="euclidean")
    euclidean.add(vectors, some_items(ROWS))
    euclidean.build_index(kind)
    found = euclidean.search(vectors[:3] + 1, 5)
    for query, distances, ids in zip(vectors[:3].astype(np.float64) + 1, found.distances, found.ids, strict=True):
        np.testing.assert_allclose(distances, np.linalg.norm(vectors[ids] - query, axis=1), rtol=1e-5)


def test_the_effort_is_the_least_that_finds_enough(built: dict[str, Path], tmp_path: Path) -> None:
    for kind, effort in zip(KINDS, ("ef_search", "probes"), strict=True):
        found = LocalStore.open(str(built[kind])).index
        assert 0.98 <= found["recall@10"] <= 1
        assert found["rows"] == ROWS
        store = copied(built[kind], tmp_path / kind)
        store.build_index(kind, **{effort: 1})
        assert store.index[effort] == 1
        assert store.index["recall@10"] <= found["recall@10"]


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("hnsw", {"m": 1}, "m is 1, but must be a whole number from 2 to 256"),
        ("hnsw", {"lists": 4}, "lists is not a setting of hnsw, which takes m, ef_construction, ef_search"),
        ("hnsw", {"ef_search": True}, "ef_search is True, but must be a whole number"),
        ("hnsw", {"ef_construction": 10**9}, "must be a whole number from 1 to 10,000"),
        ("ivfpq", {"code_bytes": 5}, "code_bytes is 5, but must divide 16: give one of 1, 2, 4, 8, 16"),
        ("ivfpq", {"lists": ROWS + 1}, "lists is 1501, but must be a whole number from 1 to 1,500"),
        ("ivfpq", {"lists": 4, "probes": 5}, "probes is 5, but must be a whole number from 1 to 4"),
        ("exact", {"m": 4}, "m is not a setting of exact, which takes no settings"),
        ("lsh", {}, "an index is 'lsh', but .* has one of exact, hnsw, ivfpq"),
    ],
)
def test_settings_that_cannot_be(built: dict[str, Path], kind: Any, settings: dict[str, int], said: str) -> None:
    store = LocalStore.open(str(built["hnsw"]))
    with pytest.raises(ValueError, match=said):
        store.build_index(kind, **settings)
    assert store.index["kind"] == "hnsw"


def test_of_no_rows_there_is_no_index(tmp_path: Path) -> None:
    store = LocalStore.create(str(tmp_path / "gallery"), GalleryInfo(DIM))
    with pytest.raises(UserError, match="has no rows to make an index of"):
        store.build_index("hnsw")
    store.add(VECTORS[:3], some_items(3))
    store.build_index("hnsw")
    assert store.index == {
        "kind": "hnsw",
        "rows": 3,
        "recall@10": None,
        "m": 16,
        "ef_construction": 100,
        "ef_search": 512,
    }
    assert store.search(QUERIES[:1], 5).ids[0, 3:].tolist() == [-1, -1]
    with pytest.raises(ValueError, match="ivfpq needs 1,000 rows or more, but there are 3: take exact or hnsw"):
        store.build_index("ivfpq")
    store.remove({"label": ["class 0", "class 1", "class 2"]})
    assert store.search(QUERIES[:1], 1).ids.tolist() == [[-1]]
    store.add(VECTORS[:2], some_items(2, 3))
    assert store.search(VECTORS[:1], 1).ids.tolist() == [[3]]
    assert LocalStore.open(str(store.folder)).search(VECTORS[:1], 1).ids.tolist() == [[3]]


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("no index")])
def test_a_missing_or_damaged_index_is_not_used(
    built: dict[str, Path], damage: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXEMIC_CACHE", str(tmp_path / "cache"))
    store = copied(built["hnsw"], tmp_path / "gallery")
    store.build_index("hnsw")
    (path,) = (tmp_path / "cache" / "indexes").iterdir()
    damage(path)
    store = LocalStore.open(str(store.folder))
    right = naive_search(QUERIES, dict(enumerate(VECTORS[:ROWS])), 10, "cosine")[1]
    with pytest.warns(UserWarning, match=rf"{path} .*every row is compared until proxemic gallery index"):
        np.testing.assert_array_equal(store.search(QUERIES, 10).ids, right)
    np.testing.assert_array_equal(store.search(QUERIES, 10).ids, right)  # said once
    assert store.verify() == []
    store.build_index("hnsw")
    assert recall(LocalStore.open(str(store.folder)).search(QUERIES, 10).ids, right) >= 0.95
    LocalStore.delete(str(store.folder))
    assert [*path.parent.iterdir()] == []
