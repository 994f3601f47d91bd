"""The index of tar shards finds every sample, is cached, and is made again when a shard changes."""

import io
import os
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxemic.data import WebDatasetShards
from proxemic.data.formats.shards import ShardIndex, index_shards, read_members
from proxemic.data.reading import UnreadableImageError
from shards import colour, png, write_shard


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def one(cache: Path, files: dict[str, bytes], image: str | None = None, label: str = "cls") -> ShardIndex:
    shard = cache.parent / "one.tar"
    write_shard(shard, files)
    return index_shards([shard], image, label, cache)


def test_samples_are_neighbours_of_one_key(cache: Path, tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", {"x/1.png": png(1), "x/1.cls": b" 10\n", "x/2.CLS": b"9", "x/2.PNG": png(2)})
    write_shard(tmp_path / "b.tar", {"y/1.txt": b"more", "y/1.png": png(3), "y/1.cls": b"10", "y/._1.png": b"mac"})
    index = index_shards([tmp_path / "a.tar", tmp_path / "b.tar"], None, "cls", cache)
    assert index.class_names == ("10", "9")
    assert index.labels.tolist() == [0, 1, 0]
    assert [colour(index.pixels[place]) for place in range(3)] == [1, 2, 3]
    assert [colour(index.pixels.select([2, 0])[place]) for place in range(2)] == [3, 1]
    assert index.without == 0


@pytest.mark.parametrize(
    ("label", "content", "name"),
    [
        ("txt", b"a cat\n", "a cat"),
        ("json.kind", b'{"kind": "cat", "other": [1]}', "cat"),
        ("json.kind.of", b'{"kind.of": 12}', "12"),
        ("cls", b"007", "007"),
    ],
)
def test_labels_are_text(cache: Path, label: str, content: bytes, name: str) -> None:
    index = one(cache, {"1.png": png(1), f"1.{label.partition('.')[0]}": content}, label=label)
    assert index.class_names == (name,)


def test_several_images_of_a_sample_need_a_name(cache: Path) -> None:
    files = {"1.left.png": png(1), "1.right.png": png(2), "1.cls": b"0"}
    assert colour(one(cache, files, image="right.png").pixels[0]) == 2
    assert one(cache, files).without == 1  # neither is plainly the image
    with pytest.raises(ValueError, match=r"the sample 1 has two images: name the ending of one, as --data.image"):
        one(cache, {"1.png": png(1), "1.jpg": png(2), "1.cls": b"0"})


def test_keys_with_dots_are_explained(cache: Path) -> None:
    index = one(cache, {"1.png": png(1), "1.cls": b"0", "v1.2.png": png(2), "v1.2.cls": b"1"})
    assert index.examples == ("v1 (as v1.2.png is called before its first dot) in one.tar",)
    one(cache, {"v1.2.png": png(2), "v1.2.cls": b"1"})
    with pytest.raises(ValueError, match="An ending begins at the first dot"):
        WebDatasetShards(cache.parent / "one.tar").load()


def test_samples_without_an_image_or_a_label_are_counted(cache: Path) -> None:
    index = one(cache, {"1.png": png(1), "2.cls": b"0", "3.png": png(3), "3.cls": b" ", "4.png": png(4), "4.cls": b"0"})
    assert (len(index.labels), index.without) == (1, 3)
    assert index.examples == ("1 in one.tar", "2 in one.tar", "3 in one.tar")


@pytest.mark.parametrize(
    ("label", "content", "message"),
    [
        ("cls", b"\xff", "1.cls holds no label: it is no text"),
        ("json.label", b"{", "1.json holds no label: it is no JSON"),
        ("json.label", b"[" * 10**5, "1.json holds no label: it is no JSON"),
        ("json.label", b"{}", "1.json holds no label: it has no label"),
        ("json.label", b"[1]", "1.json holds no label: it has no label"),
        ("json.label", b'{"label": 0.5}', "its label is 0.5, but must be text or a whole number"),
        ("json.label", b'{"label": true}', "its label is True, but must be text or a whole number"),
        ("txt", b"x" * (2**20 + 1), "1.txt has 1,048,577 bytes, but a label may have 1,048,576"),
    ],
)
def test_labels_that_are_none(cache: Path, label: str, content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        one(cache, {"1.png": png(1), f"1.{label.partition('.')[0]}": content}, label=label)
    assert not cache.exists()


def test_the_index_is_kept_until_a_shard_changes(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"1.png": png(1), "1.cls": b"0", "2.png": png(2), "2.cls": b"1", "3.png": png(3)}
    first = one(cache, files)
    (kept,) = cache.iterdir()
    with monkeypatch.context() as patched:
        patched.setattr("proxemic.data.formats.shards.read_members", None)
        again = index_shards([tmp_path / "one.tar"], None, "cls", cache)
    for name in ("shard", "offsets", "sizes"):
        assert np.array_equal(getattr(again.pixels, name), getattr(first.pixels, name))
    assert again.labels.tolist() == first.labels.tolist()
    assert (again.class_names, again.without, again.examples) == (first.class_names, first.without, first.examples)
    for damage in (kept.read_bytes()[:-40], b"", kept.read_bytes().replace(b"offsets", b"0ffsets")):
        kept.write_bytes(damage)
        assert index_shards([tmp_path / "one.tar"], None, "cls", cache).labels.tolist() == [0, 1]
    np.savez(kept, **dict.fromkeys(("shard", "offsets", "sizes", "labels", "said"), np.array([{}], object)))
    assert index_shards([tmp_path / "one.tar"], None, "cls", cache).labels.tolist() == [0, 1]
    status = (tmp_path / "one.tar").stat()
    os.utime(tmp_path / "one.tar", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    one_more: Any = index_shards([tmp_path / "one.tar"], None, "txt", cache)
    assert len(one_more.labels) == 0
    assert len(list(cache.iterdir())) == 2
    assert index_shards([tmp_path / "one.tar"], None, "cls", cache).labels.tolist() == [0, 1]
    assert len(list(cache.iterdir())) == 3


def test_images_that_cannot_be_read_are_named(cache: Path, tmp_path: Path) -> None:
    index = one(cache, {"1.png": b"no image", "1.cls": b"0", "2.png": png(2), "2.cls": b"0"})
    shard = tmp_path / "one.tar"
    with pytest.raises(UnreadableImageError, match=r"one\.tar, byte 512, cannot be read as an image: its content is"):
        index.pixels[0]
    shard.write_bytes(shard.read_bytes()[: index.pixels.offsets[1] + 10])
    with pytest.raises(UnreadableImageError, match=r"one\.tar, byte [\d,]+, cannot be read as an image: "):
        index.pixels[1]
    shard.unlink()
    with pytest.raises(UnreadableImageError, match="no such file"):
        index.pixels[1]
    with pytest.raises(ValueError, match=r"one\.tar cannot be read: no such file"):
        index_shards([shard], None, "cls", cache)


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
    content = path.read_bytes()
    return {member.name: content[member.offset_data :][: member.size] for member in read_members(path)}


@pytest.mark.parametrize("kind", FORMATS)
def test_names_and_contents_are_those_of_pythons_reader(tmp_path: Path, kind: int) -> None:
    long = f"{'long ' * 18}/name" if kind == tarfile.USTAR_FORMAT else f"{'long ' * 80}/name"
    files = {"1.jpg": CONTENT, "1.cls": b"7", "2.jpg": b"", long: b"x" * 512, "Zoë/3.jpg": b"\0" * 513}
    path = write(tmp_path / "x.tar", files, kind)
    assert found(path) == files


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


@pytest.mark.parametrize("part", [512, 1000, 1024, 1500, 2000])
def test_a_tar_that_is_cut_short(tmp_path: Path, part: int) -> None:
    path = write(tmp_path / "x.tar", {"1.jpg": CONTENT, "2.jpg": CONTENT[:100]})
    path.write_bytes(path.read_bytes()[:part])
    with pytest.raises(ValueError, match=r"cut short or damaged|not a tar, or damaged|bytes, but the file has"):
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
    for content in (b"", b"x" * 5000, b"x"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is not a tar, or damaged"):
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
        with pytest.raises(ValueError, match="damaged"):
            found(path)
    for facts in ({"size": "-5"}, {"size": "9" * 30}, {"GNU.sparse.size": "5"}):
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
            member = tarfile.TarInfo("1.jpg")
            member.pax_headers = facts
            tar.addfile(member)
        with pytest.raises(ValueError, match="damaged"):
            found(path)
    write(path, {"x" * 70_000: b""}, tarfile.GNU_FORMAT)
    with pytest.raises(ValueError, match="has a name of 70,144 bytes, but at most 65,536 are read"):
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
        assert all(member.size <= len(content) for member in read_members(path))
