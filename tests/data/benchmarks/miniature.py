"""Tiny copies of the papers' data sets: the original layout, random pictures, half of the classes to train on."""

import gzip
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

KINDS = ("bicycle_final", "cabinet_final")


def write_cub(folder: Path, classes: int = 8, images: int = 4) -> Path:
    """`folder/CUB_200_2011`."""
    tree = folder / "CUB_200_2011"
    names = [f"{number:03d}.Bird_{number}" for number in range(1, classes + 1)]
    listed = [
        (number, f"{name}/{name[4:]}_{image:04d}.jpg")
        for number, name in enumerate(names, 1)
        for image in range(images)
    ]
    for number, path in listed:
        _draw(tree / "images" / path, number)
    _write(tree / "classes.txt", [f"{number} {name}" for number, name in enumerate(names, 1)])
    _write(tree / "images.txt", [f"{image} {path}" for image, (_, path) in enumerate(listed, 1)])
    _write(tree / "image_class_labels.txt", [f"{image} {number}" for image, (number, _) in enumerate(listed, 1)])
    return folder


def write_cars(folder: Path, classes: int = 8, images: int = 4, parts: bool = False) -> Path:
    """`folder/car_ims` and `cars_annos.mat`, or torchvision's layout with its training and test parts."""
    labels = [number for number in range(1, classes + 1) for _ in range(images)]
    names = np.array([f"Maker Model {number} 2012" for number in range(1, classes + 1)], dtype=object)
    if not parts:
        _annotate(folder / "cars_annos.mat", "relative_im_path", "car_ims/{:06d}.jpg", labels, {"class_names": names})
        for image, label in enumerate(labels, 1):
            _draw(folder / "car_ims" / f"{image:06d}.jpg", label)
        return folder
    (folder / "devkit").mkdir(parents=True, exist_ok=True)
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": names})
    for part, listing, own in (
        ("cars_train", "devkit/cars_train_annos.mat", labels[::2]),
        ("cars_test", "cars_test_annos_withlabels.mat", labels[1::2]),
    ):
        _annotate(folder / listing, "fname", "{:05d}.jpg", own)
        for image, label in enumerate(own, 1):
            _draw(folder / part / f"{image:05d}.jpg", label)
    return folder


def write_sop(folder: Path, classes: int = 8, images: int = 4) -> Path:
    """`folder/Stanford_Online_Products`."""
    tree = folder / "Stanford_Online_Products"
    lines = [[], []]
    for number in range(1, classes + 1):
        kind = number % len(KINDS)
        for image in range(images):
            path = f"{KINDS[kind]}/1110851228{number:02d}_{image}.JPG"
            _draw(tree / path, number)
            lines[number > classes // 2].append(f"{(number - 1) * images + image + 1} {number} {kind + 1} {path}")
    for part, own in zip(("train", "test"), lines, strict=True):
        _write(tree / f"Ebay_{part}.txt", ["image_id class_id super_class_id path", *own])
    return folder


def write_in_shop(folder: Path, classes: int = 8, images: int = 4) -> Path:
    """Write `folder/Eval/list_eval_partition.txt` and `folder/Img/img`; each test item has two queries."""
    lines = []
    for number in range(1, classes + 1):
        item = f"id_{number:08d}"
        for image in range(images):
            path = f"img/WOMEN/Dresses/{item}/{image:02d}_1_front.jpg"
            status = "train" if number <= classes // 2 else "query" if image < 2 else "gallery"
            _draw(folder / "Img" / path, number)
            lines.append(f"{path:50} {item} {status}     ")
    _write(
        folder / "Eval" / "list_eval_partition.txt", [str(len(lines)), "image_name item_id evaluation_status", *lines]
    )
    return folder


def write_fashion_mnist(folder: Path, images: int = 4) -> Path:
    """Write the four packed files in `folder`, with this many `images` of each of the ten classes in both parts."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "t10k"):
        labels = rng.permutation(np.repeat(np.arange(10, dtype=np.uint8), images))
        pictures = (labels[:, None, None] * 20 + rng.integers(0, 50, (len(labels), 28, 28))).astype(np.uint8)
        for name, array in ((f"{part}-images-idx3-ubyte", pictures), (f"{part}-labels-idx1-ubyte", labels)):
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array), mtime=0))
    return folder


def idx(array: np.ndarray) -> bytes:
    """Return an array in the file format of MNIST."""
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def pack(tree: Path, archive: Path) -> Path:
    """Pack a folder into a .zip or .tgz like the original one, and write the files that come with it."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as opened:
            for path in _files(tree):
                opened.write(path, path.relative_to(tree.parent))
            opened.writestr("__MACOSX/._junk", b"no image")
    else:
        with tarfile.open(archive, "w:gz") as opened:
            opened.add(tree, tree.name)
    return archive


def _files(tree: Path) -> Iterator[Path]:
    return (path for path in sorted(tree.rglob("*")) if path.is_file())


def _draw(path: Path, label: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([label, *path.name.encode()])
    noise = rng.integers(0, 60, (40, 48, 3)) + 20 * np.array([label % 9, label % 5, label % 7])
    Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(path, "JPEG")


def _annotate(path: Path, field: str, name: str, labels: list[int], more: dict[str, np.ndarray] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    annotations = np.empty(len(labels), dtype=[(field, object), ("class", object)])
    for index, label in enumerate(labels):
        annotations[index] = (name.format(index + 1), label)
    savemat(path, {"annotations": annotations, **(more or {})})


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
