import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets.utils import calculate_md5

from data.benchmarks.miniature import idx, write_fashion_mnist
from proxemic.data import FashionMNIST
from proxemic.data.benchmarks import AbsentError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_fashion_mnist(tmp_path)
    files = tuple(replace(file, md5=calculate_md5(tmp_path / file.name)) for file in FashionMNIST.facts.files)
    counts = {"train classes": 10, "train images": 40, "test classes": 10, "test images": 40}
    monkeypatch.setattr(FashionMNIST, "facts", replace(FashionMNIST.facts, counts=counts, files=files))
    return tmp_path


def unpacked(root: Path, name: str) -> np.ndarray:
    content = gzip.decompress((root / f"{name}.gz").read_bytes())
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(
        -1, *((28, 28) if content[3] == 3 else ())
    )


def test_classes_are_parted(root: Path) -> None:
    splits = FashionMNIST(root, validation_fraction=0.0).load()
    assert splits.train.class_names == ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat")
    assert splits.test_images.class_names == ("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
    labels = unpacked(root, "t10k-labels-idx1-ubyte")
    pictures = unpacked(root, "t10k-images-idx3-ubyte")[labels >= 5]
    assert splits.test_images.labels.tolist() == (labels[labels >= 5].astype(int) - 5).tolist()
    for index, picture in enumerate(pictures):
        assert np.array_equal(np.asarray(splits.test_images.pictures[index]), picture)
    validated = FashionMNIST(root).load()
    assert validated.validation is not None
    assert (validated.train.num_classes, validated.validation.num_classes) == (3, 2)


def test_images_are_parted(root: Path) -> None:
    splits = FashionMNIST(root, validation_fraction=0.25, split="images").load()
    assert splits.validation is not None
    assert (len(splits.train), len(splits.validation), len(splits.test_images)) == (30, 10, 40)
    assert splits.train.class_names == splits.test_images.class_names
    assert "were trained on" in splits.notes[0]
    other = FashionMNIST(root, validation_fraction=0.25, split_seed=1, split="images").load()
    assert other.train.labels.tolist() != splits.train.labels.tolist()
    assert FashionMNIST(root, validation_fraction=0.0, split="images").load().validation is None
    with pytest.raises(ValueError, match=r"validation_fraction is 1\.5"):
        FashionMNIST(root, validation_fraction=1.5, split="images").load()


@pytest.mark.parametrize("packed", [False, True])
def test_places(root: Path, packed: bool) -> None:
    folder = root / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    for file in FashionMNIST.facts.files:
        path = root / file.name
        path.rename(folder / file.name)
        if not packed:
            (folder / path.stem).write_bytes(gzip.decompress((folder / file.name).read_bytes()))
            (folder / file.name).unlink()
    for place in (root, root / "FashionMNIST", folder):
        assert len(FashionMNIST(place).load().test_images) == 20


def test_damage(root: Path) -> None:
    pictures, labels = (root / f"train-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
    whole = pictures.read_bytes()
    raw = gzip.decompress(whole)
    for content, message in (
        (whole[:-20], "is damaged or cut short"),
        (b"no gzip", "is damaged or cut short"),
        (gzip.compress(raw[:-784]), r"holds 30,576 bytes, but announces 40 x 28 x 28"),
        (gzip.compress(b"\x00\x00\x0d" + raw[3:]), "is not an idx file"),
        (gzip.compress(idx(np.zeros((39, 28, 28), np.uint8))), "39 images and 40 labels"),
    ):
        pictures.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            FashionMNIST(root).load()
    pictures.write_bytes(whole)
    labels.write_bytes(gzip.compress(idx(np.repeat(np.arange(9, dtype=np.uint8), 5)[:40])))
    with pytest.raises(ValueError, match="a label for each of classes 0 to 9 is needed"):
        FashionMNIST(root).load()
    labels.write_bytes(gzip.compress(idx(np.repeat(np.arange(10, dtype=np.uint8), 4))))
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte\.gz is not the published one, by its MD5"):
        FashionMNIST(root).load()
    assert len(FashionMNIST(root, check_counts=False).load().notes) == 2
    labels.unlink()
    with pytest.raises(AbsentError, match=r"has no train-labels-idx1-ubyte\.gz: run proxemic datasets prepare"):
        FashionMNIST(root).load()
