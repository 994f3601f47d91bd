import os
from pathlib import Path

import pytest
from PIL import Image

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


def test_folders_of_splits_hold_folders_of_classes(tmp_path: Path) -> None:
    for name in ("train/cat/1.png", "val/dog/2.png", "test/cow/deep/3.png", "test/none.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    assert [label for _, label in names(tmp_path, tmp_path)] == [None, "cow", "cat", "dog"]


def test_patterns_lists_and_single_pictures(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert list_pictures("photos/b/*").names == ("photos/b/1.JPG", "photos/b/2.png")
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
    assert listed.names == (f"{photos}/b/2.png (0, 0, 2, 3)", f"{photos}/b/2.png", f"{photos}/none.png")
    assert listed.labels == ("shoe", None, "hat")
    assert listed.columns == {"shop": ("x", None, "z")}
    assert listed.pixels[0].size == (2, 3)  # type: ignore[index]
    assert listed.select([2, 0]).columns == {"shop": ("z", "x")}
    other = write_table(photos / "t.parquet", path=["b/1.JPG", "b/2.png"], price=[1, None])
    joined = list_pictures(other, table, photos / "b")
    assert joined.names == (
        f"{photos}/b/1.JPG",
        f"{photos}/b/2.png",
        f"{photos}/b/2.png (0, 0, 2, 3)",
        f"{photos}/none.png",
    )
    assert joined.columns == {"price": ("1", None, None, None), "shop": (None, None, "x", "z")}
    assert joined.labels == (None, None, "shoe", "hat")  # each once, as it comes first


def test_what_gives_no_pictures_is_one_sentence(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for source in ("empty", "none*.png"):
        with pytest.raises(UserError, match=r"has no pictures: give PNG, JPEG, WebP or BMP"):
            list_pictures(tmp_path / source)
    for source in ("none.png", "none"):
        with pytest.raises(UserError, match=r"does not exist: give a folder"):
            list_pictures(photos, tmp_path / source)
    (tmp_path / "t.csv").write_text("file\na.png\n")
    with pytest.raises(ValueError, match="has no column path"):
        list_pictures(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("path,label\n,x\n")
    with pytest.raises(ValueError, match="path is empty"):
        list_pictures(tmp_path / "t.csv")


def test_names_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"Zo\xeb.png")
    try:
        Image.new("RGB", (4, 4)).save(path)
    except (OSError, UnicodeError):
        pytest.skip("this file system takes no such names")
    assert list_pictures(tmp_path).names == (f"{tmp_path}/Zo\\udceb.png",)
    assert list_pictures(tmp_path).pixels[0].size == (4, 4)  # type: ignore[index]


def test_stamps_tell_files_that_have_changed(photos: Path) -> None:
    before = list_pictures(photos).stamps()
    assert list_pictures(photos).stamps() == before
    (photos / "alone.bmp").write_bytes(b"x")
    (photos / "b" / "1.JPG").unlink()
    after = list_pictures(*(name for name, *_ in before if "1.JPG" not in name)).stamps()
    assert len(set(before) - set(after)) == 2
