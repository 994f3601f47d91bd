"""Pictures by the names that rows have: the path, and a box of it where it has one."""

import os
import re

from PIL import Image

from proxemic.data.pixels.reading import UnreadableImageError, read_image
from proxemic.data.pixels.stores import crop
from proxemic.data.remote import is_address

_BOXED = re.compile(r"(.+) \((\d+), (\d+), (\d+), (\d+)\)", re.DOTALL)


def path_and_box(name: str) -> tuple[str, tuple[int, int, int, int] | None]:
    """The path that a name begins with, and the box that follows it, unless a file has the whole name.

    >>> path_and_box("photo.jpg (0, 0, 50, 80)"), path_and_box("photo.jpg")
    (('photo.jpg', (0, 0, 50, 80)), ('photo.jpg', None))
    """
    boxed = None if is_address(name) or os.path.lexists(name) else _BOXED.fullmatch(name)
    if boxed is None:
        return name, None
    left, upper, right, lower = map(int, boxed.groups()[1:])
    return boxed[1], (left, upper, right, lower)


def picture_named(name: str, side: int) -> Image.Image | None:
    """The picture of that name, shrunk to ``side`` pixels unless it is a box; None where there is none to read."""
    path, box = path_and_box(name)
    try:
        return read_image(path, side) if box is None else crop(read_image(path), box)
    except (UnreadableImageError, ValueError):  # a box may leave what is there now
        return None
