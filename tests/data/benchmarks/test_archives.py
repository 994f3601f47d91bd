import errno
import gzip
import io
import os
import shutil
import signal
import tarfile
import time
import zipfile
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from data.benchmarks.miniature import pack, write_cub
from proxemic.data.benchmarks import archives
from proxemic.data.benchmarks.archives import unpack


def content(tree: Path) -> dict[str, bytes]:
    return {path.relative_to(tree).as_posix(): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cub(tmp_path_factory.mktemp("birds"), classes=4, images=2) / "CUB_200_2011"


@pytest.mark.parametrize("ending", ["zip", "tgz"])
def test_a_folder_is_unpacked_beside_its_archive(birds: Path, tmp_path: Path, ending: str) -> None:
    archive = pack(birds, tmp_path / f"birds.{ending}")
    left = tmp_path / ".CUB_200_2011.unpacking"
    left.mkdir()
    (left / "half").write_text("of a killed process")
    for _ in range(2):
        assert content(unpack(archive, "CUB_200_2011")) == content(birds)
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["CUB_200_2011", archive.name])


@pytest.mark.parametrize("ending", ["zip", "tgz"])
def test_damage_is_told_and_leaves_nothing(birds: Path, tmp_path: Path, ending: str) -> None:
    archive = pack(birds, tmp_path / f"birds.{ending}")
    whole = archive.read_bytes()
    middle = len(whole) // 2
    holed = whole[:middle] + bytes(64) + whole[middle + 64 :]
    for damaged in (whole[: len(whole) // 3], whole[:-30], holed, b"", b"no archive"):
        archive.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"is damaged or cut short \(.*delete it and fetch it again"):
            unpack(archive, "CUB_200_2011")
        assert [path.name for path in tmp_path.iterdir()] == [archive.name]


def test_another_archive(birds: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no folder car_ims"):
        unpack(pack(birds, tmp_path / "birds.tgz"), "car_ims")


def hostile_tgz(path: Path, member: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as opened:
        opened.addfile(member, io.BytesIO(b"1234"[: member.size]))
    return path


def hostile_zip(path: Path, name: str, mode: int = 0) -> Path:
    member = zipfile.ZipInfo(name)
    member.external_attr = mode << 16
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr(member, "/etc")
    return path


def test_names_that_lead_outside_and_links(tmp_path: Path) -> None:
    for name in ("tree/../../out.txt", "/tree/out.txt"):
        member = tarfile.TarInfo(name)
        member.size = 4
        for archive in (hostile_tgz(tmp_path / "a.tgz", member), hostile_zip(tmp_path / "a.zip", name)):
            with pytest.raises(ValueError, match="leads out of its folder"):
                unpack(archive, "tree")
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
        link = tarfile.TarInfo("tree/link")
        link.type, link.linkname = kind, "/etc/passwd"
        with pytest.raises(ValueError, match="holds a link"):
            unpack(hostile_tgz(tmp_path / "a.tgz", link), "tree")
    with pytest.raises(ValueError, match="holds a link"):
        unpack(hostile_zip(tmp_path / "a.zip", "tree/link", mode=0o120777), "tree")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tgz", "a.zip"]


@pytest.mark.parametrize("ending", ["zip", "tgz"])
def test_a_small_disk_is_told_before(birds: Path, tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = pack(birds, tmp_path / f"birds.{ending}")
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ValueError, match=r"to be unpacked, but .* has 0\.0 GB free"):
        unpack(archive, "CUB_200_2011")
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]


@pytest.mark.parametrize(("ending", "module"), [("zip", shutil), ("tgz", tarfile)])
def test_a_disk_that_fills_up_is_told_and_leaves_nothing(
    birds: Path, tmp_path: Path, ending: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    archive = pack(birds, tmp_path / f"birds.{ending}")
    monkeypatch.setattr(module, "copyfileobj", fail)
    with pytest.raises(ValueError, match=r"could not be unpacked to .*CUB_200_2011: No space left on device"):
        unpack(archive, "CUB_200_2011")
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]


def test_a_checksum_is_read_after_whatever_follows_the_last_file(birds: Path, tmp_path: Path) -> None:
    archive = pack(birds, tmp_path / "birds.tgz")
    longer = gzip.compress(gzip.decompress(archive.read_bytes()) + bytes(1 << 16))
    archive.write_bytes(longer[:-8] + bytes(8))
    with pytest.raises(ValueError, match=r"is damaged or cut short \(CRC check failed"):
        unpack(archive, "CUB_200_2011")
    archive.write_bytes(longer)
    assert content(unpack(archive, "CUB_200_2011")) == content(birds)


def unpack_slowly(archive: Path) -> None:
    extract = tarfile.TarFile.extract

    def slowly(opened: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, **options: Any) -> None:
        extract(opened, member, folder, **options)
        if member.name.endswith(".jpg"):
            time.sleep(600)  # until it is killed

    pytest.MonkeyPatch().setattr(tarfile.TarFile, "extract", slowly)
    with suppress(KeyboardInterrupt):
        unpack(archive, "CUB_200_2011")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("killed_by", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_process_leaves_no_half_of_a_folder(birds: Path, tmp_path: Path, killed_by: signal.Signals) -> None:
    archive = pack(birds, tmp_path / "birds.tgz")
    unfinished = tmp_path / ".CUB_200_2011.unpacking"
    # A fork, as another interpreter takes seconds to import all this.
    process = get_context("fork").Process(target=unpack_slowly, args=(archive,))
    process.start()
    assert process.pid is not None
    deadline = time.monotonic() + 300
    while not list(unfinished.rglob("*.jpg")):
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, killed_by)
    process.join()
    assert not (tmp_path / "CUB_200_2011").exists()
    assert unfinished.exists() == (killed_by == signal.SIGKILL)
    assert content(unpack(archive, "CUB_200_2011")) == content(birds)
    assert not unfinished.exists()
