"""Restrict the images that a gallery reads to the folders and URLs that its user gave.

The names of rows come from files of vectors and from databases. Without this restriction, the authors of these could
make a server read any file of its machine and any URL of its network.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

from PIL import Image

from proxemic.data.reading import read_small
from proxemic.data.remote import is_address, path_or_address
from proxemic.errors import UserError

_MOST = 100  # number of image folders that are kept one by one


def is_below(name: str, roots: Iterable[str]) -> bool:
    """Return whether a URL, or a path with resolved links, is below one of the roots.

    >>> roots = ["/photos", "s3://bucket/photos"]
    >>> [is_below(name, roots) for name in ("/photos/1.jpg", "/photos/../1.jpg", "s3://bucket/photos/1.jpg")]
    [True, False, True]
    """
    if not is_address(name):
        return _has_prefix(_real(name), [_real(root) for root in roots if not is_address(root)])
    # URLs chained by "::" lead elsewhere.
    plain = "::" not in name and ".." not in unquote(name).split("/")
    return plain and _has_prefix(name, filter(is_address, roots))


def as_root(source: str | os.PathLike[str]) -> str:
    """Return a folder with resolved links, and a URL unchanged."""
    place = path_or_address(source)
    return place if isinstance(place, str) else _real(place)


def roots_of(paths: Iterable[Path | str], roots: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the roots, and the folders of images outside them; if there are many folders, their parents."""
    folders = {_parent(path) for path in paths if isinstance(path, str)}
    local = [path for path in paths if isinstance(path, Path)]
    folders |= {_real(folder) for folder in {os.path.dirname(path) for path in local}}  # noqa: PTH120
    # pathlib takes twice as long, which shows with 100,000 images.
    folders |= {_parent(_real(path)) for path in local if os.path.islink(path)}  # noqa: PTH114
    while True:
        folders = {folder for folder in folders if not _has_prefix(folder, roots)}
        lifted = {_parent(folder) for folder in folders}
        if len(folders) <= _MOST or lifted == folders or any(folder == Path(folder).anchor for folder in lifted):
            return merge_roots([*roots, *folders])
        folders = lifted


def merge_roots(roots: Iterable[str]) -> tuple[str, ...]:
    """Return the roots without those that are below others.

    >>> merge_roots(["/photos/b", "/photos", "/photos-2"])
    ('/photos-2', '/photos')
    """
    outermost: list[str] = []
    for root in sorted(roots, key=_closed):  # what lies below a root follows it
        if not _has_prefix(root, outermost[-1:]):
            outermost.append(root)
    return tuple(outermost)


def _real(path: str | os.PathLike[str]) -> str:
    return Path(os.path.realpath(path)).as_posix()


def _parent(place: str) -> str:
    """Return the parent folder of a path or a URL; it never goes above the host of a URL."""
    if not is_address(place):
        return Path(place).parent.as_posix()
    scheme, _, rest = place.partition("://")
    return f"{scheme}://{rest.rpartition('/')[0] or rest}"


def _closed(folder: str) -> str:
    return folder.rstrip("/") + "/"


def _has_prefix(place: str, folders: Iterable[str]) -> bool:
    return any(_closed(place).startswith(_closed(folder)) for folder in folders)


_BOXED = re.compile(r"(.+) \((\d+), (\d+), (\d+), (\d+)\)", re.DOTALL)


def path_and_box(name: str) -> tuple[str, tuple[int, int, int, int] | None]:
    """Split a name into a path and a box, unless the whole name is that of a file.

    >>> path_and_box("photo.jpg (0, 0, 50, 80)"), path_and_box("photo.jpg")
    (('photo.jpg', (0, 0, 50, 80)), ('photo.jpg', None))
    """
    boxed = None if is_address(name) or os.path.lexists(name) else _BOXED.fullmatch(name)
    if boxed is None:
        return name, None
    left, upper, right, lower = map(int, boxed.groups()[1:])
    return boxed[1], (left, upper, right, lower)


def find_picture(path: str, roots: Sequence[str]) -> str | None:
    """Return the path of an image below the roots, even if it was moved to another root; None if it is missing."""
    if is_below(path, roots) and (is_address(path) or os.path.lexists(path)):
        return path
    others = filter(os.path.lexists, other_places(path, roots))
    return next((other for other in others if is_below(other, roots)), None)


def other_places(path: str, roots: Sequence[str]) -> Iterator[str]:
    """Yield the paths that an image would have below the other roots.

    >>> [*other_places("/photos/a/1.jpg", ["/photos", "/disk/photos"])]
    ['/disk/photos/a/1.jpg']
    """
    local = [root for root in roots if not is_address(root)]
    for name in () if is_address(path) else dict.fromkeys((path, _real(path))):
        for root in local:
            if _has_prefix(name, [root]):
                yield from (_closed(other) + name[len(_closed(root)) :] for other in local if other != root)


def picture_named(name: str, side: int, roots: Sequence[str]) -> Image.Image | None:
    """Read the image of a name to show it, with a shorter side of ``side`` pixels or a little more.

    Return None if there is no such image below the roots, or it cannot be read.
    """
    path, box = path_and_box(name)
    found = find_picture(path, roots)
    if found is None:
        return None
    try:
        return read_small(found, side, box)
    except (UserError, ValueError):  # a box may leave what is there now
        return None
