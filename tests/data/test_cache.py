"""The cache of decoded pictures has the pixels of the files, is reused, and is never stale or incomplete."""

import multiprocessing
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from proxemic.data import (
    ArrayPixels,
    Augmentation,
    CacheConfig,
    EmbeddingDataset,
    FilePixels,
    ImageSet,
    Preprocessing,
    Splits,
)
from proxemic.data import cache as module
from proxemic.data.formats.tables import Box
from proxemic.data.pixels import CachedPixels, PixelFile, Pixels, write_pixels
from proxemic.data.reading import UnreadableImageError
from proxemic.errors import UserError

SIDE = 32
REDUCED = Preprocessing(size=28, resize=SIDE, reduce=True)


def write_image(path: Path, mode: str, size: tuple[int, int], orientation: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = size[::-1] if mode == "L" else (*size[::-1], 3)
    values = np.random.default_rng(sum(size)).integers(0, 256, shape, dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(values).save(path, exif=exif)
    return path


def write_files(folder: Path, count: int = 6) -> list[Path]:
    sizes = [(40 + 3 * (number % 7), 60 - 5 * (number % 7)) for number in range(count)]
    return [write_image(folder / f"{number}.png", ("L", "RGB")[number % 2], size) for number, size in enumerate(sizes)]


def image_set(paths: list[Path]) -> ImageSet:
    return ImageSet.from_names(FilePixels(paths), [str(number % 2) for number in range(len(paths))])


def cache_images(images: ImageSet, shorter_side: int, folder: Path) -> tuple[ImageSet, tuple[str, ...]]:
    splits = CacheConfig(shorter_side, folder).apply(Splits(images, None, None))
    return splits.train, splits.notes


def content(pixels: Pixels) -> list[bytes]:
    return [b"%d %d " % pixels[index].size + pixels[index].tobytes() for index in range(len(pixels))]


def shrunk(paths: list[Path]) -> list[bytes]:
    images = [module._shrink((path, None), module._Shrinking(SIDE, reduces=False)) for path in paths]
    return [b"%d %d " % image.size + image.tobytes() for image in images]


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were decoded for a cache."""
    calls: list[Path] = []
    shrink = module._shrink

    def count(cut: tuple[Path, Box | None], shrinking: Any) -> Image.Image:
        calls.append(cut[0])
        return shrink(cut, shrinking)

    monkeypatch.setattr(module, "_shrink", count)
    monkeypatch.setattr(module, "_check_space", lambda *_: None)  # which decodes some too
    return calls


@pytest.mark.parametrize("orientation", [1, 6, 7])
@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_evaluation_is_the_same_to_the_bit(tmp_path: Path, mode: str, name: str, orientation: int) -> None:
    sizes = [(200, 150), (151, 200), (33, 33), (700, 40), (32, 90), (90, 31), (20, 25), (67, 45)]
    paths = [write_image(tmp_path / str(number) / name, mode, size, orientation) for number, size in enumerate(sizes)]
    images = ImageSet.from_names(FilePixels(paths), ["one"] * len(paths))
    cached, _ = cache_images(images, SIDE, tmp_path / "cache")
    colour = Preprocessing(size=28, resize=SIDE)
    grey = Preprocessing(size=28, resize=SIDE, channels=1, mean=(0.5,), std=(0.5,))
    for preprocessing in (colour, grey) if mode == "L" else (colour,):
        transform = preprocessing.evaluation()
        for index, (width, height) in enumerate(sizes):
            file, kept = images.pictures[index], cached.pictures[index]
            assert torch.equal(transform(file), transform(kept))
            assert kept.mode == mode
            assert min(kept.size) == min(SIDE, width, height)  # shrunk, never enlarged


def test_a_cache_is_found_again(tmp_path: Path, decoded: list[Path]) -> None:
    images = image_set(write_files(tmp_path / "images"))
    first, notes = cache_images(images, SIDE, tmp_path / "cache")
    second, same = cache_images(images, SIDE, tmp_path / "cache")
    assert len(decoded) == len(images)
    (path,) = files_in(tmp_path / "cache")
    assert notes == same
    assert notes == (f"6 images are read from the cache {path} (0.0 MB), shrunk to a shorter side of 32 pixels.",)
    assert content(first.pictures) == content(second.pictures)
    assert torch.equal(first.labels, images.labels)
    assert first.class_names == images.class_names


def new_time(path: Path) -> None:
    os.utime(path, (1e9, 1e9))


def new_content(path: Path) -> None:
    facts = path.stat()
    path.write_bytes(path.read_bytes() + b"more")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def test_changed_files_and_other_sides_and_files_have_other_caches(tmp_path: Path, decoded: list[Path]) -> None:
    paths = write_files(tmp_path / "images")
    cache_images(image_set(paths), SIDE, tmp_path / "cache")
    for number, change in enumerate((new_time, new_content), start=2):
        change(paths[3])
        _, notes = cache_images(image_set(paths), SIDE, tmp_path / "cache")
        assert len(decoded) == number * len(paths)
        assert len(notes) == 1
    for number, (files, side) in enumerate([(paths, 16), (paths[:4], SIDE)], start=4):
        cached, _ = cache_images(image_set(files), side, tmp_path / "cache")
        assert min(cached.pictures[0].size) == side
        assert len(files_in(tmp_path / "cache")) == number


def test_parts_share_one_file_however_they_are_split(tmp_path: Path, decoded: list[Path]) -> None:
    paths = write_files(tmp_path / "images", 8)
    train, validation, test = image_set(paths[:4]), image_set(paths[4:6]), image_set(paths[6:])
    splits = CacheConfig(SIDE, tmp_path / "cache").apply(Splits(train, validation, test, ("A fact.",)))
    assert splits.validation is not None
    assert splits.notes[0] == "A fact."
    assert splits.notes[1].startswith("8 images are read from the cache")
    other = CacheConfig(SIDE, tmp_path / "cache").apply(Splits(image_set(paths[::-1]), None, test))
    assert (len(decoded), len(files_in(tmp_path / "cache"))) == (8, 1)
    parts = [(splits.train, paths[:4]), (splits.validation, paths[4:6]), (other.train, paths[::-1])]
    for part, files in parts:
        assert isinstance(part.pixels, CachedPixels)
        assert part.pixels.paths == tuple(files)
        assert content(part.pixels) == shrunk(files)


def test_what_is_no_file_is_left_as_it_is(tmp_path: Path) -> None:
    memory = ImageSet.from_names(ArrayPixels(np.zeros((2, 50, 50), dtype=np.uint8)), ["a", "b"])
    assert cache_images(memory, SIDE, tmp_path) == (memory, ())
    files = image_set(write_files(tmp_path / "images"))
    splits = CacheConfig(SIDE, tmp_path / "cache").apply(Splits(files, memory, memory))
    assert splits.validation is splits.test_images is memory
    again = CacheConfig(16, tmp_path / "cache").apply(splits)
    assert (again.train is splits.train, again.notes) == (True, splits.notes)


def drop_a_picture(path: Path) -> None:
    file = PixelFile(path)
    write_pixels(path, [file.read(place) for place in range(len(file) - 1)])


DAMAGES: list[Callable[[Path], object]] = [
    lambda path: path.write_bytes(path.read_bytes()[:-1]),
    lambda path: path.write_bytes(path.read_bytes()[:20]),
    lambda path: path.write_bytes(path.read_bytes() + bytes(12)),
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(b"text " * 1000),
    drop_a_picture,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_written_again(
    tmp_path: Path, decoded: list[Path], damage: Callable[[Path], object]
) -> None:
    images = image_set(write_files(tmp_path / "images"))
    first, _ = cache_images(images, SIDE, tmp_path / "cache")
    expected = content(first.pictures)
    (path,) = files_in(tmp_path / "cache")
    path.rename(tmp_path / "moved")  # `first` keeps its own memory
    path.write_bytes((tmp_path / "moved").read_bytes())
    damage(path)
    again, notes = cache_images(images, SIDE, tmp_path / "cache")
    assert notes[0].startswith(f"A cache of images was written again: {path} has ") or "is not a sound file" in notes[0]
    assert len(decoded) == 2 * len(images)
    assert content(again.pictures) == expected
    assert files_in(tmp_path / "cache") == [path]


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"text"), Path.unlink])
def test_an_unreadable_image_is_named_and_nothing_kept(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    paths = write_files(tmp_path / "images", 200)
    damage(paths[-1])
    with pytest.raises(UnreadableImageError, match=r"199\.png cannot be read as an image: .+\.$"):
        cache_images(image_set(paths), SIDE, tmp_path / "cache")
    assert not files_in(tmp_path / "cache")


def test_too_little_space_is_said_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = image_set([write_image(tmp_path / f"{number}.png", "RGB", (300, 200)) for number in range(4)])
    needed = 4 * 3 * 100 * 150
    free = SimpleNamespace(free=needed - 1)
    monkeypatch.setattr(module, "_SAMPLE", 2)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: free)
    message = rf"{tmp_path}/cache has 0\.2 MB free, but the cache of 4 images at shorter side 100 needs about 0\.2 MB: "
    with pytest.raises(UserError, match=message):
        cache_images(images, 100, tmp_path / "cache")
    splits = Splits(images, None, None, ("A fact.",))
    free.free = 2 * needed - 1  # auto takes half of it
    found = CacheConfig("auto", tmp_path / "cache").apply(splits, 100)
    assert found.train is images
    assert found.notes[0] == "A fact."
    assert found.notes[1].startswith(f"The images are read from their files: {tmp_path}/cache has 0.4 MB free, but")
    assert not (tmp_path / "cache").exists()
    cache_images(images, 100, tmp_path / "cache")
    free.free = 2 * needed
    (tmp_path / "file").write_text("in the way")
    found = CacheConfig("auto", tmp_path / "file" / "cache").apply(splits, 100)
    assert found.train is images
    assert "could not be written: not a directory" in found.notes[1]
    assert isinstance(CacheConfig("auto", tmp_path / "auto").apply(splits, 100).train.pixels, CachedPixels)


def build(root: Path, paths: list[Path], seconds: float) -> None:
    shrink = module._shrink

    def slow(cut: tuple[Path, Box | None], shrinking: Any) -> Image.Image:
        time.sleep(seconds)
        return shrink(cut, shrinking)

    # In this process, which ends:
    module._shrink, module._check_space = slow, lambda *_: None
    cached, _ = cache_images(image_set(paths), SIDE, root / "cache")
    assert content(cached.pictures) == shrunk(paths)


def test_one_that_is_killed_and_two_at_once(tmp_path: Path) -> None:
    paths = write_files(tmp_path / "images", 20)
    start = multiprocessing.get_context("fork").Process
    processes = [start(target=build, args=(tmp_path, paths, seconds)) for seconds in (600, 0.02, 0.02)]
    processes[0].start()
    until = time.monotonic() + 300
    while not list(tmp_path.glob(f"cache/.*.{processes[0].pid}.tmp")):
        assert processes[0].is_alive()
        assert time.monotonic() < until
        time.sleep(0.01)
    for process in processes[1:]:
        process.start()
    processes[0].kill()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [-9, 0, 0]
    *killed, whole = (path.name for path in files_in(tmp_path / "cache"))
    assert all(name.endswith(f".{processes[0].pid}.tmp") for name in killed)
    assert whole.endswith(".pixels")
    cache_images(image_set(paths[1:]), SIDE, tmp_path / "cache")
    assert not list(tmp_path.glob("cache/*.tmp"))


def test_a_pickle_and_a_selection_hold_no_pixels(tmp_path: Path) -> None:
    paths = [write_image(tmp_path / f"{number}.png", "RGB", (300, 300 + number)) for number in range(3)]
    images, _ = cache_images(image_set(paths), 300, tmp_path / "cache")
    pixels = images.pixels
    assert isinstance(pixels, CachedPixels)
    pickled = pickle.dumps(pixels)
    assert len(pickled) < 2000
    assert content(pickle.loads(pickled)) == content(pixels)
    chosen = pixels.select([2, 0])
    assert chosen.file is pixels.file
    assert chosen.paths == (paths[2], paths[0])
    assert content(chosen) == [content(pixels)[2], content(pixels)[0]]


def test_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = image_set(write_files(tmp_path / "images"))
    splits = Splits(images, None, images)
    assert CacheConfig().apply(splits) is splits
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert min(CacheConfig(SIDE).apply(splits).test_images.pictures[0].size) == SIDE
    CacheConfig(SIDE, tmp_path / "mine").apply(splits)
    assert [len(files_in(tmp_path / name)) for name in ("user/proxemic/images", "mine")] == [1, 1]
    for side in (0, -1):
        with pytest.raises(ValueError, match=f"shorter_side is {side}, but must be at least 1"):
            CacheConfig(side)


def write_photographs(folder: Path) -> ImageSet:
    """Write large and small pictures, upright and rotated, of all formats, and one with boxes."""
    paths = [
        write_image(folder / "large.jpg", "RGB", (300, 210)),
        write_image(folder / "turned.jpg", "RGB", (180, 400), 6),
        write_image(folder / "grey.jpg", "L", (150, 300)),
        write_image(folder / "large.png", "RGB", (150, 200)),
        write_image(folder / "small.jpg", "RGB", (50, 40)),
    ]
    boxes = [None] * 5 + [(10, 20, 290, 200), (0, 0, 20, 30)]
    return ImageSet.from_names(FilePixels([*paths, *paths[:1] * 2], boxes), list("aabbccc"))


@pytest.mark.parametrize("channels", [1, 3])
def test_auto_changes_no_tensor(tmp_path: Path, channels: int) -> None:
    images = write_photographs(tmp_path)
    splits = CacheConfig("auto", tmp_path / "cache").apply(Splits(images, None, None), REDUCED.reduced_side)
    assert isinstance(splits.train.pixels, CachedPixels)
    assert splits.notes[-1].endswith(
        "shrunk to a shorter side of 64 pixels; --cache.shorter_side null does without, and gives the same."
    )
    preprocessing = REDUCED
    if channels == 1:
        preprocessing = Preprocessing(size=28, resize=SIDE, channels=1, mean=(0.5,), std=(0.5,), reduce=True)
    augmentation = Augmentation(random_resized_crop=(0.16, 1.0), horizontal_flip=0.5, degrees=10)
    for transform in (preprocessing.evaluation(), augmentation.training(preprocessing)):
        files, cached = (
            EmbeddingDataset(part, transform, side=preprocessing.reduced_side) for part in (images, splits.train)
        )
        for index in range(len(images)):
            assert torch.equal(files[index, 3][0], cached[index, 3][0]), index


def test_auto_caches_what_is_mostly_large(tmp_path: Path) -> None:
    splits = Splits(
        image_set([write_image(tmp_path / f"{index}.jpg", "RGB", (64, 80)) for index in range(4)]), None, None
    )
    cache = CacheConfig("auto", tmp_path / "cache")
    assert cache.apply(splits, 64) is splits  # nothing to shrink
    assert cache.apply(splits) is splits  # nothing is reduced
    assert isinstance(cache.apply(splits, 63).train.pixels, CachedPixels)
    boxes = FilePixels([tmp_path / "0.jpg"] * 2, [(0, 0, 50, 50), (0, 0, 30, 60)])
    assert cache.apply(Splits(ImageSet.from_names(boxes, ["a", "b"]), None, None), 60).notes == ()


def test_a_number_keeps_what_it_kept(tmp_path: Path) -> None:
    """JPEG files are decoded at a reduced scale only if images are reduced to the cache's size."""
    image = image_set([write_image(tmp_path / "a.jpg", "RGB", (300, 210))])
    whole, reduced = (
        CacheConfig(64, tmp_path / "cache").apply(Splits(image, None, None), side).train.pictures[0]
        for side in (None, 64)
    )
    exact = image.pictures[0].resize((91, 64), Image.Resampling.BILINEAR)
    assert whole.tobytes() == exact.tobytes() != reduced.tobytes() == image.pictures.load(0, 64).tobytes()
