"""Full disks, several processes, kill -9 and damage in a gallery's folder."""

import resource
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import warm
from galleries import naive_search, random_vectors, some_items
from proxemic.errors import UserError
from proxemic.retrieval import Gallery
from proxemic.retrieval.galleries.backup import export_gallery
from proxemic.retrieval.galleries.stores import GalleryInfo
from proxemic.retrieval.galleries.stores.local import LocalStore

DIM = 8


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A store with removed rows."""
    store = LocalStore.create(str(tmp_path / "gallery"), GalleryInfo(DIM, "euclidean"))
    store.add(random_vectors(50, DIM, 0, "euclidean"), some_items(50))
    store.add(random_vectors(5, DIM, 1, "euclidean"), some_items(5, 50))
    store.remove({"path": ["/3.jpg", "/7.jpg"]})
    return store


def vectors_of(folder: Path) -> Path:
    """The only file of vectors."""
    (path,) = folder.glob("vectors-*.f32")
    return path


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
@pytest.mark.parametrize("space", [10, 300, 2000])
@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.add(random_vectors(400, DIM, 2, "euclidean"), some_items(400, 100)),
        lambda store: store.remove({"label": ["class 0", "class 1"]}),
    ],
    ids=["add", "remove"],
)
def test_a_full_disk_leaves_the_gallery_as_it_was(
    store: LocalStore, space: int, change: Callable[[LocalStore], object]
) -> None:
    before = content(store.folder)
    with disk_with(space), pytest.raises(UserError, match=r"could not be written: .*free some space"):
        change(store)
    assert content(store.folder) == before
    change(store)
    assert content(store.folder) != before
    store.add_roots(["/photos"])  # the next change removes a replaced file
    assert vectors_of(store.folder).stat().st_size >= 4 * DIM * len(store)


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
from proxemic.retrieval.galleries.stores.local import LocalStore

def work():
    store.remove({"label": "class 0"})
    Path(sys.argv[2]).touch()
    time.sleep(float(sys.argv[3]))

store = LocalStore.open(sys.argv[1])
store.transaction(work)
"""


@pytest.mark.parametrize("ends", [True, False], ids=["committed", "killed"])
def test_a_second_writer_waits_for_the_first_and_readers_go_on(store: LocalStore, tmp_path: Path, ends: bool) -> None:
    process = warm.Process("-c", WRITER, store.folder, tmp_path / "writes", "0.5" if ends else "100")
    while not (tmp_path / "writes").exists():
        assert process.poll() is None, process.communicate()
    assert len(store) == len(content(store.folder)) == 53
    assert (store.search(random_vectors(1, DIM), 53).ids >= 0).all()
    if not ends:
        process.kill()
    store.add(random_vectors(1, DIM), some_items(1, 99))
    process.communicate()
    assert len(store) == (36 if ends else 54)
    assert store.verify() == []


def test_who_waits_too_long_is_told(store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxemic.retrieval.galleries.stores.database._PATIENCE", 0.01)
    process = warm.Process("-c", WRITER, store.folder, tmp_path / "writes", "100")
    while not (tmp_path / "writes").exists():
        assert process.poll() is None, process.communicate()
    for change in (
        lambda: store.add(random_vectors(1, DIM), some_items(1, 99)),
        lambda: store.build_index("exact"),
        lambda: LocalStore.delete(str(store.folder)),
    ):
        with pytest.raises(UserError, match="is being written to by another process"):
            change()
    process.kill()
    process.communicate()


CHANGES = """
import sys, time
sys.path.insert(0, sys.argv[2])
from galleries import random_vectors, some_items
from proxemic.retrieval.galleries.stores.local import LocalStore
store = LocalStore.open(sys.argv[1])
for number in range(24):
    store.add(random_vectors(4, 8, number, "euclidean"), some_items(4, 100 + 4 * number, [str(number)] * 4))
    if number % 3 == 2:
        store.remove({"label": [str(number), str(number - 1)]})
    time.sleep(0.01)
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


def test_a_reader_keeps_its_state_when_files_are_replaced(store: LocalStore) -> None:
    reader, vectors, first = LocalStore.open(str(store.folder)), content(store.folder), vectors_of(store.folder)
    found = reader.search(random_vectors(1, DIM, 3, "euclidean"), 53)
    rows = reader.iterate(10)
    begun = [next(rows)]
    for number in range(4):
        store.add(random_vectors(60, DIM, number, "euclidean"), some_items(60, 100 + 60 * number))
    store.remove({"label": ["class 1", "class 2"]})
    store.add_roots(["/photos"])
    assert not first.exists()
    parts = [*begun, *rows]
    assert sum(len(table) for _, table in parts) == 53
    assert b"".join(part.tobytes() for part, _ in parts) == b"".join(row[-1] for row in vectors)
    left = reader.items(found.ids[0])["id"].to_pylist()
    assert left == [number for number in found.ids[0].tolist() if number % 3 == 0], "rows that are still there"
    assert len(reader) == len(store)


def test_removed_rows_do_not_stay_for_ever(tmp_path: Path) -> None:
    rows, vectors = 20_000, random_vectors(20_000, 4)
    store = LocalStore.create(str(tmp_path / "gallery"), GalleryInfo(4, features=2))
    features = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    store.add(vectors, some_items(rows), features)
    reader = LocalStore.open(str(store.folder))
    size = vectors_of(store.folder).stat().st_size
    for gone in (3, 2, 5):
        store.remove({"path": [f"/{number}.jpg" for number in range(0, rows, gone)]})
        store.add(vectors[:1], some_items(1, 10**6), features[:1])  # replaces itself
    left = {number: vectors[number] for number in range(rows) if number % 3 and number % 2 and number % 5}
    assert vectors_of(store.folder).stat().st_size <= size / 2
    assert len([*store.folder.iterdir()]) == 3
    for value in (store, reader, LocalStore.open(str(store.folder))):
        assert len(value) == len(left) + 1
        _, ids = naive_search(vectors[:3], {**left, rows + 2: vectors[0]}, 4, "cosine")
        np.testing.assert_array_equal(value.search(vectors[:3], 4).ids, ids)
        chosen = np.array([*left])[[5, 77, 4000]]
        np.testing.assert_array_equal(value.features(chosen), features[chosen])
        np.testing.assert_array_equal(value.rows(chosen)[0], vectors[chosen])
        assert value.verify() == []


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
    LocalStore.create(str(tmp_path / "gallery"), GalleryInfo(DIM))
    with pytest.raises(UserError, match="holds a gallery: add to it"):
        LocalStore.create(str(tmp_path / "gallery"), GalleryInfo(DIM))
    (tmp_path / "file").touch()
    for make in (lambda place: LocalStore.create(place, GalleryInfo(DIM)), LocalStore.open):
        with pytest.raises(UserError, match=r"is a file|holds no gallery"):
            make(str(tmp_path / "file"))


def test_another_gallery_in_its_place_is_noticed(store: LocalStore, tmp_path: Path) -> None:
    shutil.rmtree(store.folder)
    with pytest.raises(UserError, match="does not exist"):
        len(store)
    LocalStore.create(str(store.folder), GalleryInfo(DIM + 1))
    with pytest.raises(UserError, match="is another gallery than the one that was opened: open it again"):
        store.search(random_vectors(1, DIM), 1)


def test_damaged_vectors_are_found_and_never_copied(store: LocalStore, tmp_path: Path) -> None:
    path = vectors_of(store.folder)
    sound = path.read_bytes()
    changes: list[Callable[[LocalStore], object]] = [
        lambda item: item.remove({"label": ["class 0", "class 1"]}),
        lambda item: export_gallery(Gallery(item), tmp_path / "copy.parquet"),
    ]
    flipped = sound[:40] + bytes([sound[40] ^ 4]) + sound[41:]
    for damaged in (b"", sound[:-1], flipped, None):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        for change in changes:
            with pytest.raises(UserError, match=rf"{path} is damaged \(.+\): put the folder back from a copy"):
                change(LocalStore.open(str(store.folder)))
        (problem,) = LocalStore.open(str(store.folder)).verify()
        assert str(path) in problem
    path.write_bytes(flipped)
    store.add(random_vectors(9, DIM), some_items(9, 500))
    assert len(store.verify()) == 1, "a checksum of further rows does not make them sound"
    path.write_bytes(sound + path.read_bytes()[len(sound) :])
    assert store.verify() == []
    assert not (tmp_path / "copy.parquet").exists()


def test_a_shortened_file_gets_no_new_rows(store: LocalStore) -> None:
    path = vectors_of(store.folder)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match="is damaged"):
        store.add(random_vectors(1, DIM), some_items(1, 99))


def test_what_a_killed_writer_left_is_cut(store: LocalStore) -> None:
    path = vectors_of(store.folder)
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"rows that no transaction has named")
    assert store.verify() == []
    store.add(random_vectors(1, DIM), some_items(1, 99))
    assert path.stat().st_size == size + 4 * DIM
    assert store.verify() == []


@pytest.mark.parametrize("content", [b"{}", b"SQLite format 3\0" + bytes(100), b"\xff" * 5000])
def test_what_is_no_database(store: LocalStore, content: bytes) -> None:
    (store.folder / "gallery.sqlite").write_bytes(content)
    for use in (LocalStore.open, LocalStore.delete, lambda folder: LocalStore.create(folder, GalleryInfo(DIM))):
        with pytest.raises(UserError, match=r"gallery.sqlite is damaged \(file is not a database\)"):
            use(str(store.folder))


def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "gallery.sqlite")) as db:
        db.execute("CREATE TABLE pictures(name)")
        db.commit()
    before = (tmp_path / "gallery.sqlite").read_bytes()
    for use in (LocalStore.open, LocalStore.delete):
        with pytest.raises(UserError, match="holds no gallery"):
            use(str(tmp_path))
    with pytest.raises(UserError, match="is not empty"):
        LocalStore.create(str(tmp_path), GalleryInfo(4))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


FOR_EVER = """
import sys
sys.path.insert(0, sys.argv[2])
from galleries import random_vectors, some_items
from proxemic.retrieval.galleries.stores.local import LocalStore
store = LocalStore.open(sys.argv[1])
while True:
    first = int(store.next_ids(count=10**6)[-1]) + 1
    vectors = random_vectors(4, 8, first, "euclidean")
    store.add(vectors, some_items(4, first, [f"group {first}"] * 4))
    store.add(vectors, some_items(4, first, [f"again {first}"] * 4))
    if first % 3:
        store.remove({"label": f"again {first}"})
"""


def test_a_killed_writer_leaves_the_state_before_or_after(store: LocalStore) -> None:
    for moment in range(6):
        before = len(store)
        process = warm.Process("-c", FOR_EVER, store.folder, Path(__file__).parents[3])
        while len(store) == before:
            assert process.poll() is None, process.communicate()
        time.sleep(0.013 * moment)
        process.kill()
        process.communicate()
        assert LocalStore.open(str(store.folder)).verify() == []
        groups = store.count_labels()
        assert all(number == 4 for label, number in groups.items() if label and not label.startswith("class"))
        store.add_roots([f"/{moment}"])
        vectors_of(store.folder)


def test_a_deletion_that_is_killed_leaves_the_gallery_whole_or_gone(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, base = content(store.folder), shutil.copytree(store.folder, tmp_path / "base")
    killed = MemoryError("killed")
    for moment in range(3):
        calls = count()

        def dying(work: Callable[..., Any], moment: int = moment, calls: Iterator[int] = calls) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                if next(calls) == moment:
                    raise killed
                return work(*arguments, **options)

            return call

        folder = shutil.copytree(base, tmp_path / str(moment))
        opened = LocalStore.open(str(folder))
        with monkeypatch.context() as patch:
            for name in ("unlink", "rmdir"):
                patch.setattr(Path, name, dying(getattr(Path, name)))
            with pytest.raises(MemoryError):
                LocalStore.delete(str(folder))
        if moment == 0:
            assert content(folder) == before
            continue
        for use in (
            lambda folder=folder: LocalStore.open(str(folder)),
            lambda folder=folder: LocalStore.delete(str(folder)),
            lambda opened=opened: opened.add(random_vectors(1, DIM), some_items(1, 99)),
        ):
            with pytest.raises(UserError, match="holds no gallery"):
                use()
        assert len(LocalStore.create(str(folder), GalleryInfo(DIM))) == 0
        assert {path.name for path in folder.iterdir()} == {"gallery.sqlite"}


def test_only_what_a_gallery_has_written_is_deleted(store: LocalStore, tmp_path: Path) -> None:
    (store.folder / "notes.txt").write_text("ours")
    of_another = f"vectors-{'0' * 16}-0.f32"
    (store.folder / of_another).write_text("another gallery's")
    LocalStore.delete(str(store.folder))
    assert {path.name for path in store.folder.iterdir()} == {"notes.txt", of_another}
    (other := tmp_path / "web").mkdir()
    (other / "gallery.sqlite").write_text("no database")
    for folder in (other, store.folder, tmp_path / "nowhere", tmp_path):
        with pytest.raises(UserError, match=r"holds no gallery|does not exist|is damaged"):
            LocalStore.delete(str(folder))
    assert [path.name for path in other.iterdir()] == ["gallery.sqlite"]


def test_a_copy_of_a_folder_is_a_gallery_of_its_own(store: LocalStore, tmp_path: Path) -> None:
    copy = LocalStore.open(str(shutil.copytree(store.folder, tmp_path / "copy")))
    before = content(store.folder)
    copy.add(random_vectors(3, DIM, 4, "euclidean"), some_items(3, 200))
    copy.remove({"label": ["class 0", "class 1"]})
    copy.add_roots(["/photos"])
    assert content(store.folder) == before
    assert copy.verify() == []


READS = """
import os, sys
if os.geteuid() == 0:
    os.setuid(65534)  # root may write everywhere
from proxemic.errors import UserError
from proxemic.retrieval.galleries.stores.local import LocalStore
store = LocalStore.open(sys.argv[1])
print(len(store), len(store.items(store.next_ids())), store.verify())
try:
    store.remove({"label": "class 0"})
except UserError as error:
    print(error)
"""


def test_a_folder_that_cannot_be_written_can_be_read(store: LocalStore) -> None:
    with TemporaryDirectory() as made:  # pytest's folder is closed to other users
        Path(made).chmod(0o755)
        folder = Path(shutil.copytree(store.folder, Path(made) / "gallery"))
        for path in folder.iterdir():
            path.chmod(0o444)
        folder.chmod(0o555)
        done = warm.run("-c", READS, folder)
        folder.chmod(0o755)
    first, second = done.stdout.splitlines()
    assert first == "53 24 []", done.stderr
    assert "could not be written: " in second
    assert len(store) == 53
