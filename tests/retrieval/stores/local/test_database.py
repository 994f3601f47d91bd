"""Databases that somebody else wrote."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from galleries import random_vectors, some_items
from proxemic.errors import UserError
from proxemic.retrieval.stores import GalleryInfo
from proxemic.retrieval.stores.local import LocalStore, database


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a gallery of two segments with an index and a removed row."""
    store = LocalStore.create(str(tmp_path_factory.mktemp("sound") / "gallery"), GalleryInfo(4))
    store.add(random_vectors(300, 4), some_items(300))
    store.add(random_vectors(20, 4), some_items(20, 300))
    store.build_index("hnsw")
    store.remove({"path": "/3.jpg"})
    store.remove({"path": [f"/{number}.jpg" for number in range(301, 315)]})
    return {path.name: path.read_bytes() for path in store.folder.iterdir()}


@pytest.fixture
def folder(sound: dict[str, bytes], tmp_path: Path) -> Path:
    for name, content in sound.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def rewrite(folder: Path, *statements: str) -> None:
    """Change the database, and give it the checksum that it would have."""
    with closing(sqlite3.connect(folder / "gallery.sqlite", isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)
        db.execute("UPDATE gallery SET value = ? WHERE key = 'sha256'", (database._checksum(db),))


def test_what_is_written_is_read(folder: Path) -> None:
    with database.connect(folder, "read") as db:
        state = database.read_state(db, folder)
    assert (state.next_id, [entry.rows for entry in state.segments]) == (320, [300, 6])
    assert state.segments[1].all_ids().tolist() == [300, *range(315, 320)]
    rewrite(folder)
    assert LocalStore.open(str(folder)).verify() == []


def in_files(old: str, new: str, first: int = 300) -> str:
    """A segment whose files are described in another way."""
    return f"UPDATE segments SET files = replace(files, '{old}', '{new}') WHERE first = {first}"


def in_gallery(key: str, value: str) -> str:
    return f"UPDATE gallery SET value = {value} WHERE key = '{key}'"


@pytest.mark.parametrize(
    "change",
    [
        in_files('"vectors-', '"../../etc/vectors-'),
        in_files('"vectors-', '"items-'),
        in_files('.npy"', '.npy/../x"'),
        in_files('"vectors-', '3, "'),
        in_files('"items":', '"features":'),
        "UPDATE segments SET files = '{}'",
        "UPDATE segments SET rows = 0",
        "UPDATE segments SET rows = 'many'",
        "UPDATE segments SET rows = 9223372036854775807, last = 9223372036854775807",
        "UPDATE segments SET last = 310 WHERE first = 0",
        "UPDATE segments SET ids = x'ff' WHERE first = 300",
        "UPDATE segments SET ids = 'abc' WHERE first = 300",
        "UPDATE segments SET removed = x'ffff' WHERE first = 300",
        in_gallery("next_id", "'5'"),
        in_gallery("next_id", "'\"x\"'"),
        in_gallery("token", "'\"../../../../etc/\"'"),
        in_gallery("columns", "'[\"path\"]'"),
        in_gallery("columns", '\'["path", "label", 3]\''),
        in_gallery("columns", "printf('%.*c', 100000, '[')"),
        in_gallery("roots", "'[3]'"),
        in_gallery("roots", "CAST(x'ff' AS TEXT)"),
        in_gallery("info", "replace(value, '\"dim\": 4', '\"dim\": 0')"),
        in_gallery("info", "replace(value, '\"dim\": 4', '\"dim\": 5')"),
        in_gallery("info", "replace(value, 'cosine', 'manhattan')"),
        in_gallery("index", "replace(value, 'hnsw', 'os.system')"),
        in_gallery("index", "replace(value, '\"recall\": ', '\"recall\": 9')"),
        in_gallery("index", 'replace(value, \'"m": 16\', \'"m": "16"\')'),
        in_gallery("index", "replace(value, '\"index-', '\"../index-')"),
        "DELETE FROM gallery WHERE key = 'info'",
        "CREATE VIEW more AS SELECT 1",
        "CREATE TRIGGER more AFTER DELETE ON gallery BEGIN DELETE FROM segments; END",
        "PRAGMA user_version=0",
        "PRAGMA journal_mode=WAL",
    ],
)
def test_a_hostile_database_is_refused_in_one_sentence(folder: Path, change: str) -> None:
    with suppress(sqlite3.OperationalError):  # a text that is not UTF-8
        rewrite(folder, change)
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(
        UserError, match=rf"{folder}/[\w.-]+ is damaged \(.+\): put the folder back from a copy"
    ) as said:
        LocalStore.open(str(folder))
    assert "\n" not in str(said.value)
    assert len(str(said.value)) < 500
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_checksum_that_is_another(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "gallery.sqlite")) as db, db:
        db.execute("UPDATE gallery SET value = '1000' WHERE key = 'next_id'")
    with pytest.raises(UserError, match="its checksum is another"):
        LocalStore.open(str(folder))


def test_a_newer_schema_is_refused(folder: Path) -> None:
    rewrite(folder, f"PRAGMA user_version={database.FORMAT + 1}", "CREATE TABLE decisions(a)")
    for use in (LocalStore.open, LocalStore.delete):
        with pytest.raises(UserError, match=r"was written by a newer version of proxemic: update"):
            use(str(folder))
    rewrite(folder, "DROP TABLE decisions", f"PRAGMA user_version={database.FORMAT}")
    assert LocalStore.open(str(folder)).verify() == []


@pytest.mark.parametrize("content", [b"{}", b"SQLite format 3\0" + bytes(100), b"\xff" * 5000])
def test_what_is_no_database(folder: Path, content: bytes) -> None:
    (folder / "gallery.sqlite").write_bytes(content)
    with pytest.raises(UserError, match=r"gallery.sqlite is damaged \(file is not a database\)"):
        LocalStore.open(str(folder))


@pytest.mark.parametrize("application", [0, 7])
def test_the_database_of_another_program_is_left_alone(tmp_path: Path, application: int) -> None:
    with closing(sqlite3.connect(tmp_path / "gallery.sqlite")) as db:
        db.execute("CREATE TABLE pictures(name)")
        db.execute(f"PRAGMA application_id={application}")
        db.commit()
    before = (tmp_path / "gallery.sqlite").read_bytes()
    for use in (LocalStore.open, LocalStore.delete):
        with pytest.raises(UserError, match="holds no gallery"):
            use(str(tmp_path))
    with pytest.raises(UserError, match="is not empty"):
        LocalStore.create(str(tmp_path), GalleryInfo(4))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]
