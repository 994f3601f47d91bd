"""The files in a tar are found as Python's own reader finds them, and damaged tars are refused."""

import gzip
import io
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxemic.data.pixels.tar_members import Member, read_members

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
CONTENT = bytes(range(256)) * 3


def write(path: Path, files: dict[str, bytes], kind: int = tarfile.PAX_FORMAT, **pax: str) -> Path:
    with tarfile.open(path, "w", format=kind, pax_headers=pax) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def found(path: Path) -> dict[str, bytes]:
    return {member.name: bytes(content) for member, content in read_members(path)}


@pytest.mark.parametrize("kind", FORMATS)
def test_names_and_contents_are_those_of_pythons_reader(tmp_path: Path, kind: int) -> None:
    long = f"{'long ' * 18}/name" if kind == tarfile.USTAR_FORMAT else f"{'long ' * 80}/name"
    files = {"1.jpg": CONTENT, "1.cls": b"7", "2.jpg": b"", long: b"x" * 512, "Zoë/3.jpg": b"\0" * 513}
    path = write(tmp_path / "x.tar", files, kind)
    assert found(path) == files
    with tarfile.open(path) as tar:
        assert [(each.name, each.offset_data, each.size) for each in tar] == [
            member for member, _ in read_members(path)
        ]
    content = path.read_bytes()
    for member, part in read_members(path):
        assert content[member.offset :][: member.size] == bytes(part)


def test_facts_of_posix_give_name_and_size(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "of all"}) as tar:
        member = tarfile.TarInfo("short")
        member.size, member.pax_headers = 5, {"size": "5", "path": "other", "comment": "a = b\nc"}
        tar.addfile(member, io.BytesIO(b"12345"))
        second = tarfile.TarInfo("second")
        tar.addfile(second)
    assert found(path) == {"other": b"12345", "second": b""}


def test_links_folders_and_devices_are_passed_over_and_paths_are_only_names(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind in (("link", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE), ("folder", tarfile.DIRTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, "/etc/passwd", 1024  # of which nothing follows
            tar.fileobj.write(member.tobuf())  # type: ignore[union-attr]
        device = tarfile.TarInfo("device")
        device.type = tarfile.CHRTYPE
        tar.addfile(device)
        for name in ("/etc/passwd.jpg", "../../up.jpg"):
            member = tarfile.TarInfo(name)
            member.size = 2
            tar.addfile(member, io.BytesIO(b"ab"))
    assert found(path) == {"/etc/passwd.jpg": b"ab", "../../up.jpg": b"ab"}


def test_sizes_in_base_256(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", {"1.jpg": CONTENT})
    content = bytearray(path.read_bytes())
    content[124:136] = b"\x80" + len(CONTENT).to_bytes(11, "big")
    content[148:156] = b"        "
    content[148:156] = b"%06o\0 " % sum(content[:512])
    path.write_bytes(content)
    assert found(path) == {"1.jpg": CONTENT}


@pytest.mark.parametrize("part", [512, 1000, 1024, 1500, 2000])
def test_a_tar_that_is_cut_short(tmp_path: Path, part: int) -> None:
    path = write(tmp_path / "x.tar", {"1.jpg": CONTENT, "2.jpg": CONTENT[:100]})
    path.write_bytes(path.read_bytes()[:part])
    with pytest.raises(ValueError, match="is cut short"):
        found(path)


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz"])
def test_compressed_tars(tmp_path: Path, suffix: Literal["gz", "bz2", "xz"]) -> None:
    path = tmp_path / f"x.tar.{suffix}"
    with tarfile.open(path, f"w:{suffix}"):  # type: ignore[call-overload]
        pass
    with pytest.raises(ValueError, match=r"is compressed by \w+, in which no image can be found: unpack it to a \.tar"):
        found(path)


def test_what_is_no_tar(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    for content, message in ((b"", "is no tar"), (b"x" * 5000, "the header at byte 0 is none"), (b"x", "is no tar")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            found(path)
    with pytest.raises(FileNotFoundError):
        found(tmp_path / "none.tar")


def test_headers_that_lie(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", {"1.jpg": CONTENT})
    whole = path.read_bytes()
    for size in (b"-0000000001\0", b"77777777777\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"1_0        \0"):
        content = bytearray(whole)
        content[124:136] = size
        content[148:156] = b"        "
        content[148:156] = b"%06o\0 " % sum(content[:512])
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"is negative|is cut short or damaged|is none"):
            found(path)
    for facts in ({"size": "-5"}, {"size": "9" * 30}, {"GNU.sparse.size": "5"}, {"size": "many"}):
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
            member = tarfile.TarInfo("1.jpg")
            member.pax_headers = facts
            tar.addfile(member)
        with pytest.raises(ValueError, match=r"is damaged: what it says|is cut short or damaged"):
            found(path)
    write(path, {"x" * 70_000: b""}, tarfile.GNU_FORMAT)
    with pytest.raises(ValueError, match="has a name of 70,001 bytes, but at most 65,536 are read"):
        found(path)


@given(st.data())
def test_no_damage_is_more_than_one_sentence(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.tar"
    write(path, {"1.jpg": CONTENT, f"{'long' * 80}.cls": b"7"}, data.draw(st.sampled_from(FORMATS[1:])))
    content = bytearray(path.read_bytes())[:4096]
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=8)):
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with suppress(ValueError):
        assert all(isinstance(each, Member) and each.size <= len(content) for each, _ in read_members(path))


def test_gzip_is_recognised_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(gzip.compress(b"x" * 2000))
    with pytest.raises(ValueError, match="is compressed by gzip"):
        found(tmp_path / "x.tar")
