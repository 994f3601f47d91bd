"""Improving a gallery: a new one, whose vectors come from a head that was trained on the labels of the first."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from proxemic.addresses import without_password
from proxemic.arrays import number_texts
from proxemic.data import Preprocessing
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import working_folder
from proxemic.models import EmbeddingModel, save_model
from proxemic.retrieval.embedder import Embedder
from proxemic.retrieval.gallery import Gallery
from proxemic.retrieval.improvement import Improvement, improve, with_head
from proxemic.retrieval.stores import GalleryInfo, create_store
from proxemic.runs.embed import load_embedder
from proxemic.tables import Table, percent

with optional_dependency("train"):
    import pyarrow as pa

_TITLES = {
    "stock": "vectors as they are",
    "whitened": "whitened, without labels",
    "trained 1/2": "trained on the labels, half of the way",
    "trained 3/4": "trained on the labels, three quarters",
}


@dataclass(frozen=True)
class ImprovedGallery:
    """Gain of a head over the vectors of a gallery, and the address of the improved gallery.

    Args:
        improvement: The head, and Recall@1 with and without it.
        labelled: Labelled rows.
        classes: Their labels.
        address: The new gallery; None where none was made.
    """

    improvement: Improvement
    labelled: int
    classes: int
    address: str | None

    def text(self) -> str:
        """Summarise the result in a few lines."""
        found = self.improvement
        rows = [
            [
                title,
                percent(found.on_pictures[name]),
                percent(found.on_classes.get(name, math.nan)),
                "*" if name == found.kept else "",
            ]
            for name, title in _TITLES.items()
            if name in found.on_pictures
        ]
        columns = ["Recall@1 in percent", "new pictures", "classes like yours", "kept"]
        notes = [
            "New pictures: of labelled classes, held out in turn. Classes like yours: held out in turn, an estimate."
        ]
        if found.per_class < 2.5:
            notes.append(f"{found.per_class:.1f} labels for each class are few: label more, then improve again.")
        title = f"{self.labelled:,} labelled pictures of {self.classes:,} classes"
        return Table(columns, rows, title, notes, "lrrl").text()


def improve_gallery(
    gallery: Gallery | str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    dim: int = 512,
    seed: int = 0,
    report: Callable[[str], object] | None = None,
) -> ImprovedGallery:
    """Train a head over the vectors of a gallery on its labels, in seconds, and make a better gallery of it.

    The vectors are whitened, which needs no labels, and a linear head is trained from there by the normalised softmax
    loss, see `improve`; what helps on pictures that were held out is kept. The gallery itself stays as it is. No
    picture is embedded again. Correct labels by `relabel`, and improve the first gallery anew.

    Args:
        gallery: With labels; its vectors best come from a pretrained network, or from elsewhere.
        out: A new or empty folder for the better gallery, which then also holds the model that makes its vectors, for
            pictures and for all other commands. None only measures.
        dim: Numbers of a vector in the new gallery; at most those in the first.
        seed: Seed of all random choices.
        report: Is told what the user should know. None logs it.

    Raises:
        UserError: If there are too few labels, or the model of the gallery has a trained head of its own.
    """
    report = report or getLogger("proxemic").info
    if not isinstance(gallery, Gallery):
        gallery = Gallery.open(gallery)
    address, target = gallery.store.address, None if out is None else Path(out)
    if target is not None and (not target.is_dir() if target.exists() else "://" in str(out)):
        raise UserError(f"{without_password(str(out))} is no new or empty folder: give one for the better gallery.")
    if target is not None and target.is_dir() and any(target.iterdir()):
        raise UserError(f"{target} is not empty: give a new folder for the better gallery.")
    network = _network(gallery)
    vectors, labels, classes = _read(gallery)
    try:
        found = improve(vectors, labels, dim=dim, seed=seed)
    except ValueError as error:
        raise UserError(f"{address} cannot be improved: {error}, by proxemic gallery relabel.") from error
    labelled = int((labels >= 0).sum())
    if found.head is None or target is None:
        if target is not None:
            report(f"No head is better than the vectors as they are: {target} is not made.")
        return ImprovedGallery(found, labelled, classes, None)
    model = found.head if network is None else with_head(network[0], found.head)
    with working_folder(target) as folder:
        _write(gallery, found.head, model, network[1] if network else None, folder / "made", target)
        if target.is_dir():
            target.rmdir()
        (folder / "made").rename(target)
    return ImprovedGallery(found, labelled, classes, str(target))


def _network(gallery: Gallery) -> tuple[EmbeddingModel, Preprocessing] | None:
    """Return the network under the vectors, without a head; None if vectors came without a model."""
    if gallery.store.info.model is None:
        return None
    embedder = gallery.embedder
    if not isinstance(embedder.model, EmbeddingModel):
        raise UserError(
            f"The model of {gallery.store.address} cannot take a head: improve a gallery of a pretrained network "
            "(--model timm:NAME or hf:NAME)."
        )
    size = embedder.model.config.embedding_size
    if embedder.dim != size:
        raise UserError(f"{gallery.store.address} keeps {embedder.dim} numbers of {size}: improve a gallery of all.")
    if embedder.model.config.head != "none":
        raise UserError(
            f"The model of {gallery.store.address} has a trained head of its own: train it on the corrected labels "
            "(proxemic train), or improve a gallery of a pretrained network (--model timm:NAME or hf:NAME)."
        )
    assert embedder.path is not None
    return load_embedder(embedder.path)  # the embedder itself has its batch norms folded into other weights


def _read(gallery: Gallery) -> tuple[Float32[Tensor, "rows dim"], Int64[Tensor, " rows"], int]:
    parts, texts = [], list[str | None]()
    for vectors, items in gallery.store.iterate():
        parts.append(torch.from_numpy(np.array(vectors)))
        texts += items["label"].to_pylist()
    if not parts:
        raise UserError(f"{gallery.store.address} is empty: add pictures first.")
    numbers, names = number_texts(texts)
    return torch.cat(parts), numbers, len(names)


def _write(
    gallery: Gallery,
    head: EmbeddingModel,
    model: EmbeddingModel,
    preprocessing: Preprocessing | None,
    folder: Path,
    target: Path,
) -> None:
    """Write the better gallery and its model into a folder, which is to be renamed to the target."""
    info = gallery.store.info
    save_model(folder / "model", model, {} if preprocessing is None else preprocessing.as_dict())
    made = Embedder.load(folder / "model").checksum
    better = GalleryInfo(head.config.embedding_size, "cosine", made, str(target.absolute()), info.precision)
    store = create_store(str(folder / "gallery"), better)
    store.add_roots(gallery.store.roots)
    for vectors, items in gallery.store.iterate():
        with torch.no_grad():
            rows = head(torch.from_numpy(np.array(vectors))).numpy()
        store.add(rows, items.drop_columns(["id"]))
    store.close()
    for part in ("model", "gallery"):
        for file in (folder / part).iterdir():
            file.rename(folder / file.name)
        (folder / part).rmdir()


def relabel(gallery: Gallery, labels: str | os.PathLike[str]) -> int:
    """Give pictures other labels.

    Args:
        gallery: It changes in one step for some thousand pictures at a time.
        labels: A .csv or .parquet table with the columns ``path``, relative to its folder, and ``label``, where an
            empty cell takes a label away.

    Returns:
        The number of pictures whose label is another now.

    Raises:
        UserError: If the gallery lacks a picture of the table.
        ValueError: If the table is not valid.
    """
    from proxemic.data.sources.listing import absolute, list_pictures

    listed = list_pictures(labels)
    given = dict(zip(map(absolute, listed.names), listed.labels, strict=True))
    known = gallery.store.known_paths([*given])
    if missing := [path for path in given if path not in known]:
        raise UserError(f"{missing[0]} is not in {gallery.store.address}, but {labels} gives it a label: add it first.")
    changed = 0
    for vectors, items in gallery.store.iterate():
        paths, before = items["path"].to_pylist(), items["label"].to_pylist()
        rows = [row for row, path in enumerate(paths) if path in given and given[path] != before[row]]
        if not rows:
            continue
        part = items.take(rows)
        texts = pa.array([given[paths[row]] for row in rows], pa.string())
        place = part.column_names.index("label")
        gallery.store.replace_rows(vectors[rows], part.set_column(place, "label", texts).drop_columns(["id"]))
        changed += len(rows)
    return changed
