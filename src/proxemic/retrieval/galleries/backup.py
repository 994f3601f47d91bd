"""Export galleries to a Parquet file and import them, as a backup or to move to another store."""

import json
import os
from collections.abc import Callable, Iterator
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from jaxtyping import Float32

from proxemic.addresses import is_pretrained_name
from proxemic.data.embeddings import MADE_BY, PRECISION
from proxemic.data.formats.vectors import open_parquet_file
from proxemic.errors import UserError
from proxemic.files import reading, write_atomically
from proxemic.outputs import GALLERY, check_output, is_gallery
from proxemic.retrieval.galleries.gallery import Gallery
from proxemic.retrieval.galleries.items import OWN
from proxemic.retrieval.galleries.stores import GalleryInfo, create_whole_store
from proxemic.retrieval.searching.thresholds import Calibration

_ROWS = 8192  # rows of a row group


def export_gallery(
    gallery: Gallery | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    report: Callable[[str], object] | None = None,
) -> int:
    """Write a gallery to a Parquet file, from which `import_gallery` recreates it in any store.

    The file has the columns ``path`` and ``label``, all further ones, ``embedding`` and, if the gallery stores them,
    ``features``. Its metadata describe as JSON the model that made the vectors, the distance, the index, the folders of
    images and the calibrated threshold. `read_embeddings` and other programs can read the file. The file contains
    neither the images nor the model.

    Args:
        gallery: The gallery, or its address.
        out: A .parquet file, which is written atomically.
        report: Called with notes for the user. None logs them.

    Returns:
        The number of rows.

    Raises:
        UserError: If the gallery cannot be read, or the file cannot be written.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> gallery = Gallery.create(folder / "shop", dim=2)
    >>> _ = gallery.add_vectors([[1.0, 0.0]], ["hat.jpg"], ["hat"])
    >>> export_gallery(gallery, folder / "shop.parquet")
    1
    >>> len(import_gallery(folder / "copy", folder / "shop.parquet"))
    1
    """
    path = Path(out)
    if path.suffix.lower() != ".parquet":
        raise UserError(f"{path} is to hold a gallery, but its name must end in .parquet.")
    check_output(path, is_gallery)
    gallery = gallery if isinstance(gallery, Gallery) else Gallery.open(gallery)
    store, info = gallery.store, gallery.store.info
    names = [name for name in store.columns if name != "id"]
    facts: dict[str, Any] = {"info": info.to_json(), "roots": store.roots, "index": store.index["kind"]}
    facts["calibration"] = store.calibration
    if info.model is not None and not is_pretrained_name(info.model):
        report = report or getLogger("proxemic").info
        report(f"The model of its vectors is not in the file: keep {info.model}, too.")
    texts = {GALLERY: json.dumps(facts, sort_keys=True), MADE_BY: info.embedder, PRECISION: info.precision}
    fields = [*((name, pa.string()) for name in names), *_lists(info).items()]
    schema = pa.schema(fields, {key: text for key, text in texts.items() if text})
    rows = 0
    with (
        write_atomically(path) as temporary,
        pyarrow.parquet.ParquetWriter(temporary, schema, write_page_checksum=True) as file,
    ):
        for vectors, items in store.iterate(_ROWS):
            features = store.features(items["id"].to_numpy())
            lists = [
                pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), numbers.shape[1])
                for numbers in (vectors, features)
                if numbers is not None
            ]
            file.write_table(pa.table([*items.select(names).columns, *lists], schema))
            rows += len(vectors)
    return rows


def import_gallery(
    address: str | os.PathLike[str], file: str | os.PathLike[str], *, report: Callable[[str], object] | None = None
) -> Gallery:
    """Create a gallery from a file that `export_gallery` wrote; searches give the same results, and rows get new ids.

    Args:
        address: A new or empty folder, ``postgresql://…``, ``milvus://…`` or ``milvus-lite:FILE``.
        file: The file, which may come from a stranger: nothing in it is executed.
        report: Called with notes for the user. None logs them.

    Returns:
        The new gallery.

    Raises:
        UserError: If the file is damaged or does not hold a gallery, or the address is taken; nothing is created then.

    Example::

        import_gallery("postgresql://host/base/shop", "shop.parquet")
    """
    path = Path(file)
    if not path.is_file():
        raise UserError(f"{path} is not a file: give one that proxemic gallery export wrote.")
    try:
        with reading(path, "Parquet"), open_parquet_file(path) as opened:
            schema = opened.schema_arrow
            info, facts = _facts(schema, path)
            with create_whole_store(os.fspath(address), info) as store:
                store.add_roots(facts["roots"])
                for vectors, items, features in _batches(opened, info, path):
                    store.add(vectors, items, features)
    except ValueError as error:
        raise UserError(str(error)) from error
    gallery = Gallery.open(address)
    if (kind := facts["index"]) != "exact":
        try:
            gallery.build_index(kind)
        except (UserError, ValueError) as error:
            (report or getLogger("proxemic").info)(f"Its index is not built: {error}")
    if (calibration := facts["calibration"]) is not None:
        gallery.store.keep_calibration(calibration.to_json())
    return gallery


def _facts(schema: pa.Schema, path: Path) -> tuple[GalleryInfo, dict[str, Any]]:
    """Read the description of a gallery and check the columns; `ValueError` if the file does not hold a gallery."""
    try:
        content = json.loads((schema.metadata or {})[GALLERY.encode()])
        info = GalleryInfo.from_json(content["info"], path)
        roots, index, calibration = content["roots"], content["index"], content.get("calibration")
        if not all(isinstance(text, str) for text in (index, *roots)):
            raise TypeError("its roots and its index are not texts")
        if calibration is not None:
            calibration = Calibration.from_json(calibration, path)
    except KeyError:
        raise ValueError(f"{path} does not hold a gallery: give a file of proxemic gallery export.") from None
    except (TypeError, ValueError, RecursionError, AttributeError) as error:
        raise ValueError(f"{path} does not hold a gallery that can be read: {error}.") from error
    fields, lists = [(field.name, field.type) for field in schema], [*_lists(info).items()]
    texts = fields[: -len(lists)]
    names = [name for name, kind in texts if kind == pa.string() and name != "id"]
    if (
        fields[-len(lists) :] != lists
        or [*dict.fromkeys(names)] != [name for name, _ in texts]
        or (*names[:2],) != OWN[1:]
    ):
        raise ValueError(
            f"{path} has other columns than texts (path, label and further ones) and the lists of float32 that it "
            "names: export the gallery again."
        )
    return info, {"roots": roots, "index": index, "calibration": calibration}


def _lists(info: GalleryInfo) -> dict[str, pa.DataType]:
    """Return the names and types of the columns of numbers in the file of a gallery."""
    sizes = {"embedding": info.dim, "features": info.features}
    return {name: pa.list_(pa.float32(), size) for name, size in sizes.items() if size is not None}


def _batches(
    opened: pyarrow.parquet.ParquetFile, info: GalleryInfo, path: Path
) -> Iterator[tuple[Float32[np.ndarray, "rows dim"], pa.Table, Float32[np.ndarray, "rows features"] | None]]:
    seen, before = set[str](), 0
    for batch in opened.iter_batches(_ROWS):
        batch.validate(full=True)
        table = pa.Table.from_batches([batch])
        lists = [batch.column(name) for name in _lists(info)]
        numbers = [column.flatten() for column in lists]
        items = table.select(range(table.num_columns - len(lists)))
        paths = items["path"].to_pylist()
        if any(column.null_count for column in (*lists, *numbers)) or None in paths or "" in paths:
            raise ValueError(f"{path} lacks a path or a number from row {before + 1:,} on: export the gallery again.")
        seen.update(paths)
        if len(seen) < before + len(paths):
            raise ValueError(f"{path} names a photo twice, up to row {before + len(batch):,}: export it again.")
        vectors, *features = [number.to_numpy(zero_copy_only=False).reshape(len(batch), -1) for number in numbers]
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
        if not all(np.isfinite(feature).all() for feature in (lengths, *features)) or (
            info.distance == "cosine" and (abs(lengths - 1) > 1e-3).any()
        ):
            raise ValueError(f"{path} has vectors that no gallery has from row {before + 1:,} on: export it again.")
        yield vectors, items, features[0] if features else None
        before += len(batch)
    if before != opened.metadata.num_rows:
        raise ValueError(f"{path} has {before:,} rows of {opened.metadata.num_rows:,}: export the gallery again.")
