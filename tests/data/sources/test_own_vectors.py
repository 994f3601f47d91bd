"""Own vectors: all kinds of files and labels, splits, refused files, and many rows."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from proxemic.data import ImageSet, OwnVectors
from proxemic.data.embeddings import write_embeddings
from proxemic.data.rows import Rows
from proxemic.data.vectors import VectorFile, Vectors
from vectors import some_vectors, write_table


def store(images: ImageSet | None) -> Vectors:
    assert images is not None
    assert isinstance(images.pixels, Vectors)
    return images.pixels


def content(images: ImageSet | None) -> list[tuple[str, list[float]]]:
    """Return the name of the class and the vector of each row."""
    vectors = store(images)
    assert images is not None
    names = [images.class_names[label] for label in images.labels.tolist()]
    return [*zip(names, vectors.fetch(range(len(vectors))).tolist(), strict=True)]


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize("suffix", [".parquet", ".npy", "lists.parquet"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, suffix: str, kind: str) -> None:
    vectors, names = some_vectors()
    vectors = vectors.astype(kind)
    root, labels = tmp_path / f"vectors{suffix}", None
    if suffix == ".parquet":
        write_table(root, vectors, label=names)
    elif suffix == "lists.parquet":
        kind_of_list = pyarrow.list_(pyarrow.from_numpy_dtype(vectors.dtype))
        table = pyarrow.table({"embedding": pyarrow.array([*vectors], kind_of_list), "label": names})
        pyarrow.parquet.write_table(table, root, row_group_size=20)
    else:
        labels = tmp_path / "labels.csv"
        labels.write_text("\n".join(["label", *names]))
        np.save(root, vectors)
    images, notes = OwnVectors(root, labels=labels).load_unsplit()
    assert content(images) == [*zip(names, vectors.astype(np.float32).tolist(), strict=True)]
    assert notes == ()
    assert isinstance(store(images).reader, VectorFile) == (suffix == ".npy")


def test_what_a_run_has_saved_is_read_with_all_that_is_known(tmp_path: Path) -> None:
    vectors, names = some_vectors()
    places = range(len(names))
    rows = Rows.of(
        torch.from_numpy(vectors),
        path=[f"{place}.png" for place in places],
        label=names,
        is_query=[str(place % 2 == 0).lower() for place in places],
        is_gallery=[str(place % 3 > 0).lower() for place in places],
        sequence=[None if place % 5 else f"s{place % 10}" for place in places],
        category=[f"c{int(name[-2:]) // 4}" for name in names],
    )
    for name, labels in (("v.parquet", None), ("v.npy", tmp_path / "v.paths.csv")):
        write_embeddings(tmp_path / name, replace(rows, made_by="me"))
        images, _ = OwnVectors(tmp_path / name, labels=labels).load_unsplit()
        assert store(images).made_by == "me"
        assert images.names == tuple(rows.names)
        assert content(images) == [*zip(names, vectors.tolist(), strict=True)]
        for column in ("is_query", "is_gallery", "sequence", "category"):
            assert images.rows.texts(column) == rows.texts(column)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_given_splits_queries_and_labels_from_another_table(tmp_path: Path, suffix: str) -> None:
    vectors, names = some_vectors()
    np.save(tmp_path / "v.npy", vectors)
    split = ["train" if name < "class 06" else "VAL" if name < "class 09" else "test" for name in names]
    query = [None if item == "train" else place // 12 % 2 == 0 for place, item in enumerate(split)]
    gallery = [None if flag is None else not flag for flag in query]
    extra = [1.5] * len(names)
    columns: dict[str, list[Any]] = {
        "label": names,
        "split": split,
        "is_query": query,
        "is_gallery": gallery,
        "x": extra,
    }
    table = tmp_path / f"labels.{suffix}"
    if suffix == "csv":
        lines = [
            ",".join(columns),
            *(",".join("" if v is None else str(v) for v in row) for row in zip(*columns.values(), strict=True)),
        ]
        table.write_text("\ufeff" + "\r\n".join(lines), encoding="utf-8")
    else:
        write_table(table, **columns)
    source = OwnVectors(tmp_path / "v.npy", labels=table)
    splits = source.load()
    assert splits.notes == (f"{table} has columns that are not used: x.",)
    assert splits.train.is_query is None
    assert splits.test is not None
    assert splits.test.is_query is not None
    assert splits.test.is_query.tolist() == [flag for flag, item in zip(query, split, strict=True) if item == "test"]
    assert [name for name, _ in content(splits.validation)] == [
        n for n, item in zip(names, split, strict=True) if item == "VAL"
    ]
    assert source.gives_splits()
    assert source.class_names() == tuple(sorted(set(names)))
    assert len(source.load_split("validation")[0]) == len(splits.validation or ())


def refused(tmp_path: Path, message: str, labels: Path | None = None, root: Path | None = None) -> None:
    with pytest.raises(ValueError, match=message) as error:
        OwnVectors(root or tmp_path / "v.npy", labels=labels).load()
    assert len(str(error.value).splitlines()) == 1


def test_a_path_of_two_rows_is_refused(tmp_path: Path) -> None:
    vectors, names = some_vectors()
    paths = [f"{row}.png" for row in range(len(names))]
    paths[5] = "./2.png"
    whole = write_table(tmp_path / "v.parquet", vectors, label=names, path=paths)
    np.save(tmp_path / "v.npy", vectors)
    labels = write_table(tmp_path / "labels.parquet", label=names, path=paths)
    for root, given in ((whole, None), (tmp_path / "v.npy", labels)):
        with pytest.raises(ValueError, match=rf"rows 3 and 6 of {given or root} have the path ./2.png"):
            OwnVectors(root, labels=given).load()
    paths[5] = None  # type: ignore[call-overload]
    paths[6] = None  # type: ignore[call-overload]
    OwnVectors(write_table(tmp_path / "v.parquet", vectors, label=names, path=paths)).load()


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    vectors, names = some_vectors()
    np.save(tmp_path / "v.npy", vectors)
    refused(tmp_path, r"v\.npy has no labels: give a table .* \(--data\.labels FILE\)")
    write_table(tmp_path / "l.parquet", label=names[:-1])
    refused(tmp_path, r"l\.parquet has 71 rows, but .*v\.npy has 72 vectors", tmp_path / "l.parquet")
    (tmp_path / "l.csv").write_text("\n".join(["label", *names]).replace("class 03", "nan"))
    refused(tmp_path, r"l\.csv, line 5: label is empty, but every row needs one", tmp_path / "l.csv")
    write_table(tmp_path / "p.parquet", vectors, path=names, label=names)
    write_table(tmp_path / "l.parquet", path=names[::-1], label=names)
    refused(tmp_path, "name their rows in another order", tmp_path / "l.parquet", tmp_path / "p.parquet")


def test_large_parquet_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxemic.data.formats.vectors._IN_MEMORY", 100)
    monkeypatch.setattr("platformdirs.user_cache_path", lambda _: tmp_path / "cache")
    vectors, names = some_vectors()
    root = write_table(tmp_path / "v.parquet", vectors.astype(np.float16), label=names)
    known = [*zip(names, vectors.astype(np.float16).astype(np.float32).tolist(), strict=True)]
    assert content(OwnVectors(root).load_unsplit()[0]) == known
    (cache,) = (tmp_path / "cache" / "arrays").iterdir()
    assert np.load(cache).dtype == np.float16
    written = cache.stat().st_mtime_ns
    assert content(OwnVectors(root).load_unsplit()[0]) == known
    assert cache.stat().st_mtime_ns == written
    os.utime(root, ns=(1, 1))
    assert content(OwnVectors(root).load_unsplit()[0]) == known
    assert len([*cache.parent.iterdir()]) == 2


def test_vectors_in_fortran_order_are_refused(tmp_path: Path) -> None:
    vectors, names = some_vectors()
    np.save(tmp_path / "v.npy", np.asfortranarray(vectors))
    refused(tmp_path, "is in Fortran order", write_table(tmp_path / "l.parquet", label=names))
