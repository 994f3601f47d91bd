"""Find flaws of a data set: wrong labels, duplicates and outliers."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from tqdm import tqdm

from proxemic.data import FilePixels
from proxemic.data.formats.tables import SPLITS
from proxemic.data.reading import UnreadableImageError
from proxemic.data.rows import Rows
from proxemic.metrics import Distance
from proxemic.metrics.clustering import unit_rows
from proxemic.retrieval.curation.duplicates import (
    LENGTH,
    Match,
    content_hash,
    copies_of,
    difference,
    exact_matches,
    groups_of,
    near_matches,
    near_vectors,
    reduced,
    signature,
)
from proxemic.retrieval.curation.findings import Cleaning, Duplicate, Outlier, Suspect, check_out
from proxemic.retrieval.curation.scores import LIMIT, leave_one_out_recall, outlier_scores, wrong_label_scores
from proxemic.retrieval.vectors.embedder import Embedder
from proxemic.retrieval.vectors.embedding import Source, gather, open_with_model, report_embedded
from proxemic.tables import counted

_KEPT = 65_536  # small images in memory, of at most 4 kB


def clean(
    sources: Source,
    model: Embedder | str | os.PathLike[str] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    batch_size: int = 64,
    workers: int = 0,
    report: Callable[[str], object] = print,
) -> Cleaning:
    """Find labels that are probably wrong, duplicates, also across splits, and outliers.

    Duplicates may be recompressed, resized, brightened or mirrored; cropped and rotated ones are not found. Images
    without labels are only examined for duplicates and outliers. Splits come from the column ``split`` of a table, or
    from folders train, validation and test. In a file of vectors, near duplicates are vectors that nearly coincide.

    Args:
        sources: One or several sources of `list_pictures`, or one file of vectors.
        model: An `Embedder`, or its path or name. None takes EfficientNet-Lite0 with ImageNet's weights for images, and
            no model for vectors. The model may have been trained on the same labels, wrong ones included.
        out: A folder for the tables and the page, see `Cleaning.write`; None writes nothing.
        batch_size: Images per batch of the network.
        workers: Processes that read and prepare images.
        report: Called with notes for the user.

    Returns:
        The findings.

    Raises:
        UserError: If nothing can be read, or a file cannot be written.
        ValueError: If vectors or a table are not valid.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "points.npy"
    >>> np.save(path, np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)[[*range(50), 7]])
    >>> [(found.path[-6:], found.of[-6:]) for found in clean(path).duplicates]
    [('row 50', ' row 7')]
    """
    if out is not None:
        check_out(Path(out))
    opened, embedder = open_with_model(sources, model, report)
    distance = "cosine" if embedder is None else embedder.distance
    rows = gather(opened, embedder, distance, batch_size=batch_size, workers=workers)
    for note in rows.notes:
        report(note)
    found = examine(rows, distance)
    if found.unreadable:
        are = "is" if len(found.unreadable) == 1 else "are"
        report(f"{counted(len(found.unreadable), 'photo')} cannot be read and {are} left out.")
    report_embedded(embedder, rows, report)
    if out is not None:
        report(f"Written: {found.write(out)}")
    return found


def examine(rows: Rows, distance: Distance) -> Cleaning:
    """Find the flaws of embedded rows."""
    assert rows.embeddings is not None
    embeddings = torch.as_tensor(rows.embeddings)
    embeddings = unit_rows(embeddings) if distance == "cosine" else embeddings
    names, texts, unreadable = rows.names, rows.labels, {**rows.unreadable}
    splits = [None if text is None else SPLITS.get(text.lower()) for text in rows.texts("split")]
    pixels = rows.pixels if isinstance(rows.pixels, FilePixels) else None
    # Training first: a copy of a training image should leave the other split.
    order = sorted(range(len(names)), key=lambda row: [None, *SPLITS.values()].index(splits[row]))
    copies, signatures = None, None
    if pixels is not None:
        hashes, signatures, failed = _look(pixels)
        unreadable |= {names[row]: why for row, why in failed.items()}
        first = copies_of(hashes, order)
        matches = exact_matches(first)
        originals = [row for row in order if first[row] == row]
        for mirror in (False, True):
            found = near_matches(
                signatures[originals],
                embeddings[originals],
                _closely(pixels.select(originals), mirror),
                range(len(originals)),
                [splits[row] for row in originals],
                distance=distance,
                mirror=mirror,
            )
            known = {match.row for match in matches}
            new = [replace(item, row=originals[item.row], of=originals[item.of]) for item in found]
            matches += [item for item in new if item.row not in known]
        exact = groups_of(exact_matches(first), len(first))
        copies = exact if (exact >= 0).any() else None
    else:
        matches = near_vectors(embeddings, distance=distance)
    labels, class_names = rows.numbers("label")
    wrong = wrong_label_scores(embeddings, labels, distance=distance)
    recall, judged = leave_one_out_recall(embeddings, labels, groups_of(matches, len(names)), distance)
    strange = outlier_scores(embeddings, distance=distance, copies=copies)
    return Cleaning(
        len(names),
        tuple(
            Suspect(
                names[row],
                class_names[labels[row]],
                class_names[wrong.suggested[row]],
                float(wrong.scores[row]),
                *(_example(names, embeddings, labels, value, row) for value in (labels[row], wrong.suggested[row])),
            )
            for row in _worst(wrong.scores, 0.5)
        ),
        _duplicates(names, texts, splits, matches),
        tuple(Outlier(names[row], texts[row], float(strange[row])) for row in _worst(strange, LIMIT)),
        unreadable,
        {} if pixels is None else {name: (pixels, row) for row, name in enumerate(names)},
        judged,
        recall,
    )


def _example(names: Sequence[str], embeddings: Tensor, labels: Tensor, label: Tensor, row: int) -> str:
    """Return the name of the image nearest to the mean of a label, other than the given row."""
    members = (labels == label).nonzero()[:, 0]
    others = members[members != row]
    if not len(others):
        return ""
    vectors = embeddings[others].float()
    return names[int(others[(vectors - vectors.mean(0)).norm(dim=1).argmin()])]


def _duplicates(
    names: Sequence[str], texts: Sequence[str | None], splits: Sequence[str | None], matches: Sequence[Match]
) -> tuple[Duplicate, ...]:
    groups = groups_of(matches, len(names))
    found = [
        Duplicate(
            int(groups[match.row]) + 1,
            names[match.row],
            names[match.of],
            match.kind,
            match.look,
            match.distance,
            texts[match.row],
            texts[match.of],
            splits[match.row],
            splits[match.of],
        )
        for match in matches
    ]
    return tuple(
        sorted(found, key=lambda item: (not item.across_splits, not item.labels_differ, item.look or 0, item.distance))
    )


def _look(pixels: FilePixels) -> tuple[list[bytes], np.ndarray, dict[int, str]]:
    """Read all images in full, in threads: hashes, signatures, and why an image has none."""

    def one(row: int) -> tuple[bytes, np.ndarray, str | None]:
        try:
            image = pixels.load(row, None, "auto")
        except UnreadableImageError as error:  # it may have been removed meanwhile
            return b"%d" % row, np.zeros(LENGTH, np.float32), error.reason or str(error)
        return content_hash(image), signature(image), None

    hashes: list[bytes] = []
    signatures = np.zeros((len(pixels), LENGTH), np.float32)
    failed: dict[int, str] = {}
    with ThreadPoolExecutor() as pool:
        looked = tqdm(pool.map(one, range(len(pixels))), "comparing", len(pixels), leave=False, disable=None)
        for row, (hashed, numbers, why) in enumerate(looked):
            hashes.append(hashed)
            signatures[row] = numbers
            if why is not None:
                failed[row] = why
    return hashes, signatures, failed


def _closely(pixels: FilePixels, mirror: bool) -> Callable[[int, int], float]:
    @lru_cache(_KEPT)
    def small(row: int) -> Image.Image | None:
        try:
            return reduced(pixels.load(row, None, "auto"))
        except UnreadableImageError:
            return None

    def differ(first: int, second: int) -> float:
        one, other = small(first), small(second)
        if one is None or other is None:
            return 1.0
        return difference(ImageOps.mirror(one) if mirror else one, other)

    return differ


def _worst(scores: torch.Tensor, above: float) -> list[int]:
    rows = (scores > above).nonzero()[:, 0]
    return rows[scores[rows].argsort(descending=True, stable=True)].tolist()
