"""The index of tar shards finds every sample, is kept, and is made anew when a shard changes."""

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from proxemic.data import WebDatasetShards
from proxemic.data.pixels import UnreadableImageError, read_image
from proxemic.data.pixels.reading import shrink
from proxemic.data.sources.shards import ShardIndex, index_shards
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


def test_large_images_are_decoded_at_a_part_of_their_size(cache: Path) -> None:
    content = io.BytesIO()
    Image.effect_noise((400, 300), 50).save(content, "jpeg")
    pixels = one(cache, {"1.jpg": content.getvalue(), "1.cls": b"0"}).pixels
    assert pixels.load(0, 70) == read_image(content.getvalue(), 70) != shrink(pixels[0], 70)


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
        patched.setattr("proxemic.data.sources.shards.read_members", None)
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


def test_deep_images_come_as_from_files(cache: Path) -> None:
    content = io.BytesIO()
    Image.new("RGBA", (4, 2)).save(content, "PNG")
    index = one(cache, {"1.png": content.getvalue(), "1.cls": json.dumps(3).encode()})
    assert index.pixels[0].getpixel((0, 0)) == (255, 255, 255)
