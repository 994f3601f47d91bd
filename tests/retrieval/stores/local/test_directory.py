"""Full disks, several processes, damage and malice in a gallery's folder."""

import hashlib
import io
import re
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import warm
from galleries import random_vectors, some_items
from proxemic.errors import UserError
from proxemic.retrieval import Gallery
from proxemic.retrieval.stores import GalleryInfo
from proxemic.retrieval.stores.local import LocalStore
from proxemic.retrieval.stores.local.database import File, State, connect, read_state, write_state

DIM = 8


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A store of two segments, the first with removed rows."""
    store = LocalStore.create(str(tmp_path / "gallery"), GalleryInfo(DIM, "euclidean"))
    store.add(random_vectors(50, DIM, 0, "euclidean"), some_items(50))
    store.add(random_vectors(5, DIM, 1, "euclidean"), some_items(5, 50))
    store.remove({"path": ["/3.jpg", "/7.jpg"]})
    assert len(store._snapshot.segments) == 2
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
    # The next change removes half-written and replaced files.
    store.add_roots(["/photos"])
    assert {path.name for path in store.folder.glob("*-*")} == store._snapshot.state.names()


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
from proxemic.retrieval.stores.local import LocalStore
with LocalStore.open(sys.argv[1])._changing():
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
        lambda: LocalStore.delete(str(store.folder)),
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
    first = store._snapshot.state.segments[0].vectors.name
    found = reader.search(random_vectors(1, DIM, 3, "euclidean"), 53)
    rows = reader.iterate(10)
    for number in range(4):
        store.add(random_vectors(60, DIM, number, "euclidean"), some_items(60, 100 + 60 * number))
    store.remove({"label": "class 1"})
    store.add_roots(["/photos"])
    assert not (store.folder / first).exists()
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


def test_large_segments_are_not_written_again(tmp_path: Path) -> None:
    store = LocalStore.create(str(tmp_path / "gallery"), GalleryInfo(2))
    vectors = random_vectors(70_000, 2)
    store.add(vectors, some_items(70_000))
    first = {path.name: path.stat().st_ino for path in store.folder.glob("*-*")}
    store.add(vectors[:40_000], some_items(40_000, 70_000))
    store.remove({"path": "/5.jpg"})
    assert first.items() <= {path.name: path.stat().st_ino for path in store.folder.glob("*-*")}.items()
    for _ in range(3):
        store.add(vectors[:1], some_items(1, 200_000 + len(store)))
    assert len(store._snapshot.segments) == 3  # single rows are written again together


def test_every_flipped_byte_is_found(store: LocalStore) -> None:
    """Or does not matter, as pages of SQLite have unused bytes."""
    store.build_index("hnsw", m=2)
    store.add_roots(["/photos"])  # removes the files of the state before
    before, index = content(store.folder), store.index
    files = sorted(store.folder.glob("[!.]*"))
    assert len(files) == 6
    for path in files:
        sound, rng = path.read_bytes(), np.random.default_rng(0)
        is_database = path.suffix == ".sqlite"
        places = {0, len(sound) - 1, *rng.integers(len(sound), size=60 if is_database else 12).tolist()}
        for place in places:
            damaged = bytearray(sound)
            damaged[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged)
            try:
                problems = LocalStore.open(str(store.folder)).verify()
            except UserError as error:
                problems = [str(error)]
            assert all(str(store.folder) in problem and "\n" not in problem for problem in problems)
            if not problems:
                assert is_database, (path.name, place)
                assert content(store.folder) == before
                assert LocalStore.open(str(store.folder)).index == index
        path.write_bytes(sound)
    assert LocalStore.open(str(store.folder)).verify() == []


def one_sentence(folder: Path) -> str:
    """Collect the messages of all first uses of a folder."""
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
    assert all("\n" not in value and len(value) < 600 for value in (*said, *verified))
    return " ".join([*said, *verified])


def test_truncated_and_swapped_files(store: LocalStore, tmp_path: Path) -> None:
    other = LocalStore.create(str(tmp_path / "other"), GalleryInfo(DIM, "euclidean"))
    other.add(random_vectors(50, DIM, 7, "euclidean"), some_items(50, labels=["class 3"] * 50))
    for kind in ("vectors", "items"):
        ours, theirs = (getattr(value._snapshot.state.segments[0], kind).name for value in (store, other))
        path, sound = store.folder / ours, (store.folder / ours).read_bytes()
        for content_now in (b"", sound[: len(sound) // 2], sound + b"x", (other.folder / theirs).read_bytes()):
            path.write_bytes(content_now)
            assert f"{path} is damaged (it" in one_sentence(store.folder)
        path.unlink()
        assert f"{path} is damaged (it is missing)" in one_sentence(store.folder)
        path.write_bytes(sound)
    shutil.copy(other.folder / "gallery.sqlite", store.folder)
    assert "is damaged (it is missing)" in one_sentence(store.folder)


@pytest.mark.parametrize("kind", ["vectors", "items"])
def test_damage_is_not_copied_into_new_files(store: LocalStore, kind: str) -> None:
    """A change that would write damaged rows again, with a checksum that is right, is refused."""
    path = store.folder / getattr(store._snapshot.state.segments[0], kind).name
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    changes: list[Callable[[LocalStore], object]] = [
        lambda item: item.add(random_vectors(200, DIM, 2, "euclidean"), some_items(200, 100)),
        lambda item: item.remove({"label": ["class 0", "class 1"]}),
    ]
    for change in changes:
        with pytest.raises(UserError, match=f"{path.name} is damaged"):
            change(LocalStore.open(str(store.folder)))
    assert len(LocalStore.open(str(store.folder))) == 53


def forge(store: LocalStore, change: Callable[[State], object]) -> None:
    """Write a state with a right checksum, as somebody does who means harm."""
    with connect(store.folder, "written") as db:
        db.execute("BEGIN IMMEDIATE")
        state = read_state(db, store.folder)
        forged = replace(state)
        change(forged)
        write_state(db, state.segments, forged)
        db.execute("COMMIT")


def forge_file(store: LocalStore, number: int, kind: str, written: bytes) -> Path:
    """Replace a file of a segment, with all sizes and checksums that fit."""
    segments = [*store._snapshot.state.segments]
    path = store.folder / getattr(segments[number], kind).name
    path.write_bytes(written)
    file = File(path.name, len(written), hashlib.sha256(written).hexdigest())
    segments[number] = replace(segments[number], **{kind: file})
    forge(store, lambda state: object.__setattr__(state, "segments", tuple(segments)))
    return path


def npy(header: str, body: bytes = bytes(160)) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode("latin-1") + body


SHAPED = "{{'descr': {}, 'fortran_order': False, 'shape': {}, }}"


@pytest.mark.parametrize(
    "written",
    [
        b"",
        npy(SHAPED.format("'|O'", (5, 8)).ljust(117) + "\n"),
        npy(SHAPED.format("'<f4'", (4, 8)).ljust(117) + "\n"),
        npy(SHAPED.format("'<f4'", (5, 8)).ljust(117) + "\n", b""),  # no bytes
    ],
)
def test_headers_that_lie(store: LocalStore, written: bytes) -> None:
    path = forge_file(store, 1, "vectors", written)
    assert f"{path} is damaged (" in one_sentence(store.folder)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_numbers_that_are_none(store: LocalStore, value: float) -> None:
    vectors, file = np.array(store._snapshot.segments[1].vectors), io.BytesIO()
    vectors[2, 3] = value
    np.save(file, vectors)
    path = forge_file(store, 1, "vectors", file.getvalue())
    found = LocalStore.open(str(store.folder))
    with pytest.raises(UserError, match=rf"{path.name} is damaged \(it has numbers that are not finite"):
        found.search(random_vectors(2, DIM, 0, "euclidean"), 100)
    assert (found.search(random_vectors(2, DIM, 0, "euclidean"), 3).ids >= 0).all()
    assert len(found.verify()) == (value != 1e30)


def arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def hostile(offsets: list[int], text: bytes = b"a") -> bytes:
    """Two columns of five texts, with other offsets and bytes than Arrow would write."""
    written = arrow(pa.table({"path": ["a"] * 5, "label": ["a"] * 5}))
    right = np.arange(6, dtype=np.int32).tobytes()
    assert right in written
    assert b"a" * 5 in written
    return written.replace(right, np.array(offsets, np.int32).tobytes()).replace(b"a" * 5, text * 5)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (arrow(pa.table({"path": ["a"] * 5, "other": ["b"] * 5})), "its columns are path: string other"),
        (arrow(pa.table({"path": [1] * 5, "label": ["b"] * 5})), "its columns are path: int64"),
        (arrow(pa.table({"path": ["a"] * 4, "label": ["b"] * 4})), "it has 4 rows"),
        (arrow(pa.table([pa.array(["a"] * 5)] * 3, names=["path", "label", "path"])), "its columns are path"),
        (hostile([0, 1, 2, 3, 4, 10**9]), "is damaged ("),
        (hostile([0, 1, 2, 3, 4, 5], b"\xff"), "is damaged ("),
        (b"no table" * 9, "Not an Arrow file"),
        (arrow(pa.table({"path": ["a"] * 5, "label": ["b"] * 5}))[:-9] + bytes(9), "is damaged ("),
    ],
)
def test_tables_that_are_others(store: LocalStore, written: bytes, said: str) -> None:
    path = forge_file(store, 1, "items", written)
    assert f"{path} is damaged (" in (sentence := one_sentence(store.folder))
    assert said in sentence


FOR_EVER = """
import sys
sys.path.insert(0, sys.argv[2])
from galleries import random_vectors, some_items
from proxemic.retrieval.stores.local import LocalStore
store = LocalStore.open(sys.argv[1])
while True:
    first = int(store.next_ids(count=10**6)[-1]) + 1
    vectors = random_vectors(4, 8, first, "euclidean")
    store.add(vectors, some_items(4, first, [f"group {first}"] * 4))
    store.replace_rows(vectors, some_items(4, first, [f"again {first}"] * 4))
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
        store.add_roots([f"/again {moment}"])
        assert {path.name for path in store.folder.glob("*-*")} == store._snapshot.state.names()


def test_a_deletion_that_is_killed_leaves_the_gallery_whole_or_gone(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, base = content(store.folder), shutil.copytree(store.folder, tmp_path / "base")
    killed = MemoryError("killed")
    for moment in range(7):
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
        assert {path.name for path in folder.iterdir()} == {"gallery.sqlite", ".writer.json"}


def test_only_what_a_gallery_has_written_is_deleted(store: LocalStore, tmp_path: Path) -> None:
    (store.folder / "notes.txt").write_text("ours")
    of_another = re.sub("-[0-9a-f]{16}-", f"-{'0' * 16}-", store._snapshot.state.segments[0].vectors.name)
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
from proxemic.retrieval.stores.local import LocalStore
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
