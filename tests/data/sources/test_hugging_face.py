"""Local data sets of Hugging Face, of images and of vectors."""

import json
import re
import shutil
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow.parquet import write_table

from proxemic.data import HuggingFaceDataset
from proxemic.data.reading import UnreadableImageError
from proxemic.data.vectors import UnreadableVectorsError, Vectors
from shards import colour, png, write_shards

pytestmark = pytest.mark.skipif(find_spec("datasets") is None, reason="datasets is not installed")


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Block the network, and convert Parquet files to Arrow in a folder of the test."""
    monkeypatch.setattr(socket.socket, "connect", None)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def made(count: int = 16, first: int = 0, **columns: Any) -> Any:
    """Make images and vectors filled with their number, two of each class."""
    import datasets

    numbers = range(first, first + count)
    features = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=[f"class {chr(97 + place)}" for place in range(20)]),
        "embedding": datasets.List(datasets.Value("float16"), length=3),
        "kind": datasets.Value("string"),
        "number": datasets.Value("int64"),
    }
    content = {
        "image": [{"bytes": png(number), "path": None} for number in numbers],
        "label": [number // 2 for number in numbers],
        "embedding": [[float(number)] * 3 for number in numbers],
        "kind": [f"kind {number // 2:02}" for number in numbers],
        "number": [number // 2 for number in numbers],
    } | columns
    chosen = {name: feature for name, feature in features.items() if content[name] is not None}
    return datasets.Dataset.from_dict({name: content[name] for name in chosen}, datasets.Features(chosen))


def labels_of(images: Any) -> list[str]:
    return [images.class_names[label] for label in images.labels.tolist()]


def test_whole_classes_are_held_out_and_images_keep_their_labels(tmp_path: Path) -> None:
    made(embedding=None).save_to_disk(tmp_path / "set")
    splits = HuggingFaceDataset(tmp_path / "set", test_fraction=0.5, validation_fraction=0.5).load()
    assert splits.validation is not None
    parts = [splits.train, splits.validation, splits.test_images]
    assert [part.num_classes for part in parts] == [2, 2, 4]
    for part in parts:
        values = [colour(part.pictures[place]) for place in range(len(part))]
        assert labels_of(part) == [f"class {chr(97 + value // 2)}" for value in values if isinstance(value, int)]


@pytest.mark.parametrize("kind", ["save_to_disk", "parquet", "arrow"])
def test_splits_are_those_of_the_data_set(tmp_path: Path, kind: str) -> None:
    import datasets

    parts: dict[Any, Any] = {"train": made(8), "validation": made(4, 8), "test": made(4, 12)}
    if kind == "save_to_disk":
        datasets.DatasetDict(parts).save_to_disk(tmp_path / "set")
    else:
        (tmp_path / "set").mkdir()
        for name, part in parts.items():
            file = tmp_path / "set" / f"{name}-00000-of-00001.{kind}"
            if kind == "parquet":
                part.to_parquet(file)
            else:
                part.save_to_disk(tmp_path / name)
                shutil.copy(tmp_path / name / "data-00000-of-00001.arrow", file)
    source = HuggingFaceDataset(tmp_path / "set", column="image")
    assert source.gives_splits()
    splits = source.load()
    assert splits.validation is not None
    assert splits.train.class_names == tuple(f"class {letter}" for letter in "abcd")
    assert [colour(splits.validation.pictures[place]) for place in range(4)] == [8, 9, 10, 11]
    assert labels_of(splits.test_images) == ["class g", "class g", "class h", "class h"]
    assert [*source.class_names()] == [f"class {letter}" for letter in "abcdefgh"]


def test_a_column_of_vectors(tmp_path: Path) -> None:
    made().save_to_disk(tmp_path / "set")
    with pytest.raises(ValueError, match=r"has the columns image, embedding: name one, as --data.column NAME"):
        HuggingFaceDataset(tmp_path / "set").load()
    splits = HuggingFaceDataset(tmp_path / "set", column="embedding", validation_fraction=0).load()
    vectors = splits.test_images.pixels
    assert isinstance(vectors, Vectors)
    found = vectors.fetch([3, 0, 3])
    assert found.dtype == torch.float32
    assert found.shape == (3, 3)
    assert torch.equal(found[0], found[2])
    assert [f"class {chr(97 + int(row[0]) // 2)}" for row in vectors.fetch(range(len(vectors)))] == labels_of(
        splits.test_images
    )


def test_vectors_of_several_lengths_and_missing_ones(tmp_path: Path) -> None:
    import datasets

    for number, rows in enumerate(([[1.0, 2.0], [1.0]] * 8, [[1.0, 2.0], None] * 8)):
        table = made(embedding=None).add_column("e", rows, feature=datasets.List(datasets.Value("float32")))
        table.save_to_disk(tmp_path / str(number))
        images, _ = HuggingFaceDataset(tmp_path / str(number), column="e").load_unsplit()
        assert isinstance(images.pixels, Vectors)
        assert images.pixels.fetch([0, 2]).tolist() == [[1.0, 2.0]] * 2
        with pytest.raises(UnreadableVectorsError, match="has rows with other dimensions than the first, which has 2"):
            images.pixels.fetch([0, 1])


def test_rows_without_a_label_are_left_out(tmp_path: Path) -> None:
    made(embedding=None, label=[0, 0, -1, None, *[1] * 12]).save_to_disk(tmp_path / "set")
    images, notes = HuggingFaceDataset(tmp_path / "set").load_unsplit()
    assert "Left out: 2 rows without a label." in notes
    assert [colour(images.pictures[place]) for place in range(3)] == [0, 1, 4]
    made(embedding=None, kind=[""] * 16).save_to_disk(tmp_path / "none")
    with pytest.raises(ValueError, match="has no label in its column kind"):
        HuggingFaceDataset(tmp_path / "none", label="kind").load()


def test_images_of_addresses_are_not_fetched_and_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(png(7))
    images = [
        {"bytes": None, "path": path} for path in (str(tmp_path / "0.png"), "https://example.org/a.png", "/no/such.png")
    ]
    content = made(embedding=None, image=[*images, {"bytes": b"x", "path": None}, None, *[images[0]] * 11])
    write_table(content.data.table, tmp_path / "all.parquet")  # their own writing would fetch the address
    pixels = HuggingFaceDataset(tmp_path / "all.parquet").load_unsplit()[0].pictures
    assert colour(pixels[0]) == 7
    for place, why in (
        (1, "https://example.org/a.png is not a file"),
        (2, "/no/such.png is not a file"),
        (4, "no path is no"),
    ):
        with pytest.raises(
            UnreadableImageError, match=f"row {place}, cannot be read as an image: it has no bytes, and {why}"
        ):
            pixels[place]
    with pytest.raises(UnreadableImageError, match="row 3, cannot be read as an image: its content is not JPEG"):
        pixels[3]


def test_what_is_no_data_set_is_one_sentence(tmp_path: Path) -> None:
    import datasets

    for root, message in (
        (None, r"data\.root is missing"),
        (tmp_path / "none", "does not exist: give a folder on this machine"),
        (Path("https://example.org/set"), "does not exist: give a folder on this machine"),
        (tmp_path, r"has no \.arrow or \.parquet file, and is not a folder of save_to_disk"),
    ):
        with pytest.raises(ValueError, match=message):
            HuggingFaceDataset(root).load()
    made().save_to_disk(tmp_path / "set")
    with pytest.raises(ValueError, match="has no column 'breed' of labels: name one of image, label, embedding"):
        HuggingFaceDataset(tmp_path / "set", column="image", label="breed").load()
    with pytest.raises(ValueError, match=r"embedding is List.*, but labels must be classes, text or whole numbers"):
        HuggingFaceDataset(tmp_path / "set", column="image", label="embedding").load()
    with pytest.raises(
        ValueError, match=r"kind is Value.* in one of its splits, but must be images, or lists of floats"
    ):
        HuggingFaceDataset(tmp_path / "set", column="kind").load()
    datasets.DatasetDict({"train": made(), "unsupervised": made()}).save_to_disk(tmp_path / "odd")
    with pytest.raises(ValueError, match="has the splits train, unsupervised, but unsupervised is none of train"):
        HuggingFaceDataset(tmp_path / "odd").load()
    (tmp_path / "set" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "gone.arrow"}]}))
    with pytest.raises(ValueError, match="cannot be read as a data set of Hugging Face"):
        HuggingFaceDataset(tmp_path / "set").load()


@pytest.mark.parametrize(("label", "first"), [("kind", "kind 00"), ("number", "0")])
def test_labels_may_be_text_or_numbers(tmp_path: Path, label: str, first: str) -> None:
    made(embedding=None).save_to_disk(tmp_path / "set")
    images, _ = HuggingFaceDataset(tmp_path / "set", label=label).load_unsplit()
    assert labels_of(images)[:2] == [first, first]
    assert images.num_classes == 8


def test_shards_of_webdataset_are_converted_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "large-data.md").read_text()
    (program,) = re.findall(r"```python\n(.*?load_dataset.*?)```", page, re.DOTALL)
    write_shards(tmp_path / "shards", classes=16, each=2)
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    splits = HuggingFaceDataset(tmp_path / "pets", label="cls").load()
    assert splits.validation is not None
    parts = (splits.train, splits.validation, splits.test_images)
    assert sum(len(part) for part in parts) == 32
    for part in parts:
        pixels: Any = part.pixels
        values: list[Any] = [colour(pixels[place]) for place in range(len(part))]
        assert [str(value // 5) for value in values] == labels_of(part), "a picture's value says its class"
