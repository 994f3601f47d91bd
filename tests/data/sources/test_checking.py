import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from proxemic.data.sources import check


def draw(path: Path, value: int, size: tuple[int, int] = (8, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, value).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    draw(tmp_path / "train" / "cat" / "1.png", 1, (8, 9))
    draw(tmp_path / "train" / "cat" / "2.jpg", 2, (20, 10))
    draw(tmp_path / "train" / "cat" / "3.png", 3)
    draw(tmp_path / "train" / "dog" / "1.png", 4, (30, 5))
    draw(tmp_path / "test" / "owl" / "1.bmp", 5)
    draw(tmp_path / "test" / "owl" / "2.png", 6)
    draw(tmp_path / "test" / "cat" / "9.png", 7)
    shutil.copy(tmp_path / "train" / "cat" / "3.png", tmp_path / "test" / "owl" / "copy.png")
    shutil.copy(tmp_path / "train" / "cat" / "1.png", tmp_path / "train" / "cat" / "again.png")
    whole = (tmp_path / "train" / "cat" / "2.jpg").read_bytes()
    (tmp_path / "test" / "owl" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "test" / "owl" / "notes.txt").write_text("x")
    return tmp_path


def test_counts(root: Path) -> None:
    report = check(root)
    assert (report.images, report.classes) == (9, 3)
    assert report.splits == {"train": (5, 2), "test": (4, 2)}
    assert report.images_per_class == (1, 3, 5)
    assert report.single_image_classes == ("dog",)
    assert report.shared_classes == ("cat",)
    assert report.formats == {"PNG": 7, "JPEG": 1, "BMP": 1}
    assert (report.widths, report.heights) == ((8, 30), (5, 10))
    assert [Path(path).name for path in report.ignored] == ["notes.txt"]


def test_unreadable_files_are_decoded_to_the_end(root: Path) -> None:
    ((path, reason),) = check(root).unreadable.items()
    assert path.endswith("cut.jpg")
    assert "truncated" in reason.lower()


def test_duplicates_across_labels_and_splits(root: Path) -> None:
    groups = {frozenset(Path(path).name for path in group.paths): group for group in check(root).duplicates}
    assert set(groups) == {frozenset({"1.png", "again.png"}), frozenset({"3.png", "copy.png"})}
    assert groups[frozenset({"3.png", "copy.png"})].labels == ("cat", "owl")
    assert groups[frozenset({"3.png", "copy.png"})].splits == ("test", "train")
    assert groups[frozenset({"1.png", "again.png"})].labels == ("cat",)


def test_text_and_json(root: Path) -> None:
    report = check(root)
    assert json.loads(json.dumps(report.as_dict()))["splits"] == {"train": [5, 2], "test": [4, 2]}
    text = "\n".join(report.lines())
    for part in (
        "9 images of 3 classes",
        "train: 5 images of 2 classes",
        "images per class: 1 to 5, median 3",
        "unreadable images or folders: 1",
        "ACROSS LABELS cat, owl; ACROSS SPLITS test, train",
        "classes in more than one split: 1",
    ):
        assert part in text


def test_long_lists_are_cut(tmp_path: Path) -> None:
    for number in range(14):
        draw(tmp_path / f"class{number:02}" / "1.png", number)
    lines = check(tmp_path).lines()
    assert "classes with a single image: 14" in lines
    assert "  and 4 more" in lines


def test_nothing_readable(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_text("text")
    with pytest.raises(ValueError, match=r"has 1 images, but none is readable, such as .*x\.png"):
        check(tmp_path)
