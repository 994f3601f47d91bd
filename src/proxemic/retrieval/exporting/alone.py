"""Embed pictures with an exported ONNX file, without torch and proxemic: `python embed.py model.onnx a.jpg b.png`.

Needs onnxruntime, NumPy and Pillow.
"""

import io
import json
import math
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def read(path: str, how: dict[str, Any]) -> Image.Image:
    """Open a picture upright, transparent parts white, grey or in colours as the network takes it."""
    content = Path(path).read_bytes()
    if len(re.findall(rb"\xff\xda\0[\6\x08\x0a\x0c\x0e][\0-\4]", content)) > 200:
        sys.exit(f"{path} has more than 200 scans, which would take very long to decode.")
    with Image.open(io.BytesIO(content), formats=["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"]) as image:
        resized = how["resize"] or how["size"]
        side = 2 * (resized if isinstance(resized, int) else max(resized))
        if how["reduce"]:
            image.draft(None, (side, side))  # JPEG is decoded at a smaller scale
        image.load()
        with suppress(Exception):  # damaged EXIF in a sound picture
            image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits, or as many of them as are used
        white = 2 ** (how.get("bits") or 16) - 1
        image = Image.fromarray((np.asarray(image).astype(np.int64).clip(0, white) * 255 // white).astype(np.uint8))
    mode = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    image = image.convert(mode)
    if how["reduce"] and min(image.size) > side:
        image = resize_shorter(image, side)
    return image.convert("L" if how["channels"] == 1 else "RGB")


def cut_thin(image: Image.Image) -> Image.Image:
    """Cut a picture whose sides differ by a factor of more than 100 to its middle."""
    width, height = (min(side, 100 * min(image.size)) for side in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def resize_shorter(image: Image.Image, side: int, method: Image.Resampling = Image.Resampling.BILINEAR) -> Image.Image:
    """Resize to a shorter side."""
    shorter = min(image.size)
    size = (side * image.width // shorter, side * image.height // shorter)
    return image if shorter == side else image.resize(size, method)


def prepare(path: str, how: dict[str, Any]) -> np.ndarray:
    """Make the float32 array [channels, size, size] that the network is given."""
    image, size, resize = cut_thin(read(path, how)), how["size"], how["resize"]
    method = Image.Resampling[how.get("interpolation", "bilinear").upper()]
    if isinstance(resize, int):
        image = resize_shorter(image, resize, method)
    else:
        height, width = resize or (size, size)
        image = image.resize((width, height), method)
    to_pixel = math.floor if how.get("crop_rounding") == "down" else round
    left, top = (to_pixel((side - size) / 2) for side in image.size)
    pixels = np.asarray(image.crop((left, top, left + size, top + size)), np.float32).reshape(size, size, -1)
    if how["channel_order"] == "bgr":
        pixels = pixels[:, :, ::-1]
    values = pixels * np.float32(how["white"] / 255)
    return ((values - np.float32(how["mean"])) / np.float32(how["std"])).transpose(2, 0, 1)


def embed(model: str, pictures: list[str]) -> np.ndarray:
    """Embed pictures as an array [pictures, numbers]."""
    how = json.loads(Path(model).with_suffix(".json").read_text())["preprocessing"]
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    batches = (np.stack([prepare(path, how) for path in pictures[at : at + 32]]) for at in range(0, len(pictures), 32))
    return np.concatenate([np.asarray(session.run(["embeddings"], {"images": batch})[0]) for batch in batches])


if __name__ == "__main__":
    vectors = embed(sys.argv[1], sys.argv[2:])
    np.savetxt(sys.stdout, vectors, "%.6f")
