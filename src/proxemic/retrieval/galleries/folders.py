"""Search plain folders of images, whose vectors are kept in the user's cache."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from proxemic.addresses import GALLERY_FILE, is_pretrained_name
from proxemic.caches import cache_folder
from proxemic.data.sources.listing import absolute, list_folder
from proxemic.retrieval.galleries.gallery import SAMPLE, Gallery
from proxemic.retrieval.galleries.items import make_items
from proxemic.retrieval.galleries.models import as_stored
from proxemic.retrieval.galleries.stores import GalleryInfo
from proxemic.retrieval.galleries.stores.memory import MemoryStore
from proxemic.retrieval.vectors.embedder import Embedder
from proxemic.retrieval.vectors.embedding import gather, how_embedded
from proxemic.retrieval.vectors.heads import ENOUGH_TO_WHITEN
from proxemic.retrieval.vectors.networks import LinearHead
from proxemic.runs.pretrained import DEFAULT_MODEL, sees_only


def open_gallery(
    address: str | os.PathLike[str],
    model: str | os.PathLike[str] | None = None,
    *,
    report: Callable[[str], object],
    **reading: Any,
) -> Gallery:
    """Open a gallery, or a plain folder of images as a gallery in memory.

    Images whose embeddings are not in the user's cache yet are embedded; after an interruption, the next call
    continues. With 500 images or more, the features of a pretrained network are whitened.

    Args:
        address: Address of a gallery, see `open_store`, or a folder of images.
        model: The path or the name of a model, see `Embedder.load`. None takes the gallery's model, or
            EfficientNet-Lite0 with ImageNet's weights for a folder.
        report: Called with notes on what is embedded.
        reading: The arguments ``batch_size`` and ``workers`` of `Gallery.add`.

    Returns:
        The gallery; that of a folder cannot be changed.

    Raises:
        UserError: If there is neither a gallery nor a folder of images, or the model cannot be loaded.
    """
    folder = Path(address)
    is_plain = folder.is_dir() and not (folder / GALLERY_FILE).is_file()
    listed = list_folder(folder) if is_plain else None
    if not listed:
        return Gallery.open(address, model)
    named = os.fspath(model or DEFAULT_MODEL)
    embedder = Embedder.load(named)
    rows = gather([listed], embedder, embedder.distance, **reading)
    assert rows.embeddings is not None
    report(f"{folder}: {how_embedded(embedder, len(rows), named)}")
    for note in rows.notes:
        report(note)
    for name, why in rows.unreadable.items():
        report(f"{name} is left out: {why}")
    if len(rows) >= ENOUGH_TO_WHITEN and is_pretrained_name(named) and sees_only(named):
        embedder = embedder.with_head(*_whitening(folder, embedder, rows.embeddings))
        rows = replace(rows, embeddings=embedder.finish(rows.embeddings))
    info = GalleryInfo(embedder.dim, embedder.distance, embedder.checksum, named, embedder.precision)
    rows = rows.with_texts(path=[*map(absolute, rows.names)])
    store = MemoryStore(str(folder), info, make_items(rows), as_stored(rows.embeddings, info), rows.folders)
    return Gallery(store, embedder)


def _whitening(folder: Path, embedder: Embedder, features: np.ndarray) -> tuple[LinearHead, str]:
    """Return a head that whitens features, and its checksum; it is kept in the cache until the images change."""
    order = np.random.default_rng(0).permutation(len(features))[:SAMPLE]
    sample = features[np.sort(order)]
    learnt_from = hashlib.sha256(sample.data).hexdigest()
    checksum = hashlib.sha256(f"{embedder.checksum} {learnt_from}".encode()).hexdigest()
    named = hashlib.sha256(f"{embedder.checksum} {absolute(str(folder))}".encode()).hexdigest()[:32]
    kept = cache_folder("heads") / f"{named}.safetensors"
    if (head := LinearHead.restore(kept, checksum)) is None:
        head = LinearHead.whiten(sample)
        head.keep(kept, checksum)
    return head, checksum
