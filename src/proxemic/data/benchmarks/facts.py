"""What is known of a published data set before any of it is there."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class OriginalFile:
    """A file as its authors hand it out.

    Args:
        name: Where it belongs below the data set's folder; without its own folder it is found too.
        md5: Its checksum, where one is published.
        url: Its address, or None where it must be fetched by hand.
        tree: The folder within the archive that holds the data, or None where the file is read as it is.
    """

    name: str
    md5: str | None = None
    url: str | None = None
    tree: str | None = None


@dataclass(frozen=True)
class Facts:
    """A published data set: how large it is and where it comes from.

    Args:
        key: Its name on the command line.
        title: Its name in print.
        counts: What the whole of it counts, as "train images": 5864.
        files: The original files.
        page: Where a person reads about it.
        by_hand: How a person gets it, as half a sentence, where the files have no address.
        mirror_files: Archives of another layout, unpacked where they lie there.

    Example:
        >>> Facts("cub", "CUB-200-2011", {"train classes": 100}, (), "https://example.org").counts["train classes"]
        100
    """

    key: str
    title: str
    counts: Mapping[str, int]
    files: tuple[OriginalFile, ...]
    page: str
    by_hand: str = ""
    mirror_files: tuple[OriginalFile, ...] = ()
