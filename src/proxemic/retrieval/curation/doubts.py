"""Find images of a gallery that people should review."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from logging import getLogger

from proxemic.data import FilePixels
from proxemic.data.remote import path_or_address
from proxemic.data.roots import is_below, path_and_box
from proxemic.retrieval.curation.cleaning import examine
from proxemic.retrieval.galleries.gallery import Gallery
from proxemic.retrieval.improving.improved_gallery import read_rows

_REPEATS = {"exact": "has the same pixels as", "near": "looks nearly like", "mirrored": "is the mirror image of"}


@dataclass(frozen=True)
class Doubt:
    """An image whose label may be wrong, which repeats another, or which resembles no other.

    Args:
        path: The image.
        label: Label of the image, or None.
        suggested: A label that may be right, or None.
        reasons: A sentence for each finding.
        repeats: The image that it repeats, or None.
    """

    path: str
    label: str | None
    suggested: str | None = None
    reasons: tuple[str, ...] = ()
    repeats: str | None = None


def find_doubts(gallery: Gallery, *, report: Callable[[str], object] | None = None) -> tuple[Doubt, ...]:
    """Find images that people should review: suspected labels, then duplicates, then outliers, worst first.

    The findings are those of `clean`. They are computed from the gallery's features, as improved vectors hide wrong
    labels, or from its vectors if it stores no features. Each image is listed once, with all its findings. Images that
    may be opened are read in full to find duplicates.

    Args:
        gallery: A gallery with or without labels; it is unchanged.
        report: Called with a summary of the findings. None logs it.

    Returns:
        A `Doubt` for each image with findings.

    Raises:
        UserError: If the gallery cannot be reached or read.

    >>> import tempfile
    >>> from pathlib import Path
    >>> gallery = Gallery.create(Path(tempfile.mkdtemp()) / "shop", dim=2)
    >>> vectors = [[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [0.0, 1.0], [0.1, 1.0], [0.2, 1.0]]
    >>> _ = gallery.add_vectors(vectors, [*"abcdef"], ["hat", "hat", "shoe", "shoe", "shoe", "shoe"])
    >>> [(doubt.path, doubt.suggested) for doubt in find_doubts(gallery, report=str)]
    [('c', 'hat')]
    """
    if not len(gallery):
        return ()
    rows = read_rows(gallery)
    roots = gallery.store.roots
    places, boxes = zip(*map(path_and_box, rows.names), strict=True)
    if all(is_below(place, roots) for place in places):
        rows = replace(rows, pixels=FilePixels([path_or_address(place) for place in places], boxes))
    found = examine(rows, gallery.store.info.distance)
    (report or getLogger("proxemic").info)(found.summary())
    doubts = {
        item.path: Doubt(
            item.path,
            item.label,
            item.suggested,
            (f"It is nearer to photos of {item.suggested} than to those of {item.label} (score {item.score:.2f}).",),
        )
        for item in found.labels
    }
    for duplicate in found.duplicates:
        doubt = doubts.get(
            duplicate.path,
            Doubt(duplicate.path, duplicate.label, duplicate.label_of if duplicate.labels_differ else None),
        )
        reason = f"It {_REPEATS[duplicate.kind]} another photo" + ", of another split" * duplicate.across_splits + "."
        doubts[duplicate.path] = replace(doubt, reasons=(*doubt.reasons, reason), repeats=duplicate.of)
    for outlier in found.outliers:
        doubt = doubts.get(outlier.path, Doubt(outlier.path, outlier.label))
        reason = f"It is far from all other photos (outlier score {outlier.score:.1f})."
        doubts[outlier.path] = replace(doubt, reasons=(*doubt.reasons, reason))
    return tuple(doubts.values())
