"""Files that are whole or not there, and what a kill leaves of them."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from proxemic import files
from proxemic.files import new_directory, remove_stale_temporaries, write_text


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    write_text(tmp_path / "note.txt", "kept")
    stays = [tmp_path / "note.txt"]
    # Another process that runs, and names that are not of `write_atomically`.
    for name in (f".note.txt.{os.getppid()}.tmp", ".note.txt.tmp", ".together.0a1b2c.tmp", f"note.{killed.pid}.tmp"):
        (tmp_path / name).touch()
        stays.append(tmp_path / name)
    for stale in (tmp_path / f".note.txt.{killed.pid}.tmp", tmp_path / "runs" / f".a.csv.{os.getpid()}.tmp"):
        write_text(stale, "half")
    remove_stale_temporaries(tmp_path)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(stays)


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
    stale = tmp_path / f".note.txt.{os.getppid()}.tmp"
    stale.touch()
    with monkeypatch.context() as patch:
        patch.setattr(files, "os", SimpleNamespace(name="nt", getpid=os.getpid, kill=os.kill))
        remove_stale_temporaries(tmp_path)
    assert not stale.exists()


def test_new_directories_bear_a_name_and_the_time() -> None:
    path = new_directory("cub/arcface.yaml")
    assert path.parent == Path("runs")
    assert path.name.startswith("cub-arcface-2")
