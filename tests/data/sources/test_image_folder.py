import csv
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from images import forbid
from proxemic import data
from proxemic.data import ImageSet, Splits
from proxemic.data.formats import tables
from proxemic.data.sources import check
from proxemic.data.sources.image_folder import read_images
from proxemic.errors import UserError

OwnImages = partial(data.OwnImages, test_fraction=0.5, validation_fraction=0.5)  # as there are few classes


def fill(root: Path, classes: Sequence[str], images: int = 3) -> Path:
    for name in classes:
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(images):
            Image.new("L", (8, 8), number).save(root / name / f"{number}.png")
    return root


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def write_parquet(path: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    values = zip(*rows, strict=True)
    pyarrow.parquet.write_table(pa.table({name: list(own) for name, own in zip(columns, values, strict=True)}), path)
    return path


def sides(splits: Splits) -> list[set[str]]:
    return [set(part.class_names) if part else set() for part in (splits.train, splits.validation, splits.test)]


def paths(part: ImageSet | None) -> list[Path]:
    assert part is not None
    return list(part.pixels.paths)  # type: ignore[union-attr]


def test_class_folders_are_split_by_class(tmp_path: Path) -> None:
    fill(tmp_path, "abcdefgh")
    for name in ("a/deep/er/9.JPG", "a/.hidden.png", ".thumbnails/x.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(tmp_path / name)
    splits = OwnImages(tmp_path).load()
    train, validation, test = sides(splits)
    assert [len(train), len(validation), len(test)] == [2, 2, 4]
    assert train | validation | test == set("abcdefgh")
    assert sum(len(part) for part in (splits.train, splits.validation, splits.test) if part) == 25
    assert splits.notes == ()
    assert sides(OwnImages(tmp_path).load()) == [train, validation, test]
    assert sides(OwnImages(tmp_path, split_seed=1).load()) != [train, validation, test]
    for label, path in zip(splits.train.labels.tolist(), paths(splits.train), strict=True):
        assert path.relative_to(tmp_path).parts[0] == splits.train.class_names[label]


def test_folders_that_cannot_be_listed_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "abcd")
    forbid(monkeypatch, tmp_path / "b")
    images, (note,) = OwnImages(tmp_path).load_unsplit()
    assert images.class_names == ("a", "c", "d")
    assert note == f"Left out: 1 unreadable folder, {tmp_path}/b (permission denied)."
    assert check(tmp_path).unreadable == {f"{tmp_path}/b": "permission denied"}
    with pytest.raises(ValueError, match=r"1 unreadable folder, .*/b \(permission denied\): mend"):
        OwnImages(tmp_path, strict=True).load()
    forbid(monkeypatch, tmp_path)
    with pytest.raises(ValueError, match=r"cannot be listed \(permission denied\)"):
        OwnImages(tmp_path).load()


def test_a_linked_folder_adds_no_picture_twice(tmp_path: Path) -> None:
    root = fill(tmp_path / "root", "bcd")
    fill(tmp_path / "elsewhere", ["e", "deep"])
    (root / "a").symlink_to(root / "c")  # listed before the folder itself
    (root / "d" / "up").symlink_to(root)
    (root / "e").symlink_to(tmp_path / "elsewhere" / "e")
    (root / "f").symlink_to(tmp_path / "elsewhere" / "e")
    (tmp_path / "elsewhere" / "e" / "deep").symlink_to(tmp_path / "elsewhere" / "deep")
    (tmp_path / "elsewhere" / "deep" / "loop").symlink_to(root)
    images, (note,) = OwnImages(root).load_unsplit()
    assert images.class_names == (*"bcde",)
    assert len(images) == 4 * 3 + 3
    assert note.startswith("4 files ignored")
    assert str(root / "a") in note


@pytest.mark.parametrize("validation", ["validation", "val"])
def test_given_split_folders(tmp_path: Path, validation: str) -> None:
    for split, classes in (("train", "abmn"), (validation, "cd"), ("test", "efg")):
        fill(tmp_path / split, classes)
    (tmp_path / "annotations").mkdir()  # empty: nobody's class
    assert sides(OwnImages(tmp_path).load()) == [set("abmn"), set("cd"), set("efg")]
    shutil.rmtree(tmp_path / "test")
    splits = OwnImages(tmp_path).load()
    assert sides(splits)[2] == {"c", "d"}
    assert len(sides(splits)[1]) == 2
    assert "its validation split is the test" in splits.notes[0]
    fill(tmp_path, ["more"])
    with pytest.raises(ValueError, match=rf"folders for splits \(train, {validation}\) and others \(more\)"):
        OwnImages(tmp_path).load()


@pytest.mark.parametrize("hold_out", ["classes", "images"])
def test_a_split_that_is_all_train_is_what_it_says(tmp_path: Path, hold_out: Any) -> None:
    fill(tmp_path / "train", "abcd", images=8)
    rows = [(f"train/{c}/{n}.png", c, "train") for c in "abcd" for n in range(8)]
    for root in (tmp_path, write_csv(tmp_path / "t.csv", ("path", "label", "split"), rows)):
        with pytest.raises(ValueError, match="gives every image to train, so that there is no test: set test_fraction"):
            OwnImages(root, hold_out=hold_out).load()
        source = OwnImages(root, test_fraction=0.0, validation_fraction=0.0, hold_out=hold_out)
        assert not source.has_test
        assert sides(source.load()) == [set("abcd"), set(), set()]
        with pytest.raises(UserError, match=r"no test classes .* proxemic evaluate RUN --data.root OTHER"):
            _ = source.load().test_images
        splits = OwnImages(root, test_fraction=0.0, hold_out=hold_out).load()  # validation is held out as ever
        assert splits.validation is not None
        assert (len(splits.train), len(splits.validation), splits.test) == (16, 16, None)


def test_images_of_every_class_are_held_out(tmp_path: Path) -> None:
    fill(tmp_path, "abc", images=12)
    fill(tmp_path, "d", images=3)  # too few to leave two on each side

    def load(**options: Any) -> Splits:
        return OwnImages(tmp_path, test_fraction=0.25, hold_out="images", **options).load()

    splits = load(validation_fraction=0.25)
    parts = [part for part in (splits.train, splits.validation, splits.test) if part is not None]
    assert sides(splits) == [set("abcd"), set("abc"), set("abc")]
    assert [part.labels.bincount().tolist() for part in parts] == [[7, 7, 7, 3], [2, 2, 2], [3, 3, 3]]
    files = [path for part in parts for path in paths(part)]
    assert len(set(files)) == len(files) == 39
    assert paths(load(validation_fraction=0.25).test) == paths(splits.test) != paths(load(split_seed=1).test)
    fill(tmp_path / "few", "ab", images=3)
    with pytest.raises(
        ValueError, match=r"2 classes in all, of 6 images, .*holds out none, as the largest class has 3"
    ):
        OwnImages(tmp_path / "few", hold_out="images").load()


@pytest.mark.usefixtures("unchecked")
def test_given_splits_of_the_same_classes(tmp_path: Path) -> None:
    fill(tmp_path / "train", "abc")
    fill(tmp_path / "test", "abd", images=2)
    with pytest.raises(ValueError, match=r"2 classes in both train and test \(a, b\): .* set hold_out to images"):
        OwnImages(tmp_path).load()
    splits = OwnImages(tmp_path, validation_fraction=0.0, hold_out="images").load()
    assert sides(splits) == [set("abc"), set(), set("abd")]
    with pytest.raises(ValueError, match="hold_out is 'persons', but must be one of classes, images"):
        OwnImages(tmp_path, hold_out="persons")  # type: ignore[arg-type]


def test_classes_called_like_splits_are_classes(tmp_path: Path) -> None:
    fill(tmp_path, ("bus", "car", "plane", "train"))
    assert set.union(*sides(OwnImages(tmp_path, validation_fraction=0.0).load())) == {"bus", "car", "plane", "train"}


@pytest.mark.parametrize("write", [write_csv, write_parquet])
@pytest.mark.parametrize("labels", [["a,1", "b", "c", "d"], [10, 9, 8, 7], [1.0, 2.0, 3.0, 4.0]])
def test_tables_with_labels_of_any_type(tmp_path: Path, write: Any, labels: list[Any]) -> None:
    fill(tmp_path / "images", "abcd", images=2)
    rows = [(f"images/{folder}/{n}.png", label) for folder, label in zip("abcd", labels, strict=True) for n in range(2)]
    table = write(tmp_path / f"table.{write.__name__[6:]}", ("path", "label"), rows)
    splits = OwnImages(table, validation_fraction=0.0).load()
    assert set.union(*sides(splits)) == {str(label).removesuffix(".0") for label in labels}
    assert list(splits.train.class_names) == sorted(splits.train.class_names)
    assert np.asarray(splits.test_images.pictures[1]).max() == 1


@pytest.mark.parametrize("write", [write_csv, write_parquet])
def test_tables_with_splits_queries_and_gallery(tmp_path: Path, write: Any) -> None:
    fill(tmp_path, "abcdef", images=2)
    rows: list[tuple[Any, ...]] = [(f"{c}/{n}.png", c, "train", None, None) for c in "ab" for n in range(2)]
    rows += [(f"{c}/{n}.png", c, "val", True, True) for c in "cd" for n in range(2)]
    rows += [(str(tmp_path / c / f"{n}.png"), c, "TEST", n == 0, n == 1) for c in "ef" for n in range(2)]
    columns = ("path", "label", "split", "is_query", "is_gallery")
    splits = OwnImages(write(tmp_path / f"t.{write.__name__[6:]}", columns, rows)).load()
    assert sides(splits) == [set("ab"), set("cd"), set("ef")]
    assert splits.train.is_query is None
    assert splits.test_images.is_query is not None
    assert splits.test_images.is_gallery is not None
    assert splits.test_images.is_query.tolist() == [True, False, True, False]
    assert splits.test_images.is_gallery.tolist() == [False, True, False, True]
    splits.test_images.pictures[3].load()


def test_a_picture_that_is_named_again_counts_once(tmp_path: Path) -> None:
    fill(tmp_path / "a", "xy", images=2)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    rows = [(f"a/{c}/{n}.png", c, "true", "false") for c in "xy" for n in range(2)]
    again = [(f"{prefix}/{c}/{n}.png", c, "false", "true") for c in "xx" for n, prefix in ((0, "./a"), (1, "link"))] + [
        (f"{prefix}/y/{n}.png", "y", "false", "true") for n, prefix in ((0, "./a"), (1, "link"))
    ]
    columns = ("path", "label", "is_query", "is_gallery")
    images, notes = OwnImages(write_csv(tmp_path / "t.csv", columns, rows + again)).load_unsplit()
    assert len(images) == 4
    assert images.is_query is not None
    assert images.is_gallery is not None
    assert images.is_query.all()
    assert images.is_gallery.all()
    assert any("names 6 of its images more than once" in note for note in notes)
    boxes = [("a/x/0.png", "x", *box) for box in ((0, 0, 4, 4), (4, 4, 8, 8), (0, 0, 4, 4))]
    table = write_csv(tmp_path / "boxes.csv", ("path", "label", "x_1", "y_1", "x_2", "y_2"), boxes)
    assert len(read_images(table, strict=False)) == 2  # a box is a picture of its own


def test_a_picture_of_two_labels_or_splits_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, "abcd", images=2)
    rows = [(f"{c}/{n}.png", c, "test" if c in "ab" else "train") for c in "abcd" for n in range(2)]
    for column, other in (("label", ("./a/0.png", "b", "test")), ("split", ("./a/0.png", "a", "train"))):
        table = write_csv(tmp_path / f"{column}.csv", ("path", "label", "split"), [*rows, other])
        with pytest.raises(ValueError, match=rf"line 10: {column} is .* in .* line 2, which names the same image"):
            OwnImages(table, hold_out="images").load()
    (tmp_path / "a" / "0.png").unlink()
    (tmp_path / "a" / "0.png").symlink_to(tmp_path / "b" / "0.png")
    with pytest.raises(ValueError, match=r"b/0.png: label is 'b', but 'a' in .*a/0.png"):
        OwnImages(tmp_path).load()


def text(path: Path) -> None:
    path.write_text("I am text")


def truncate(path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, "JPEG")
    path.write_bytes(path.read_bytes()[:-500])  # of a sound header


@pytest.mark.parametrize(("damage", "why"), [(text, "its content is not JPEG"), (truncate, "image file is truncated")])
def test_unreadable_images_are_left_out_or_refused(tmp_path: Path, damage: Callable[[Path], None], why: str) -> None:
    fill(tmp_path, "abcd")
    (tmp_path / "readme.txt").write_text("text")
    damage(tmp_path / "a" / "0.png")
    splits = OwnImages(tmp_path, validation_fraction=0.0).load()
    assert len(splits.train) + len(splits.test_images) == 11
    assert splits.notes[0].startswith("Left out: 1 unreadable image, ")
    assert f"a/0.png ({why}" in splits.notes[0]
    assert splits.notes[1].startswith("1 files ignored")
    with pytest.raises(ValueError, match=r"1 unreadable image, .*0\.png .* set strict to false"):
        OwnImages(tmp_path, strict=True).load()


def test_what_gives_no_images_says_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(3):
        (tmp_path / "a" / f"{number}.pgm").touch()
    with pytest.raises(ValueError, match=r"has no images, but 3 \.pgm files, which are not read: put JPEG, .*TIFF"):
        OwnImages(tmp_path).load()
    Image.new("L", (8, 8)).save(tmp_path / "1.png")
    with pytest.raises(ValueError, match=r"has 1 \.png file, but not in class folders: put"):
        OwnImages(tmp_path).load()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    for root, words in (
        (None, r"data\.root is missing"),
        (tmp_path / "notes.txt", r"notes\.txt is neither a folder of class folders nor"),
        (tmp_path / "empty", "has no images: put JPEG"),
    ):
        with pytest.raises(ValueError, match=words):
            OwnImages(root).load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,class\na.png,a\n", r"no column path and label: its columns are file, class"),
        ("path;label\na.png;a\n", "no readable image"),
        ("path,label\na/0.png,a\nb/0.png,\n", "line 3: label is empty"),
        ("path,label,split\na/0.png,a,dev\n", "line 2: split is 'dev', but it must be train, validation"),
    ],
)
def test_malformed_csv(tmp_path: Path, text: str, message: str) -> None:
    fill(tmp_path, "ab")
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        OwnImages(tmp_path / "t.csv").load()


def test_malformed_and_huge_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "t.parquet"
    for label in (None, float("nan")):
        write_parquet(table, ("path", "label"), [("a.png", 1.0), ("b.png", label)])
        with pytest.raises(ValueError, match="row 2: label is empty"):
            OwnImages(table).load()
    monkeypatch.setattr(tables, "_MOST_ROWS", 1)
    with pytest.raises(ValueError, match=r"t\.parquet has 2 rows, but may have 1"):
        OwnImages(table).load()
    huge = tmp_path / "huge.csv"
    with huge.open("wb") as file:
        file.truncate(5 * 2**30)
    with pytest.raises(ValueError, match=r"huge\.csv has 5,368,709,120 bytes, but a table may have 4,294,967,296"):
        OwnImages(huge).load()


@pytest.mark.parametrize(
    ("classes", "images", "message"),
    [
        ("a", 3, "has a single class, 'a'"),
        ("abcd", 1, "4 classes with one image each"),
        ("abcde", 2, "has 5 classes in all, .*validation_fraction=0.5 of 3 classes .* change validation_fraction"),
    ],
)
def test_too_little(tmp_path: Path, classes: str, images: int, message: str) -> None:
    fill(tmp_path, classes, images)
    with pytest.raises(ValueError, match=message):
        OwnImages(tmp_path).load()


def test_given_splits_that_are_too_small(tmp_path: Path) -> None:
    fill(tmp_path / "test", "ab")
    with pytest.raises(ValueError, match="no readable training image"):
        OwnImages(tmp_path).load()
    fill(tmp_path / "train", "c", images=1)
    with pytest.raises(ValueError, match="1 class in its train split"):
        OwnImages(tmp_path, validation_fraction=0.0).load()
    fill(tmp_path / "train", "de", images=2)
    assert OwnImages(tmp_path, validation_fraction=0.0).load().notes[0].startswith("1 classes have a single image")
    fill(tmp_path / "validation", "fg", images=1)
    with pytest.raises(ValueError, match="no query with another image of its class to find in its validation split"):
        OwnImages(tmp_path).load()


@pytest.mark.parametrize("name", ["test_fraction", "validation_fraction"])
@pytest.mark.parametrize("value", [-0.1, 1.0])
def test_fractions_are_checked(tmp_path: Path, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is"):
        OwnImages(tmp_path, **{name: value})  # type: ignore[arg-type]
