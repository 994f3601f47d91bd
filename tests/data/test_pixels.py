import io
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch._utils import ExceptionWrapper

from proxemic.data import ArrayPixels, FilePixels
from proxemic.data.reading import UnreadableImageError

INK = (200, 40, 90)


def read(path: Path) -> Image.Image:
    return FilePixels([path])[0]


def test_transparency_is_flattened_on_white(tmp_path: Path) -> None:
    half = Image.new("RGBA", (2, 1), (0, 0, 0, 255))
    half.putpixel((1, 0), (0, 0, 0, 0))
    half.save(tmp_path / "rgba.png")
    half.convert("LA").save(tmp_path / "la.png")
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 0, 0, 0])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "p.png", transparency=1)
    expected = {
        "rgba.png": ("RGB", (0, 0, 0), (255,) * 3),
        "la.png": ("L", 0, 255),
        "p.png": ("RGB", (10, 20, 30), (255,) * 3),
    }
    for name, (mode, left, right) in expected.items():
        image = read(tmp_path / name)
        assert (image.mode, image.getpixel((0, 0)), image.getpixel((1, 0))) == (mode, left, right), name


def truncated_png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()[:2000]


def damaged_png() -> bytes:
    header = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)
    crc = struct.pack(">I", zlib.crc32(b"IHDR" + header))
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + header + crc + b"\x00\x00\x00\x09IDATrubbish!!"


@pytest.mark.parametrize("content", [b"hello, I am text", b"", truncated_png(), damaged_png()])
def test_what_cannot_be_decoded_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.png"
    path.write_bytes(content)
    with pytest.raises(UnreadableImageError, match=r"bad\.png cannot be read as an image: .+\.$"):
        read(path)


def test_error_survives_pickling_and_a_worker(tmp_path: Path) -> None:
    error = UnreadableImageError(tmp_path / "x.png", "broken")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.path, copy.reason) == (str(error), error.path, error.reason)
    try:
        raise error
    except UnreadableImageError:
        from_worker = ExceptionWrapper(where="in a worker")  # what a DataLoader sends home
    with pytest.raises(UnreadableImageError, match=r"x\.png cannot be read as an image: broken"):
        from_worker.reraise()


def test_boxes_must_fit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="boxes has 1 entries but paths 2: give one per image"):
        FilePixels([Path("a"), Path("b")], [None])
    Image.new("L", (8, 6)).save(tmp_path / "a.png")
    pixels = FilePixels([tmp_path / "a.png"] * 2, [(0, 0, 8, 6), (0, 0, 8, 7)])
    assert pixels[0].size == (8, 6)
    message = r"a\.png cannot be read as an image: its box \(0, 0, 8, 7\) exceeds the upright image, 8 x 6 pixels"
    with pytest.raises(UnreadableImageError, match=message):
        pixels[1]


def test_select_reorders() -> None:
    array = np.arange(3, dtype=np.uint8).reshape(3, 1, 1)
    chosen = ArrayPixels(array).select([2, 0])
    assert [chosen[place].getpixel((0, 0)) for place in range(len(chosen))] == [2, 0]
    assert FilePixels([Path("a"), Path("b")]).select([1]).paths == (Path("b"),)


def test_a_box_is_cut_out_of_the_whole_image_before_it_is_shrunk(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.effect_noise((400, 300), 50).save(path)
    pixels = FilePixels([path] * 3, [(1, 3, 301, 203), (0, 0, 60, 90), None])
    with Image.open(path) as whole:
        cut = whole.crop((1, 3, 301, 203)).resize((97, 65), Image.Resampling.BILINEAR)
        assert pixels.load(0, 65).tobytes() == cut.tobytes()
    assert pixels.load(1, 65).tobytes() == pixels[1].tobytes()
    assert pixels.load(2, 65).size == (86, 65)
    assert pixels.load(2).tobytes() == pixels[2].tobytes()
    assert ArrayPixels(np.zeros((1, 40, 80), dtype=np.uint8)).load(0, 20).size == (40, 20)


def test_palette_one_bit_and_cmyk(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), INK).convert("P", palette=Image.Palette.ADAPTIVE).save(tmp_path / "p.png")
    Image.new("1", (4, 4), 1).save(tmp_path / "one.png")
    Image.new("CMYK", (16, 16), (0, 0, 0, 0)).save(tmp_path / "cmyk.jpg")
    assert read(tmp_path / "p.png").getpixel((0, 0)) == INK
    assert (read(tmp_path / "one.png").mode, read(tmp_path / "one.png").getpixel((0, 0))) == ("L", 255)
    assert read(tmp_path / "cmyk.jpg").getpixel((3, 3)) == (255, 255, 255)
