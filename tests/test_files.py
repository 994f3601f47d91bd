"""Files that are whole or not there, what a kill leaves of them, and names that lead elsewhere."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from leftovers import killed_at
from proxemic import files
from proxemic.data.remote import write_to
from proxemic.errors import UserError
from proxemic.files import new_directory, remove_stale_temporaries, working_folder, write_atomically, write_text


def write_and_die(path: Path) -> None:
    with write_atomically(path) as temporary, working_folder(path) as folder:
        (folder / "part").touch()
        temporary.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_killed_processes_left_is_removed_by_the_next_that_writes_there(tmp_path: Path) -> None:
    stays = [tmp_path / name for name in (".note.txt.tmp", ".note.txt.999999999.tmp", f".note.txt.{'9' * 30}.work")]
    for path in stays:
        path.touch()
    process = multiprocessing.get_context("fork").Process(target=write_and_die, args=(tmp_path / "note.txt",))
    process.start()
    process.join()
    assert len(list(tmp_path.glob(f".note.txt.*.{process.pid}.*"))) == 2
    with write_atomically(tmp_path / "note.txt"), working_folder(tmp_path / "note.txt"):
        write_text(tmp_path / "other.txt", "the file and the folder of a running process stay")
        assert len(list(tmp_path.glob(f".note.txt.*.{os.getpid()}.*"))) == 2
    assert {*tmp_path.iterdir()} == {*stays, tmp_path / "note.txt", tmp_path / "other.txt"}


def test_files_of_other_machines_stay_for_a_day_and_in_a_locked_folder_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(files, "_MACHINE", "0" * 8)
        new, old = killed_at(tmp_path / "new.txt"), killed_at(tmp_path / "old.txt")
        (tmp_path / "runs").mkdir()
        deep = killed_at(tmp_path / "runs" / "a.csv")
    before = time.time() - 90_000
    os.utime(old, (before, before))
    write_text(tmp_path / "note.txt", "whole")
    assert new.exists()
    assert not old.exists()
    remove_stale_temporaries(tmp_path)
    assert not new.exists()
    assert not deep.exists()
    assert (tmp_path / "note.txt").read_text() == "whole"


def test_a_link_at_the_name_of_a_temporary_file_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "00000000")  # as if the name had been guessed
    for number in range(2):
        link = files._temporary(tmp_path / f"{number}.txt", "tmp")
        link.symlink_to(precious)
        with pytest.raises(UserError, match="could not be written"):
            write_text(tmp_path / f"{number}.txt", "theirs")
        link.unlink(missing_ok=True)
    (tmp_path / f".0.txt.{os.getpid()}.tmp").symlink_to(precious)  # the name by process alone, which all can guess
    monkeypatch.undo()
    write_text(tmp_path / "0.txt", "ours")
    assert precious.read_text() == "mine"
    assert (tmp_path / "0.txt").read_text() == "ours"


def test_the_copy_of_a_remote_file_follows_no_link(tmp_path: Path) -> None:
    precious, cache = tmp_path / "precious", tmp_path / "cache"
    precious.write_text("mine")
    cache.mkdir()
    (cache / "vectors.npy").symlink_to(precious)
    with write_to("memory://bucket/vectors.npy", cache) as local:
        local.write_text("ours")
    assert precious.read_text() == "mine"
    assert [path.name for path in cache.iterdir()] == ["vectors.npy"]


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_only_regular_files_are_replaced(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    if kind == "device":
        path.symlink_to("/dev/null")
    else:
        path.mkdir() if kind == "folder" else os.mkfifo(path)
    before = path.lstat().st_mode
    with pytest.raises(UserError, match="not a regular file"):
        write_text(path, "text")
    assert path.lstat().st_mode == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_written_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a loss of power could leave an empty file of that name."""
    path, flushed = tmp_path / "note.txt", []

    def flush(number: int) -> None:
        flushed.append((os.pread(number, 10, 0), path.exists()))

    monkeypatch.setattr(files.os, "fsync", flush)
    write_text(path, "whole")
    assert flushed == [(b"whole", False)]
    assert path.read_text() == "whole"


def test_on_windows_no_process_is_asked_whether_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, signal 0 would end it; its open files cannot be removed."""
    monkeypatch.setattr(files.os, "kill", lambda *_: pytest.fail("a signal was sent"))
    stale = killed_at(tmp_path / "note.txt")
    with monkeypatch.context() as patch:
        patch.setattr(files, "os", SimpleNamespace(name="nt", getpid=os.getpid, kill=os.kill))
        remove_stale_temporaries(tmp_path)
    assert not stale.exists()


def test_files_have_the_permissions_of_new_files(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-c", "import os, sys; os.umask(0o027); from pathlib import Path\n"
         "from proxemic.files import write_text; write_text(Path(sys.argv[1]), 'a')", tmp_path / "a.txt"],
        check=True,
    )  # fmt: skip
    assert made.returncode == 0
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o640


def test_new_directories_bear_a_name_and_the_time() -> None:
    path = new_directory("cub/arcface.yaml")
    assert path.parent == Path("runs")
    assert path.name.startswith("cub-arcface-2")
