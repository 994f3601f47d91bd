"""What may happen to a gallery's folder: full disks, several processes, damage and malice."""

import json
import resource
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy

import warm
from galleries import naive_search, random_vectors, some_items
from proxemic.errors import UserError
from proxemic.retrieval import Gallery
from proxemic.retrieval.stores import GalleryInfo
from proxemic.retrieval.stores.local import LocalStore
from proxemic.retrieval.stores.local.arrays import describe
from proxemic.retrieval.stores.local.manifest import Manifest

DIM = 8


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """Of two shards, the first with removed rows."""
    store = LocalStore.create(str(tmp_path / "gallery"), GalleryInfo(DIM, "euclidean"))
    store.add(random_vectors(50, DIM, 0, "euclidean"), some_items(50))
    store.add(random_vectors(5, DIM, 1, "euclidean"), some_items(5, 50))
    store.remove({"path": ["/3.jpg", "/7.jpg"]})
    assert len(store._snapshot.shards) == 2
    return store


def content(folder: Path) -> list[tuple[Any, ...]]:
    """All rows as another process sees them."""
    store = LocalStore.open(str(folder))
    assert store.verify() == []
    return [
        (*row.values(), vector.tobytes())
        for vectors, table in store.iterate()
        for row, vector in zip(table.to_pylist(), vectors, strict=True)
    ]


@contextmanager
def disk_with(space: int) -> Iterator[None]:
    """Files may have no more bytes than that: the kernel refuses more, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (space, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.full_disk
@pytest.mark.parametrize("space", [10, 300, 1000])
@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.add(random_vectors(400, DIM, 2, "euclidean"), some_items(400, 100)),
        lambda store: store.remove({"label": ["class 0", "class 1"]}),
        lambda store: store.build_index("hnsw"),
    ],
    ids=["add", "remove", "index"],
)
def test_a_full_disk_leaves_the_gallery_as_it_was(
    store: LocalStore, space: int, change: Callable[[LocalStore], object]
) -> None:
    before = content(store.folder)
    with disk_with(space), pytest.raises(UserError, match=r"could not be written: .*free some space"):
        change(store)
    assert content(store.folder) == before
    change(store)
    assert (content(store.folder), store.index) != (before, {"kind": "exact", "rows": 53})
    # What was left half-written is gone with the change after it.
    names = {file.name for file in store._snapshot.manifest.files()}
    assert {path.name for path in store.folder.glob("[!.]*")} >= names
    assert not [*store.folder.glob(".*.tmp")]


@pytest.mark.full_disk
def test_on_a_full_disk_no_gallery_is_made(tmp_path: Path) -> None:
    with disk_with(0), pytest.raises(UserError, match=r"could not be written: .*free some space"):
        LocalStore.create(str(tmp_path / "gallery"), GalleryInfo(DIM))
    with pytest.raises(UserError, match="holds no gallery"):
        LocalStore.open(str(tmp_path / "gallery"))
    LocalStore.create(str(tmp_path / "gallery"), GalleryInfo(DIM))


WRITER = """
import sys, time
from pathlib import Path
from proxemic.retrieval.stores.local.writing import only_writer
with only_writer(Path(sys.argv[1])):
    print("writes", flush=True)
    Path(sys.argv[2]).touch()
    time.sleep(100)
"""


def test_a_second_writer_is_told_of_the_first_and_readers_go_on(store: LocalStore, tmp_path: Path) -> None:
    process = warm.Process("-c", WRITER, store.folder, tmp_path / "writes")
    while not (tmp_path / "writes").exists():
        assert process.poll() is None, process.communicate()
    before = content(store.folder)
    changes: list[Callable[[], object]] = [
        lambda: store.add(random_vectors(1, DIM), some_items(1, 99)),
        lambda: store.remove({"label": "class 0"}),
        lambda: store.build_index("hnsw"),
        lambda: store.build_index("exact"),
    ]
    for change in changes:
        with pytest.raises(UserError, match=rf"is being written to by process {process.pid} of \w+ on .*, since 2"):
            change()
    assert store.search(random_vectors(1, DIM), 1).ids.shape == (1, 1)
    assert content(store.folder) == before
    process.kill()
    process.communicate()
    changes[0]()  # a killed writer lets go
    assert len(store) == 54


CHANGES = """
import sys
sys.path.insert(0, sys.argv[2])
from galleries import random_vectors, some_items
from proxemic.retrieval.stores.local import LocalStore
store = LocalStore.open(sys.argv[1])
for number in range(24):
    store.add(random_vectors(4, 8, number, "euclidean"), some_items(4, 100 + 4 * number, [str(number)] * 4))
    if number % 3 == 2:
        store.remove({"label": [str(number), str(number - 1)]})
"""


def test_readers_see_whole_states_while_another_process_writes(store: LocalStore) -> None:
    """Every state has all of an addition and a removal, or nothing of it."""
    process = warm.Process("-c", CHANGES, store.folder, Path(__file__).parents[3])
    states: set[int] = set()
    query = random_vectors(2, DIM, 9, "euclidean")
    while process.poll() is None or not states:
        found = Gallery(store).search_vectors(query, k=1000)
        labels = [hit.label for hit in found[0] if hit.path >= "/1" and hit.id >= 55]
        assert all(labels.count(label) == 4 for label in labels)
        states.add(len(found[0]))
        other = LocalStore.open(str(store.folder))
        rows = sum(len(table) for _, table in other.iterate(7))
        assert (rows - 53) % 4 == 0
        assert store.verify() == []
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert len(store) == 53 + 8 * 4
    assert len(states) > 1


def test_a_reader_keeps_its_state_when_files_are_removed(store: LocalStore) -> None:
    reader = LocalStore.open(str(store.folder))
    found = reader.search(random_vectors(1, DIM, 3, "euclidean"), 53)
    rows = reader.iterate(10)
    for number in range(4):
        store.add(random_vectors(60, DIM, number, "euclidean"), some_items(60, 100 + 60 * number))
    store.remove({"label": "class 1"})
    assert not (store.folder / "vectors-000001-0.safetensors").exists()
    assert len(reader.items(found.ids[0])) == 53
    assert sum(len(table) for _, table in rows) == 53
    assert len(reader) == len(store)
    with pytest.raises(UserError, match=r"Row \d+ is not in .* any more: search again"):
        reader.items(np.array([10**6]))


def test_threads_may_search_while_one_writes(store: LocalStore) -> None:
    failed: list[BaseException] = []

    def search() -> None:
        try:
            for number in range(50):
                store.search(random_vectors(2, DIM, number, "euclidean"), 5, {"label": "class 1"})
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(10):
        store.add(random_vectors(30, DIM, number, "euclidean"), some_items(30, 100 + 30 * number))
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / f".notes.{2**22 + 1}.tmp").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="is not empty: choose a new or an empty folder"):
        LocalStore.create(str(tmp_path), GalleryInfo(DIM))
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "file").touch()
    for make in (lambda place: LocalStore.create(place, GalleryInfo(DIM)), LocalStore.open):
        with pytest.raises(UserError, match=r"is a file|holds no gallery"):
            make(str(tmp_path / "file"))


def test_another_gallery_in_its_place_is_noticed(store: LocalStore, tmp_path: Path) -> None:
    shutil.rmtree(store.folder)
    with pytest.raises(UserError, match="holds no gallery"):
        len(store)
    LocalStore.create(str(store.folder), GalleryInfo(DIM + 1))
    with pytest.raises(UserError, match="is another gallery than the one that was opened: open it anew"):
        store.search(random_vectors(1, DIM), 1)


def test_large_shards_are_not_written_again(tmp_path: Path) -> None:
    store = LocalStore.create(str(tmp_path / "gallery"), GalleryInfo(2))
    vectors = random_vectors(70_000, 2)
    store.add(vectors, some_items(70_000))
    first = {path.name: path.stat().st_ino for path in store.folder.glob("*-*")}
    store.add(vectors[:40_000], some_items(40_000, 70_000))
    store.remove({"path": "/5.jpg"})
    assert first.items() <= {path.name: path.stat().st_ino for path in store.folder.glob("*-*")}.items()
    for _ in range(3):
        store.add(vectors[:1], some_items(1, 200_000 + len(store)))
    assert len(store._snapshot.shards) == 3  # single rows are written again together


def test_search_among_removed_rows(tmp_path: Path) -> None:
    """Few are found and left out, many are not looked at."""
    store = LocalStore.create(str(tmp_path / "gallery"), GalleryInfo(DIM))
    vectors = random_vectors(300, DIM)
    store.add(vectors, some_items(300))
    rows = dict(enumerate(vectors))
    queries = random_vectors(4, DIM, 1)
    for gone in ([0, 1], [*range(2, 25)], [*range(25, 120)]):
        store.remove({"path": [f"/{number}.jpg" for number in gone]})
        rows = {number: vector for number, vector in rows.items() if number not in gone}
        for k in (1, 10, 300):
            np.testing.assert_array_equal(store.search(queries, k).ids, naive_search(queries, rows, k, "cosine")[1])


def test_every_flipped_byte_is_found(store: LocalStore) -> None:
    store.build_index("hnsw", m=2)
    files = sorted(store.folder.glob("[!.]*"))
    assert len(files) >= 7
    rng = np.random.default_rng(0)
    for path in files:
        sound = path.read_bytes()
        places = {0, len(sound) - 1, *rng.integers(len(sound), size=12).tolist()}
        for place in places:
            damaged = bytearray(sound)
            damaged[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged)
            try:
                problems = LocalStore.open(str(store.folder)).verify()
            except UserError as error:
                problems = [str(error)]
            assert problems, (path.name, place)
            assert all(str(store.folder) in problem and "\n" not in problem for problem in problems)
        path.write_bytes(sound)
    assert LocalStore.open(str(store.folder)).verify() == []


def one_sentence(folder: Path) -> str:
    """What is said by whatever is done first with a folder; all of it."""
    said = []
    for use in (
        lambda store: store.search(random_vectors(2, DIM, 0, "euclidean"), 100),
        lambda store: store.search(random_vectors(2, DIM, 0, "euclidean"), 3, {"label": "class 1"}),
        lambda store: store.known_paths(["/1.jpg"]),
        lambda store: store.items(np.array([1, 51])),
        lambda store: [*store.iterate()],
    ):
        try:
            use(LocalStore.open(str(folder)))
        except UserError as error:
            said.append(str(error))
    try:
        verified = LocalStore.open(str(folder)).verify()
    except UserError as error:
        verified = [str(error)]
    assert verified
    assert all("\n" not in each and len(each) < 600 for each in (*said, *verified))
    return " ".join([*said, *verified])


def test_truncated_and_swapped_files(store: LocalStore, tmp_path: Path) -> None:
    other = LocalStore.create(str(tmp_path / "other"), GalleryInfo(DIM, "euclidean"))
    other.add(random_vectors(50, DIM, 7, "euclidean"), some_items(50, labels=["class 3"] * 50))
    other.add(random_vectors(5, DIM, 8, "euclidean"), some_items(5, 50, labels=["class 3"] * 5))
    other.remove({"path": ["/4.jpg", "/8.jpg"]})
    for path in sorted(store.folder.glob("[!.]*-*")):
        sound = path.read_bytes()
        for content_now in (b"", sound[:-1], sound[: len(sound) // 2], sound + b"x"):
            path.write_bytes(content_now)
            assert f"{path} is damaged (it has" in one_sentence(store.folder)
        path.write_bytes((other.folder / path.name).read_bytes())
        assert f"{path} is damaged (it" in one_sentence(store.folder)
        path.unlink()
        assert f"{path} is damaged (it is missing)" in one_sentence(store.folder)
        path.write_bytes(sound)
    manifest = store.folder / "manifest.json"
    manifest.write_bytes((other.folder / "manifest.json").read_bytes())
    assert "is damaged" in one_sentence(store.folder)


def forge(store: LocalStore, **changes: Any) -> None:
    """Write a manifest with a right checksum, as somebody does who means harm."""
    manifest = replace(Manifest.read(store.folder))
    for name, value in changes.items():
        object.__setattr__(manifest, name, value)
    manifest.write(store.folder)


def forge_file(store: LocalStore, number: int, name: str, write: Callable[[Path], object]) -> None:
    """Another file of a shard, to which all checksums fit."""
    shards = [*Manifest.read(store.folder).shards]
    shard = shards[number]
    path = store.folder / getattr(shard, name).name
    write(path)
    changed = replace(shard, **{name: describe(path)})
    if name == "items":
        vectors = store.folder / shard.vectors.name
        arrays = safetensors.numpy.load_file(vectors)
        safetensors.numpy.save_file(arrays, vectors, {"items": changed.items.sha256})
        changed = replace(changed, vectors=describe(vectors))
    shards[number] = changed
    forge(store, shards=tuple(shards))


def _lying(header: dict[str, Any] | bytes, body: bytes = b"") -> Callable[[Path], object]:
    written = header if isinstance(header, bytes) else json.dumps(header).encode()
    return lambda path: path.write_bytes(len(written).to_bytes(8, "little") + written + body)


IDS = {"dtype": "I64", "shape": [5], "data_offsets": [160, 200]}


@pytest.mark.parametrize(
    "write",
    [
        _lying(b""),
        _lying(b"[" * 100_000),
        _lying(b"[]"),
        _lying(b"\xff\xfe"),
        _lying({"vectors": 3}),
        _lying({"vectors": {"dtype": "F32", "shape": [5, 8], "data_offsets": [0, 160]}, "ids": IDS}),  # no bytes
        _lying({"vectors": {"dtype": "F32", "shape": [2**40, 8], "data_offsets": [0, 2**45]}, "ids": IDS}, bytes(200)),
        _lying({"vectors": {"dtype": "F32", "shape": [0, 10**30], "data_offsets": [0, 0]}, "ids": IDS}, bytes(200)),
        _lying({"vectors": {"dtype": "F32", "shape": [-5, -8], "data_offsets": [0, 160]}, "ids": IDS}, bytes(200)),
        _lying({"vectors": {"dtype": "F32", "shape": [5, 8.0], "data_offsets": [0, 160]}, "ids": IDS}, bytes(200)),
        _lying({"vectors": {"dtype": "F32", "shape": [5, 8], "data_offsets": [-160, 0]}, "ids": IDS}, bytes(200)),
        _lying({"vectors": {"dtype": "O", "shape": [5, 8], "data_offsets": [0, 160]}, "ids": IDS}, bytes(200)),
        _lying({"vectors": {"dtype": "F32", "shape": "58", "data_offsets": [0, 160]}, "ids": IDS}, bytes(200)),
        _lying({"ids": IDS}, bytes(200)),
        lambda path: path.write_bytes((2**63).to_bytes(8, "little") + bytes(100)),
        lambda path: path.write_bytes(b"\x01"),
    ],
)
def test_headers_that_lie(store: LocalStore, write: Callable[[Path], object]) -> None:
    forge_file(store, 1, "vectors", write)
    assert f"{store.folder}/vectors-000002-0.safetensors is damaged (" in one_sentence(store.folder)


def _vectors(change: Callable[[dict[str, np.ndarray]], object]) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        arrays = safetensors.numpy.load_file(path)
        with safetensors.safe_open(path, "numpy") as file:
            metadata = file.metadata()
        change(arrays)
        safetensors.numpy.save_file(arrays, path, metadata)

    return write


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_numbers_that_are_none(store: LocalStore, value: float) -> None:
    forge_file(store, 1, "vectors", _vectors(lambda arrays: arrays["vectors"].__setitem__((2, 3), value)))
    found = LocalStore.open(str(store.folder))
    with pytest.raises(
        UserError, match=r"vectors-000002-0.safetensors is damaged \(it has numbers that are not finite"
    ):
        found.search(random_vectors(2, DIM, 0, "euclidean"), 100)
    assert (found.search(random_vectors(2, DIM, 0, "euclidean"), 3).ids >= 0).all()
    assert len(found.verify()) == (value != 1e30)


@pytest.mark.parametrize(
    "ids", [[50, 52, 51, 53, 54], [50, 51, 51, 53, 54], [49, 51, 52, 53, 54], [50, 51, 52, 53, 99]]
)
def test_ids_that_are_none(store: LocalStore, ids: list[int]) -> None:
    forge_file(store, 1, "vectors", _vectors(lambda arrays: arrays.__setitem__("ids", np.array(ids))))
    assert "is damaged (its ids do not ascend from 50 to 54)" in one_sentence(store.folder)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"path": ["a"] * 5, "label": ["b"] * 5}), "its columns are path, label"),
        (pa.table({"id": [1] * 5, "path": [1] * 5, "label": ["b"] * 5}), "its column path has values of type int64"),
        (pa.table({"id": [1] * 4, "path": ["a"] * 4, "label": ["b"] * 4}), "it has 4 rows"),
        (pa.table({"id": [[1]] * 5, "path": ["a"] * 5, "label": ["b"] * 5}), "its column id has values of type list"),
        (None, "Parquet magic bytes"),
        (pa.table({"id": [9] * 5, "path": ["a"] * 5, "label": ["b"] * 5}), "have other ids"),
    ],
)
def test_tables_that_are_others(store: LocalStore, table: pa.Table | None, said: str) -> None:
    forge_file(
        store,
        1,
        "items",
        lambda path: path.write_bytes(b"no table" * 9) if table is None else pq.write_table(table, path),
    )
    assert said in one_sentence(store.folder)


@pytest.mark.parametrize("ids", [[7, 3], [3, 3], [3, 2**40], [-5, 3]])
def test_removed_rows_that_are_none(store: LocalStore, ids: list[int]) -> None:
    """They are none of the gallery's: it is refused, or as if they were not removed."""
    removed = Manifest.read(store.folder).removed
    assert removed is not None
    path = store.folder / removed.name
    safetensors.numpy.save_file({"ids": np.array(ids)}, path)
    forge(store, removed=describe(path))
    try:
        found = LocalStore.open(str(store.folder)).search(random_vectors(1, DIM, 0, "euclidean"), 10)
    except UserError as error:
        assert "is damaged (it does not have the ids of the removed rows)" in str(error)  # noqa: PT017
    else:
        assert (found.ids >= 0).all()


@pytest.mark.parametrize("killed_at", range(9))
def test_a_deletion_that_is_killed_leaves_the_gallery_whole_or_gone(
    store: LocalStore, killed_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.build_index("hnsw")
    before, calls = content(store.folder), count()

    class KilledError(BaseException):
        pass

    def dying(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if next(calls) == killed_at:
                raise KilledError
            return work(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("rename", "unlink", "rmdir"):
            patch.setattr(Path, name, dying(getattr(Path, name)))
        with pytest.raises(KilledError):
            LocalStore.delete(str(store.folder))
    if killed_at == 0:
        assert content(store.folder) == before
        return
    with pytest.raises(UserError, match="holds no gallery"):
        LocalStore.open(str(store.folder))
    if killed_at % 2:
        assert len(LocalStore.create(str(store.folder), GalleryInfo(DIM))) == 0
        assert {path.name for path in store.folder.iterdir()} == {"manifest.json", ".lock", ".writer.json"}
    elif store.folder.exists() and any(path.name != ".lock" for path in store.folder.iterdir()):
        LocalStore.delete(str(store.folder))
        assert not store.folder.exists()


def test_only_what_a_gallery_has_written_is_deleted(store: LocalStore, tmp_path: Path) -> None:
    (store.folder / "photos").mkdir()
    (store.folder / "notes.txt").write_text("ours")
    LocalStore.delete(str(store.folder))
    assert {path.name for path in store.folder.iterdir()} == {"photos", "notes.txt"}
    other = tmp_path / "web"
    other.mkdir()
    (other / "manifest.json").write_text('{"name": "a page"}')
    (other / "vectors-000001-0.safetensors").write_text("theirs")
    for folder in (other, store.folder, tmp_path / "nowhere", tmp_path):
        with pytest.raises(UserError, match=r"holds no gallery|is damaged"):
            LocalStore.delete(str(folder))
    assert sorted(path.name for path in other.iterdir()) == ["manifest.json", "vectors-000001-0.safetensors"]


def test_a_gallery_is_not_deleted_while_another_process_writes(store: LocalStore, tmp_path: Path) -> None:
    process = warm.Process("-c", WRITER, store.folder, tmp_path / "writes")
    while not (tmp_path / "writes").exists():
        assert process.poll() is None, process.communicate()
    with pytest.raises(UserError, match=r"is being written to by process"):
        LocalStore.delete(str(store.folder))
    process.kill()
    process.communicate()
    assert len(LocalStore.open(str(store.folder))) == 53
