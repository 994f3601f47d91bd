import io
import os
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from images import tiled
from proxemic.data import (
    Augmentation,
    CacheConfig,
    EmbeddingDataset,
    FilePixels,
    ImageSet,
    OwnImages,
    Preprocessing,
    Splits,
    read_image,
    reading,
)
from proxemic.data.reading import UnreadableImageError, examine, read_small

PREPROCESSING = Preprocessing(size=16, resize=18)


def noise(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


@pytest.fixture
def photographs(tmp_path: Path) -> list[Path]:
    """Pictures like those of cameras, browsers and scanners."""
    folder = tmp_path / "a"
    folder.mkdir()
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        for name in (f"{orientation}.jpg", f"{orientation}.png"):
            Image.fromarray(noise(24, 40, 3)).save(folder / name, exif=exif)
    Image.fromarray(noise(24, 40, 4)).save(folder / "rgba.png")
    Image.fromarray(noise(24, 40, 2)).save(folder / "la.webp")
    Image.fromarray(noise(24, 40)).quantize(16).save(folder / "palette.png", transparency=3)
    Image.fromarray(noise(24, 40, dtype=np.uint16)).save(folder / "deep.png")
    Image.fromarray(noise(24, 40, 4)).convert("CMYK").save(folder / "cmyk.jpg")
    return sorted(folder.iterdir())


def forms(path: Path) -> list[Any]:
    return [path, str(path), path.read_bytes(), Image.open(path), read_image(path)]


def test_every_way_to_give_a_picture_makes_what_training_sees(photographs: list[Path]) -> None:
    (photographs[0].parent.parent / "b").mkdir()
    Image.new("L", (20, 20)).save(photographs[0].parent.parent / "b" / "1.png")
    images, _ = OwnImages(photographs[0].parent.parent).load_unsplit()
    assert isinstance(images.pixels, FilePixels)
    transform = PREPROCESSING.evaluation()
    augmentation = Augmentation(random_resized_crop=(0.2, 1.0), noise=0.1).training(PREPROCESSING)
    for place, path in enumerate(map(Path, images.pixels.paths)):
        seen, _ = EmbeddingDataset(images, transform)[place]
        trained_on, _ = EmbeddingDataset(images, augmentation)[place, 7]
        for form in forms(path):
            assert torch.equal(transform(form), seen), (path.name, type(form))
            torch.manual_seed(7)
            assert torch.equal(augmentation(form), trained_on), (path.name, type(form))


def test_it_is_what_pillow_does_with_exif(photographs: list[Path]) -> None:
    from PIL import ImageOps

    for path in photographs:
        if path.suffix == ".jpg":
            with Image.open(path) as image:
                upright = ImageOps.exif_transpose(image).convert("RGB")
            assert read_image(path).tobytes() == upright.tobytes(), path.name
            assert examine(path)[1] == upright.size, path.name


@pytest.mark.parametrize(
    ("array", "mode"),
    [
        (noise(4, 6), "L"),
        (noise(4, 6, 1), "L"),
        (noise(4, 6, 2), "LA"),
        (noise(4, 6, 3), "RGB"),
        (noise(4, 6, 4), "RGBA"),
        (np.asfortranarray(noise(4, 6, 3))[:, ::-1], "RGB"),
    ],
)
def test_arrays_are_read_as_their_file_is(tmp_path: Path, array: np.ndarray, mode: str) -> None:
    squeezed = np.ascontiguousarray(array[..., 0] if array.shape[2:] == (1,) else array)
    stored = Image.fromarray(squeezed)
    assert stored.mode == mode
    stored.save(tmp_path / "a.png")
    assert read_image(array).tobytes() == read_image(tmp_path / "a.png").tobytes()


def test_arrays_of_16_bits(tmp_path: Path) -> None:
    grey = noise(4, 6, dtype=np.uint16)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    for array in (grey, grey[..., None], grey.astype(">u2")):
        assert read_image(array).tobytes() == read_image(tmp_path / "grey.png").tobytes()
    deep = np.array([[0, 257, 32768, 65535]], dtype=np.uint16)
    assert np.asarray(read_image(deep)).tolist() == [[0, 1, 127, 255]]
    colour = noise(4, 6, 3, dtype=np.uint16)
    assert np.array_equal(np.asarray(read_image(colour)), colour >> 8)


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (np.zeros((4, 4)), r"an array of float64 of shape \[4, 4\], but it must be .* uint8 or uint16"),
        (np.zeros((3, 4, 5), dtype=np.uint8), r"of shape \[3, 4, 5\]"),
        (np.zeros((0, 4), dtype=np.uint8), r"of shape \[0, 4\]"),
        (b"text", "image of 4 bytes cannot be read as an image: its content is not"),
        (Image.new("F", (2, 2)), "image cannot be read as an image: floating-point"),
    ],
)
def test_what_is_no_picture(picture: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_image(picture)


def with_scans(count: int, appended: bytes = b"") -> bytes:
    """Make a progressive JPEG with empty scans, each of which takes as long to decode as the picture."""
    content = io.BytesIO()
    Image.new("L", (64, 64)).save(content, "JPEG", progressive=True)
    jpeg = content.getvalue()
    scans = b"\xff\xda\x00\x08\x01\x01\x00\x01\x3f\x00" * (count - jpeg.count(b"\xff\xda"))
    return jpeg[:-2] + scans + jpeg[-2:] + appended


def test_jpeg_data_of_many_scans_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_image(with_scans(200, appended=b"\xff\xda" * 300)).size == (64, 64)  # as a phone appends a film
    monkeypatch.setattr(Image.core, "jpeg_decoder", lambda *_: pytest.fail("it is decoded"))
    (tmp_path / "a.png").write_bytes(with_scans(201))
    for read in (read_image, examine):
        with pytest.raises(UnreadableImageError, match="more than 200 scans"):
            read(tmp_path / "a.png")


def test_tiff_data_of_many_jpeg_scans_is_refused() -> None:
    """libtiff refuses it by itself."""
    jpeg = with_scans(200)
    tags = ((256, 64), (257, 64), (258, 8), (259, 7), (262, 1), (273, 8), (277, 1), (278, 64), (279, len(jpeg)))
    fields = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    tiff = b"II*\0" + struct.pack("<I", 8 + len(jpeg)) + jpeg + struct.pack("<H", len(tags)) + fields + bytes(4)
    with pytest.raises(UnreadableImageError, match="decoder error"):
        read_image(tiff)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_pipes_and_devices_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")  # opening it waits for ever
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    for name in ("pipe.png", "zero.png"):
        with pytest.raises(UnreadableImageError, match=f"{name} cannot be read as an image: it is a pipe, a device"):
            read_image(tmp_path / name)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize(
    "exif", [b"Exif\0\0garbage", b"Exif\0\0", b"Exif\0\0II*\0", b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12"]
)
def test_damaged_exif_leaves_a_picture_as_it_is(tmp_path: Path, kind: str, exif: bytes) -> None:
    Image.new("RGB", (40, 24)).save(tmp_path / "a.png", kind, exif=exif)
    assert read_image(tmp_path / "a.png").size == examine(tmp_path / "a.png")[1] == (40, 24)
    with Image.open(tmp_path / "a.png") as image:
        assert read_image(image).size == (40, 24)


def test_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"Zo\xeb.png")
    with pytest.raises(UnreadableImageError, match=r"Zo\\udceb\.png cannot be read") as caught:
        read_image(path)
    str(caught.value).encode()


def smooth(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Make a picture without fine detail, since that depends on the scale of decoding."""
    noise = np.random.default_rng(0).integers(0, 256, (height // 12, width // 12, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


@pytest.mark.parametrize(
    ("size", "side", "decoded"),
    [
        ((420, 300), 37, (53, 38)),
        ((420, 300), 38, (105, 75)),
        ((300, 420), 75, (75, 105)),
        ((420, 300), 76, (210, 150)),
        ((420, 300), 151, (420, 300)),
    ],
)
def test_large_jpeg_files_are_decoded_at_the_smallest_scale_that_is_no_smaller(
    tmp_path: Path, size: tuple[int, int], side: int, decoded: tuple[int, int]
) -> None:
    smooth(*size).save(tmp_path / "a.jpg", quality=95)
    with Image.open(tmp_path / "a.jpg") as expected:
        expected.draft(None, (side, side))
        assert expected.size == decoded
        factor = min(decoded)
        resized = expected.resize((side * decoded[0] // factor, side * decoded[1] // factor), Image.Resampling.BILINEAR)
    for given in (tmp_path / "a.jpg", (tmp_path / "a.jpg").read_bytes()):
        found = read_image(given, side)
        assert min(found.size) == side
        assert found.tobytes() == resized.tobytes()


@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
@pytest.mark.parametrize("side", [300, 301, 10_000])
def test_what_is_no_larger_is_read_exactly(tmp_path: Path, name: str, side: int) -> None:
    smooth(420, 300).save(tmp_path / name)
    assert read_image(tmp_path / name, side) == read_image(tmp_path / name)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("orientation", [None, *range(1, 9)])
def test_a_part_of_the_size_shows_the_same_picture(tmp_path: Path, mode: str, orientation: int | None) -> None:
    exif = Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    smooth(420, 300, mode).save(tmp_path / "a.jpg", exif=exif, quality=95)
    found, whole = read_image(tmp_path / "a.jpg", 70), read_image(tmp_path / "a.jpg")
    shrunk = reading.shrink(whole, 70)
    assert (found.mode, found.size) == (shrunk.mode, shrunk.size)
    off = np.abs(np.asarray(found).astype(float) - np.asarray(shrunk)).mean()
    turned = np.abs(np.asarray(shrunk)[::-1].astype(float) - np.asarray(shrunk)).mean()
    assert off < 3 < turned / 10


@pytest.mark.parametrize("size", [(50, 80), (81, 47), (1333, 999), (64, 64), (2, 9)])
@pytest.mark.parametrize("side", [1, 31, 63])
def test_shrinking_is_torchvisions(size: tuple[int, int], side: int) -> None:
    image = Image.effect_noise(size, 50)
    expected = image if min(size) <= side else v2.Resize(side, v2.InterpolationMode.BILINEAR)(image)
    assert reading.shrink(image, side) == expected


TWELVE = np.arange(4096, dtype=np.uint16).reshape(64, 64)
"""Each value of 12 bits."""
DEEP = {
    "PNG": {},
    "PNG 12": {"used": 12},
    "TIFF": {},
    "TIFF 12": {"tiffinfo": {281: 4095}},
    "TIFF of 32": {},
    "TIFF of 32 12": {"tiffinfo": {281: 4095}},
}


def deep_file(kind: str, values: np.ndarray = TWELVE) -> bytes:
    """A file with pixels of 16 or 32 bits, which may state that 12 are used."""
    options, file = dict(DEEP[kind]), io.BytesIO()
    used = options.pop("used", None)
    values = values.astype(np.int32) if "32" in kind else values
    Image.fromarray(values).save(file, kind.partition(" ")[0], **options)
    return with_used_bits(file.getvalue(), used) if used else file.getvalue()


def with_used_bits(png: bytes, *used: int) -> bytes:
    return png[:33] + chunk(b"sBIT", bytes(used)) + png[33:]


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def colours_of_16_bits(values: np.ndarray, *used: int) -> bytes:
    """A PNG with 16-bit colours, which Pillow reads but does not write."""
    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0))
    png = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return with_used_bits(png, *used) if used else png


def pixels_of(content: Any, bits: Any = None) -> np.ndarray:
    return np.asarray(read_image(content, bits=bits))


@pytest.mark.parametrize("kind", DEEP)
def test_12_of_16_or_32_bits_are_scaled_by_the_stated_range_or_refused(kind: str) -> None:
    content, scaled = deep_file(kind), TWELVE.astype(int) * 255 // 4095
    assert np.array_equal(pixels_of(content, bits=12), scaled)
    if kind.endswith(" 12"):
        assert np.array_equal(pixels_of(content), scaled)
    else:
        with pytest.raises(UnreadableImageError, match=r"images\.bits"):
            read_image(content)
    assert np.array_equal(pixels_of(content, bits=16), TWELVE // 257)
    with pytest.raises(UnreadableImageError, match=r"0 to 1,023"):
        read_image(content, bits=10)
    assert np.array_equal(pixels_of(content, bits="auto"), scaled)


def test_all_16_bits_stay_as_they_are_and_32_need_their_range() -> None:
    values = noise(20, 30, dtype=np.uint16)
    for kind in ("PNG", "TIFF", "TIFF of 32"):
        assert np.array_equal(pixels_of(deep_file(kind, values)), values // 257)
        assert not np.array(read_image(deep_file(kind, 0 * values))).any()
    file = io.BytesIO()
    Image.fromarray(values.astype(np.int32) * 16).save(file, "TIFF")
    with pytest.raises(UnreadableImageError, match=r"images\.bits"):
        read_image(file.getvalue())
    assert np.array_equal(pixels_of(file.getvalue(), bits=20), values.astype(int) * 16 * 255 // (2**20 - 1))
    negative = io.BytesIO()
    Image.fromarray(np.array([[-1, 60000]], np.int32)).save(negative, "TIFF")
    for bits in (None, 16):
        with pytest.raises(UnreadableImageError, match="-1 to 60,000"):
            read_image(negative.getvalue(), bits=bits)


def test_colours_of_16_bits_that_use_fewer_are_refused() -> None:
    whole = np.stack([TWELVE * 16] * 3, 2)
    assert np.array_equal(pixels_of(colours_of_16_bits(whole)), whole >> 8)
    dark = colours_of_16_bits(whole // 16)
    for bits in (None, 12):
        with pytest.raises(UnreadableImageError, match="16 bits, but use fewer"):
            read_image(dark, bits=bits)
    with pytest.raises(UnreadableImageError, match="16 bits, but use fewer"):
        read_image(colours_of_16_bits(whole // 16, 12, 12, 12))
    assert np.array_equal(pixels_of(dark, bits=16), whole // 16 >> 8)
    assert np.array_equal(pixels_of(whole), whole >> 8)
    assert np.array_equal(pixels_of(whole // 16, bits=12), (whole // 16).astype(int) * 255 // 4095)
    with pytest.raises(ValueError, match=r"images\.bits"):
        read_image(whole // 16)


def test_the_network_sees_all_values_of_12_bits(tmp_path: Path) -> None:
    preprocessing = Preprocessing(size=64, resize=None, channels=1, mean=(0,), std=(1,), bits=12)
    path = tmp_path / "a.png"
    path.write_bytes(deep_file("PNG"))
    images = ImageSet.from_names(FilePixels([path, path], [None, (0, 0, 64, 64)]), ["a", "b"])
    splits = CacheConfig(32, tmp_path / "cache").apply(Splits(images, None, None), bits=12)
    for part, side in ((images, 64), (splits.train, 32)):
        transform = replace(preprocessing, size=side)
        for tensor, _ in EmbeddingDataset(part, transform.evaluation(), bits=12):  # pyright: ignore[reportGeneralTypeIssues]
            assert len(tensor.unique()) > 100
            assert float(tensor.max()) > 0.95
    with pytest.raises(UnreadableImageError, match=r"images\.bits"):
        EmbeddingDataset(images, replace(preprocessing, bits=None).evaluation())[0]
    with pytest.raises(UnreadableImageError, match=r"images\.bits"):
        CacheConfig(32, tmp_path / "cache").apply(Splits(images, None, None))


def test_a_small_image_with_a_huge_tile_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "tile.tif"
    Image.new("L", (16, 16)).save(path, "TIFF", compression="tiff_deflate")
    with Image.open(path) as image:
        assert reading.decoded_pixels(image) == 256
    path.write_bytes(tiled(16, 40960))
    with Image.open(path) as image:
        assert reading.decoded_pixels(image) == 40960**2
    with pytest.raises(UnreadableImageError, match="tile"):
        read_image(path)
    path.write_bytes(tiled(16, 64))
    assert read_image(path).size == (16, 16)


def test_small_copies_look_like_the_pictures(photographs: list[Path]) -> None:
    for path in photographs:
        whole, small = read_image(path), read_small(path, 6)
        assert (whole.mode, [side // 4 for side in whole.size]) == (small.mode, [*small.size])
        box = (2, 3, 22, 23)
        np.testing.assert_allclose(np.array(read_small(path, 24, box)), np.array(whole.crop(box)).astype(int), atol=1)
    flat = Image.fromarray(np.full((40, 60, 3), 200, np.uint8))
    flat.save(photographs[0], "PNG")
    assert np.array_equal(np.unique(np.array(read_small(photographs[0], 6))), [200])
    with pytest.raises(ValueError, match="exceeds the upright image"):
        read_small(photographs[0], 6, (0, 0, 61, 40))
