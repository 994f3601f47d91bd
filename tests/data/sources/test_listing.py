import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from PIL import Image

from proxemic.data.sources.listing import list_images
from proxemic.errors import UserError
from proxemic.retrieval import list_pictures
from vectors import write_table


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for name in ("b/2.png", "b/1.JPG", "a/deep/3.webp", "alone.bmp", ".hidden/4.png", "a/.5.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(root / name)
    (root / "a" / "notes.txt").touch()
    return root


def names(root: Path, *sources: str | Path) -> list[tuple[str, str | None]]:
    listed = list_pictures(*sources)
    return [(os.path.relpath(name, root), label) for name, label in zip(listed.names, listed.labels, strict=True)]


def test_a_folder_is_listed_in_the_order_of_names_with_labels_by_folders(photos: Path) -> None:
    assert names(photos, photos) == [("alone.bmp", None), ("a/deep/3.webp", "a"), ("b/1.JPG", "b"), ("b/2.png", "b")]
    assert list_pictures(photos).ignored == (photos / "a" / "notes.txt",)
    assert names(photos, photos / "b") == [("b/1.JPG", None), ("b/2.png", None)]


def test_a_picture_is_listed_once_whatever_it_is_called(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(photos)
    (photos / "b" / "same.png").symlink_to(photos / "b" / "2.png")
    (photos / "elsewhere").symlink_to(tmp_path / "other")
    (tmp_path / "other").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "other" / "9.png")
    table = photos / "a" / "t.csv"
    table.write_text("path\n../b/1.JPG\n./../b/2.png\n../../link/b/2.png\n")
    assert names(photos, photos, tmp_path / "link", table) == names(photos, photos)
    assert [label for _, label in names(photos, photos)] == [None, "a", "b", "b", "elsewhere"]
    assert len(list_pictures(table)) == 2


def test_patterns_lists_and_single_pictures(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert list_pictures("photos/b/*").names == ["photos/b/1.JPG", "photos/b/2.png"]
    assert names(photos, f"{photos}/**/*.webp") == [("a/deep/3.webp", None)]
    listed = tmp_path / "list.txt"
    listed.write_text("photos/alone.bmp\n\n  photos/b/2.png  \nphotos/none.png\n", encoding="utf-8-sig")
    assert names(photos, listed) == [("alone.bmp", None), ("b/2.png", None), ("none.png", None)]
    assert names(photos, photos / "alone.bmp") == [("alone.bmp", None)]
    strange = photos / "what [1].png"
    Image.new("RGB", (4, 4)).save(strange)
    assert names(photos, strange) == [("what [1].png", None)]  # a name, though it is a pattern, too


def test_tables_have_paths_perhaps_labels_boxes_and_more(photos: Path) -> None:
    table = photos / "t.csv"
    table.write_text("path,shop,label,x_1,y_1,x_2,y_2\nb/2.png,x,shoe,0,0,2,3\nb/2.png,,,,,,\nnone.png,z,hat,,,,\n")
    listed = list_pictures(table)
    assert listed.names == [f"{photos}/b/2.png (0, 0, 2, 3)", f"{photos}/b/2.png", f"{photos}/none.png"]
    assert listed.labels == ["shoe", None, "hat"]
    assert listed.texts("shop") == ["x", None, "z"]
    assert listed.pixels[0].size == (2, 3)  # type: ignore[index]
    assert listed.take([2, 0]).texts("shop") == ["z", "x"]
    other = write_table(photos / "t.parquet", path=["b/1.JPG", "b/2.png"], price=[1, None])
    joined = list_pictures(other, table, photos / "b")
    assert joined.names == [
        f"{photos}/b/1.JPG",
        f"{photos}/b/2.png",
        f"{photos}/b/2.png (0, 0, 2, 3)",
        f"{photos}/none.png",
    ]
    assert [joined.texts("price"), joined.texts("shop")] == [["1", None, None, None], [None, None, "x", "z"]]
    assert joined.labels == [None, None, "shoe", "hat"]  # each once, as it comes first


def test_folders_of_operating_systems_are_not_searched(photos: Path) -> None:
    listed = [names(photos, source) for source in (photos, f"{photos}/**/*.png")]
    own = ("@eaDir", "b/@eaDir/2.png", "#recycle/c", ".@__thumb", "$RECYCLE.BIN", "b/System Volume Information")
    for folder in own:
        (photos / folder).mkdir(parents=True)
        shutil.copy(photos / "b" / "2.png", photos / folder / "SYNOPHOTO_THUMB.png")
    assert [names(photos, source) for source in (photos, f"{photos}/**/*.png")] == listed
    assert {*list_images(photos).labels} == {"a", "b"}
    assert len(names(photos, f"{photos}/#recycle/**/*.png")) == 1, "asked for by name"


def test_what_gives_no_pictures_is_one_sentence(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for source in ("empty", "none*.png"):
        with pytest.raises(UserError, match=r"has no images: give JPEG, PNG, WebP, BMP, GIF or TIFF"):
            list_pictures(tmp_path / source)
    for source in ("none.png", "none"):
        with pytest.raises(UserError, match=r"does not exist: give a folder"):
            list_pictures(photos, tmp_path / source)
    (tmp_path / "t.csv").write_text("path,label\n,x\n")
    with pytest.raises(ValueError, match="path is empty"):
        list_pictures(tmp_path / "t.csv")


def test_names_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"Zo\xeb.png")
    try:
        Image.new("RGB", (4, 4)).save(path)
    except (OSError, UnicodeError):
        pytest.skip("this file system takes no such names")
    assert list_pictures(tmp_path).names == [f"{tmp_path}/Zo\\udceb.png"]
    assert list_pictures(tmp_path).pixels[0].size == (4, 4)  # type: ignore[index]


@pytest.fixture
def bucket() -> Iterator[str]:
    memory: Any = fsspec.filesystem("memory")
    for name in ("cat/1.png", "cat/deep/2.jpg", "dog/3.png", "alone.png", "dog/.4.png", ".git/5.png", "dog/notes.md"):
        memory.pipe_file(f"/shop/{name}", b"")
    yield "memory:///shop"
    memory.rm("/shop", recursive=True)


def test_folders_patterns_tables_and_lists_behind_addresses(bucket: str, tmp_path: Path) -> None:
    memory: Any = fsspec.filesystem("memory")
    listed = list_pictures(bucket)
    assert listed.names == [f"{bucket}/{name}" for name in ("alone.png", "cat/1.png", "cat/deep/2.jpg", "dog/3.png")]
    assert listed.labels == [None, "cat", "cat", "dog"]
    assert list(map(str, listed.ignored)) == ["memory:/shop/dog/notes.md"]
    assert list_pictures(f"{bucket}/cat/*.png").names == [f"{bucket}/cat/1.png"]
    assert list_pictures(f"{bucket}/alone.png").names == [f"{bucket}/alone.png"]
    memory.pipe_file("/shop/t.csv", b"path,label\ncat/1.png,x\ns3://other/a.png,\n/root/b.png,y\n")
    table = list_pictures(f"{bucket}/t.csv")
    assert table.names == [f"{bucket}/cat/1.png", "s3://other/a.png", f"{bucket}//root/b.png"]
    assert table.labels == ["x", None, "y"]
    memory.pipe_file("/shop/t.csv", b"path,label\n,x\n")
    with pytest.raises(ValueError, match=r"^memory:///shop/t\.csv, line 2: path is empty"):
        list_pictures(f"{bucket}/t.csv")
    memory.pipe_file("/shop/l.txt", b"cat/1.png\n")
    assert list_pictures(f"{bucket}/l.txt").names == [f"{bucket}/cat/1.png"]
    local = tmp_path / "l.txt"
    local.write_text(f"{bucket}/cat/1.png\nfile://{tmp_path}/z.png\n")
    assert list_pictures(local).names == [f"{bucket}/cat/1.png", f"{tmp_path}/z.png"]
    assert list_pictures(local, f"{bucket}/dog").names[2:] == [f"{bucket}/dog/3.png"]


def test_a_missing_library_is_one_sentence() -> None:
    pytest.importorskip("fsspec")
    if importlib.util.find_spec("s3fs") is None:
        with pytest.raises(UserError, match=r"s3://bucket/a cannot be reached: Install s3fs .*pip install s3fs"):
            list_pictures("s3://bucket/a")
