"""Supported formats of images. Pillow knows many more, some of which start other programs."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePath

_ENDINGS_OF = {
    "JPEG": (".jpg", ".jpeg"),
    "PNG": (".png",),
    "WebP": (".webp",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
}

FORMATS = tuple(name.upper() for name in _ENDINGS_OF)
"""The formats as `PIL.Image.open` names them, which recognises a file by its content, not by its name."""

ENDINGS = tuple(ending for endings in _ENDINGS_OF.values() for ending in endings)
"""The endings of file names by which images are found in folders."""

FORMATS_TEXT = f"{', '.join([*_ENDINGS_OF][:-1])} or {[*_ENDINGS_OF][-1]}"
"""The formats as messages name them."""

SYSTEM_FOLDERS = {
    "@eadir", "@recycle", "@recently-snapshot", "#recycle", "#snapshot", "$recycle.bin", "system volume information",
    "__macosx",
}  # fmt: skip
"""Folders, in lower case, in which NAS systems, Windows and macOS keep thumbnails, copies and deleted files."""


def is_hidden(name: str) -> bool:
    """Return whether the name of a file or folder is hidden, or belongs to an operating system.

    >>> is_hidden(".@__thumb"), is_hidden("@eaDir"), is_hidden("photos")
    (True, True, False)
    """
    return name.startswith(".") or name.lower() in SYSTEM_FOLDERS


def is_picture_name(name: str | os.PathLike[str]) -> bool:
    """Return whether a file has the name of an image.

    >>> is_picture_name("photos/1.JPG"), is_picture_name("photos/1.pgm")
    (True, False)
    """
    return os.path.splitext(name)[1].lower() in ENDINGS  # noqa: PTH122 - three times as fast


def count_by_ending(names: Iterable[str | os.PathLike[str]]) -> str:
    """Count files by the endings of their names, the most frequent first.

    >>> count_by_ending(["1.pgm", "2.PGM", "README"])
    '2 .pgm files, 1 file without an ending'
    """
    counts = Counter(PurePath(name).suffix.lower() for name in names)
    return ", ".join(
        f"{count:,} {f'{ending} ' * bool(ending)}file{'s' * (count > 1)}{' without an ending' * (not ending)}"
        for ending, count in counts.most_common()
    )


def unread(names: Sequence[str | os.PathLike[str]]) -> str:
    """Describe files of other formats after the words "no images"; return an empty text without such files.

    >>> unread(["1.pgm", "2.pgm"])
    ', but 2 .pgm files, which are not read'
    """
    return f", but {count_by_ending(names)}, which are not read" if names else ""
