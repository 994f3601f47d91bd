"""Create an improved gallery, whose vectors come from a head trained on the labels of another gallery."""

import math
import os
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from logging import getLogger
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32
from torch.nn.functional import normalize

from proxemic.addresses import without_password
from proxemic.data.formats.tables import read_table
from proxemic.data.rows import Rows
from proxemic.data.sources.listing import absolute, read_picture_table
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.metrics import kmeans_clusters
from proxemic.models import EmbeddingModel
from proxemic.models.model import without_head
from proxemic.retrieval.galleries.gallery import Gallery
from proxemic.retrieval.galleries.stores.address import check_new_folder, is_folder
from proxemic.retrieval.improving.improvement import Improvement, improve
from proxemic.retrieval.vectors.heads import Network, create_with_head
from proxemic.runs.embed import load_embedder
from proxemic.tables import Table, percent

with optional_dependency("train"):
    import pyarrow as pa

_TITLES = {
    "stock": "features without a head",
    "whitened": "whitened, without labels",
    "trained 1/2": "trained on the labels, half of the way",
    "trained 3/4": "trained on the labels, three quarters",
}


@dataclass(frozen=True)
class ImprovedGallery:
    """Gain of a head over the vectors of a gallery, and the address of the improved gallery.

    Args:
        improvement: The head, and Recall@1 with and without it.
        labelled: Number of labelled images.
        classes: Number of distinct labels.
        address: The address of the new gallery; None if none was created.
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
        columns = ["Recall@1 in percent", "new photos", "classes like yours", "kept"]
        notes = [
            "New photos: of labelled classes, held out in turn. Classes like yours: held out in turn, an estimate."
        ]
        if found.per_class < 2.5:
            notes.append(f"{found.per_class:.1f} labels for each class are few: label more, then improve again.")
        title = f"{self.labelled:,} labelled photos of {self.classes:,} classes"
        if not rows:
            return f"{title}: whitened without labels, and not tested. Label two or more photos of each class."
        return Table(columns, rows, title, notes, "lrrl").text()


def improve_gallery(
    gallery: Gallery | str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    dim: int = 512,
    seed: int = 0,
    report: Callable[[str], object] | None = None,
) -> ImprovedGallery:
    """Train a head over the vectors of a gallery on its labels, in seconds, and create a better gallery with the head.

    `improve` whitens the vectors, which needs no labels, and then trains a linear head by the normalised softmax loss;
    it keeps what helps on held-out images. The given gallery is unchanged. No image is embedded again: the new gallery
    stores the features next to its vectors. You can correct labels by `relabel`, add images, and improve either gallery
    again.

    Args:
        gallery: A gallery with labels, whose vectors come from a pretrained network or from elsewhere.
        out: A new or empty folder for the better gallery, which also holds the model that makes its vectors, for all
            other commands. None only measures.
        dim: Number of dimensions of a vector in the new gallery; at most as many as in the given gallery.
        seed: Seed of all random choices.
        report: Called with notes for the user. None logs them.

    Returns:
        The head with its Recall@1, and the address of the new gallery.

    Raises:
        UserError: If there are too few labels, or the model of the gallery has a trained head already.

    Example::

        print(improve_gallery("shop", "better").text())
    """
    report = report or getLogger("proxemic").info
    if not isinstance(gallery, Gallery):
        gallery = Gallery.open(gallery)
    address, target = gallery.store.address, None if out is None else Path(out)
    if target is not None:
        if not is_folder(str(out)):
            shown = without_password(str(out))
            raise UserError(f"{shown} is not a folder: improve into one, then export and import it (proxemic gallery).")
        check_new_folder(target)
    network = _network(gallery)
    rows = read_rows(gallery)
    assert rows.embeddings is not None
    labels, classes = rows.numbers("label")
    try:
        found = improve(rows.embeddings, labels, dim=dim, seed=seed)
    except ValueError as error:
        raise UserError(f"{address} cannot be improved: {error}, by proxemic gallery relabel.") from error
    labelled = int((labels >= 0).sum())
    if found.head is None or target is None:
        if target is not None:
            report(f"No head is better than the features themselves: {target} is not created.")
        return ImprovedGallery(found, labelled, len(classes), None)
    features_by = None if network is None else gallery.embedder.source.checksum
    with create_with_head(target, found.head, found.kept, network, gallery.store.info.precision, features_by) as store:
        store.add_roots(gallery.store.roots)
        for features, items in iterate_features(gallery):
            with torch.no_grad():
                vectors = normalize(found.head(torch.from_numpy(features)), dim=1).numpy()
            store.add(vectors, items.drop_columns(["id"]), features)
    learn = f"learn them by proxemic calibrate --gallery {target}"
    report(f"Thresholds on the distances of {address} do not hold in {target}: {learn}.")
    return ImprovedGallery(found, labelled, len(classes), str(target))


def _network(gallery: Gallery) -> Network | None:
    """Return the network that makes the features, without a head; None if vectors came without a model."""
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
        raise UserError(f"{gallery.store.address} keeps {embedder.dim} of {size} dimensions: improve a gallery of all.")
    assert embedder.path is not None
    network, preprocessing = load_embedder(embedder.path)  # the embedder has its batch norms folded into other weights
    if gallery.store.info.features is not None:
        return None if network.config.takes_vectors else (without_head(network), preprocessing)
    if network.config.head != "none":
        raise UserError(
            f"The model of {gallery.store.address} has a trained head of its own: train it on the corrected labels "
            "(proxemic train), or improve a gallery of a pretrained network (--model timm:NAME or hf:NAME)."
        )
    return network, preprocessing


def iterate_features(gallery: Gallery) -> Iterator[tuple[Float32[np.ndarray, "rows features"], pa.Table]]:
    """Yield features, or vectors if the gallery stores no features, with their items."""
    for vectors, items in gallery.store.iterate():
        features = gallery.store.features(items["id"].to_numpy())
        yield np.array(vectors if features is None else features), items


def read_rows(gallery: Gallery) -> Rows:
    """Read all rows of a gallery; their embeddings are the features, or the vectors if it stores no features."""
    parts = [*iterate_features(gallery)]
    if not parts:
        raise UserError(f"{gallery.store.address} is empty: add photos first.")
    table = pa.concat_tables([items for _, items in parts]).drop_columns(["id"])
    return Rows(table, embeddings=torch.from_numpy(np.concatenate([features for features, _ in parts])))


def suggest_labels(gallery: Gallery | str | os.PathLike[str], *, count: int = 20, seed: int = 0) -> list[str]:
    """Choose images to label next: group those without a label, and take the most typical one of each group.

    The groups come from k-means on the features. Labelling one image per group helps more than labelling as many random
    images.

    Args:
        gallery: The gallery, or its address.
        count: Images to choose, 1 or more; the result may have fewer.
        seed: Seed of k-means.

    Returns:
        The paths of the images, those of large groups first.

    Raises:
        UserError: If all images have a label, or the gallery is empty.
        ValueError: If `count` is less than 1.

    >>> import tempfile
    >>> gallery = Gallery.create(Path(tempfile.mkdtemp()) / "shop", dim=2)
    >>> _ = gallery.add_vectors([[1.0, 0.0], [0.0, 1.0]], ["hat.jpg", "shoe.jpg"], ["hat", None])
    >>> suggest_labels(gallery)
    ['shoe.jpg']
    """
    if count < 1:
        raise ValueError(f"count is {count!r}, but must be 1 or more.")
    gallery = gallery if isinstance(gallery, Gallery) else Gallery.open(gallery)
    rows = read_rows(gallery)
    left = rows.take([row for row, label in enumerate(rows.labels) if label is None])
    if not len(left):
        raise UserError(f"All photos of {gallery.store.address} have a label: add others first.")
    assert left.embeddings is not None
    x, names, chosen = normalize(left.embeddings, dim=1), left.names, list[str]()
    groups = kmeans_clusters(x, min(count, len(x)), seed=seed)
    for group in groups.bincount().argsort(descending=True, stable=True).tolist():
        own = (groups == group).nonzero().squeeze(1)
        if len(own):
            chosen.append(names[int(own[(x[own] @ x[own].mean(0)).argmax()])])
    return chosen


def relabel(gallery: Gallery, labels: str | os.PathLike[str]) -> int:
    r"""Change the labels of images.

    Args:
        gallery: A gallery; in a folder or in PostgreSQL, the change is atomic.
        labels: A table (CSV or Parquet) with the columns ``path``, relative to the table's folder, and ``label``; an
            empty label removes the image's label.

    Returns:
        The number of images whose label changed.

    Raises:
        UserError: If the gallery lacks an image of the table.
        ValueError: If the table is not valid.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> gallery = Gallery.create(folder / "shop", dim=2)
    >>> _ = gallery.add_vectors([[1.0, 0.0]], ["hat.jpg"], ["shoe"])
    >>> _ = (folder / "labels.csv").write_text("path,label\nhat.jpg,hat\n")
    >>> relabel(gallery, folder / "labels.csv")
    1
    """
    file = Path(labels)
    names = read_table(file, ("path", "label"), ("path", "label")).names
    listed = read_picture_table(file, file.parent, None, ("path", "label"))
    places = [
        [name, path, *(unicodedata.normalize(form, text) for text in (name, path) for form in ("NFC", "NFD"))]
        for name, path in zip(names, map(absolute, listed.names), strict=True)
    ]

    def change() -> int:
        known = gallery.store.known_paths([*dict.fromkeys(chain.from_iterable(places))])
        found = [next((text for text in texts if text in known), texts[1]) for texts in places]
        given = dict(zip(found, listed.labels, strict=True))
        if missing := [path for path in given if path not in known]:
            address = gallery.store.address
            raise UserError(f"{missing[0]} is not in {address}, but {labels} gives it a label: add it first.")
        return gallery.store.set_labels(given)

    return gallery.store.transaction(change)
