"""Tar shards of tiny images."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from PIL import Image


def png(value: int, side: int = 8) -> bytes:
    """Return a grey image with a single value."""
    content = io.BytesIO()
    Image.new("L", (side, side), value).save(content, "PNG")
    return content.getvalue()


def colour(image: Image.Image) -> object:
    """The value of an image of `png`."""
    return image.getpixel((0, 0))


def write_shard(path: Path, files: Mapping[str, bytes]) -> None:
    """A tar of files, with the folders around it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def write_shards(folder: Path, classes: int, each: int, per_shard: int = 16) -> None:
    """Write shards of `each` images per class in mixed order; the value of an image is its class."""
    samples = [(label, place) for place in range(each) for label in range(classes)]
    for first in range(0, len(samples), per_shard):
        files = {}
        for number, (label, place) in enumerate(samples[first : first + per_shard], first):
            files[f"{number:06}.png"] = png(label * 5 + place % 5)
            files[f"{number:06}.cls"] = b"%d" % label
        write_shard(folder / f"{first // per_shard:03}.tar", files)
