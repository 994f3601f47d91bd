import io
import os
import signal
import tarfile
import time
import zipfile
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from data.benchmarks.miniature import pack, write_cub
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
    with pytest.raises(ValueError, match="holds no folder car_ims"):
        unpack(archive, "car_ims")


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


def test_nothing_is_written_outside_and_links_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with tarfile.open(folder / "a.tgz", "w:gz") as tar, zipfile.ZipFile(folder / "a.zip", "w") as opened:
        for name in ("/tree/absolute.txt", "tree/inside.txt"):
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"1234"))
            opened.writestr(name, b"1234")
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
            link = tarfile.TarInfo("tree/link")
            link.type, link.linkname = kind, "/etc/passwd"
            tar.addfile(link)
        opened.writestr("tree/../../out.txt", b"1234")
    assert content(unpack(folder / "a.tgz", "tree")) == {"inside.txt": b"1234"}
    (folder / "tree").rename(folder / "other")
    assert "inside.txt" in content(unpack(folder / "a.zip", "tree"))
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    with tarfile.open(folder / "b.tgz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("trunk/../../out.txt"))
    with pytest.raises(ValueError, match="leads out of its folder"):
        unpack(folder / "b.tgz", "trunk")


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
