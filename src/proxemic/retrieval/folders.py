"""Search plain folders of pictures: their galleries lie in the user's cache."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs

from proxemic.addresses import GALLERY_FILE, is_pretrained_name
from proxemic.data.sources.listing import absolute, files_below
from proxemic.errors import UserError
from proxemic.image_formats import is_picture_name
from proxemic.models import read_checksum
from proxemic.retrieval.gallery import Gallery
from proxemic.runs.pretrained import DEFAULT_MODEL, model_path


def open_gallery(
    address: str | os.PathLike[str],
    model: str | os.PathLike[str] | None = None,
    *,
    report: Callable[[str], object],
    **reading: Any,
) -> Gallery:
    """Open a gallery, or create or update the gallery of a plain folder of pictures.

    The gallery of a folder lies in the user's cache folder, one for each model. New and changed pictures are embedded,
    and missing ones are removed; after an interruption, the next call continues.

    Args:
        address: A gallery, see `open_store`, or a folder of pictures.
        model: The path or the name of a model, see `Embedder.load`. None takes the gallery's model, or
            EfficientNet-Lite0 with ImageNet's weights for a folder.
        report: Called with notes on what is created or updated, and where.
        reading: The arguments ``batch_size`` and ``workers`` of `Gallery.add`.

    Returns:
        The gallery.

    Raises:
        UserError: If there is neither a gallery nor a folder of pictures, or the model cannot be loaded.
    """
    folder = Path(address)
    if _is_gallery(folder) or not (folder.is_dir() and any(map(is_picture_name, files_below(folder, {})))):
        return Gallery.open(address, model)
    kept = kept_gallery(folder, model or DEFAULT_MODEL)
    gallery = None
    if _is_gallery(kept):
        try:
            gallery = Gallery.open(kept)
        except UserError:  # such as a gallery of another version
            report(f"{kept} cannot be read and is created again")
            shutil.rmtree(kept)
    if gallery is None:
        report(
            f"{folder} is not a gallery yet: its pictures are embedded once, by {model or DEFAULT_MODEL}, into {kept}"
        )
        gallery = Gallery.create(kept, model or DEFAULT_MODEL, folder, **reading)
        added = gallery.added
    else:
        added = gallery.add(folder, update=True, **reading)
        paths = (path for _, items in gallery.store.iterate() for path in items["path"].to_pylist())
        gone = [path for path in paths if not Path(path).exists()]
        removed = gallery.remove({"path": gone}) if gone else 0
        if added.rows or added.updated or removed:
            report(f"{kept}: {added.rows:,} added, {added.updated:,} updated, {removed:,} removed")
    for note in added.notes if added.rows else ():
        report(note)
    for name, why in added.unreadable.items():
        report(f"{name} is left out: {why}")
    return gallery


def kept_gallery(folder: Path, model: str | os.PathLike[str]) -> Path:
    """Return the path of the cached gallery of a folder and a model."""
    # Another version of the library that prepares the pictures of a pretrained network is another model.
    named = f"{model} {read_checksum(model_path(model))}" if is_pretrained_name(model) else absolute(str(model))
    digest = hashlib.sha256("\n".join((absolute(str(folder)), named)).encode(errors="surrogateescape"))
    return (
        platformdirs.user_cache_path("proxemic") / "galleries" / f"{folder.absolute().name}-{digest.hexdigest()[:16]}"
    )


def _is_gallery(folder: Path) -> bool:
    return (folder / GALLERY_FILE).is_file()
