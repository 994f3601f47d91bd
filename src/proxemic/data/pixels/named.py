"""Pictures by the names that rows have: the path, and a box of it where it has one."""

import os
import re
from collections.abc import Iterable

from PIL import Image

from proxemic.data.pixels.reading import read_image
from proxemic.data.pixels.roots import is_below
from proxemic.data.pixels.stores import crop
from proxemic.data.remote import is_address
from proxemic.errors import UserError

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


def picture_named(name: str, side: int, roots: Iterable[str]) -> Image.Image | None:
    """Read the picture of a name, shrunk to ``side`` pixels unless it is a box.

    Return None if there is none below the roots, or it cannot be reached or read.
    """
    path, box = path_and_box(name)
    if not is_below(path, roots):
        return None
    try:
        return read_image(path, side) if box is None else crop(read_image(path), box)
    except (UserError, ValueError):  # a box may leave what is there now
        return None
