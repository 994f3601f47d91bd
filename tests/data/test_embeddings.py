import io
import json
import os
import pickle
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from proxemic.data import FilePixels, ImageSet
from proxemic.data.embeddings import (
    open_rows,
    read_embeddings,
    read_labels,
    write_embedding_chunks,
    write_embeddings,
)
from proxemic.data.rows import Rows
from proxemic.data.sources.query_gallery import join_query_gallery
from proxemic.errors import UserError
from proxemic.runs.evaluate import evaluate_embeddings
from proxemic.training import EvaluationConfig

NUMBERS = torch.tensor([[1.5, -2.0, 0.1], [3.0, 1e-30, 7.0]])
ROWS = Rows.of(
    NUMBERS,
    path=["a/1.png", "b/ü.png"],
    label=['o"wl\n§', "jay"],
    is_query=["true", "false"],
    is_gallery=["false", "true"],
)


def columns(rows: Rows) -> dict[str, list[str | None]]:
    return rows.columns.to_pydict()


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        Rows.of(NUMBERS),
        Rows.of(NUMBERS, path=["x", "y"]),
        Rows.of(NUMBERS, label=["b", "a"], sequence=["ü 7", None], category=["b", "a"]),
    ],
)
@pytest.mark.parametrize("name", ["e.parquet", "E.PARQUET"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str, rows: Rows) -> None:
    path = tmp_path / "new" / name
    write_embeddings(path, rows)
    found = read_embeddings(path)
    assert found.embeddings is not None
    assert torch.equal(found.embeddings, NUMBERS)
    assert columns(found) == columns(rows)
    assert [file.name for file in path.parent.iterdir()] == [name]


def test_npy_holds_numbers_with_a_table_and_metadata_beside_it(tmp_path: Path) -> None:
    path, rows = tmp_path / "e.npy", ROWS.with_texts(label=['o"wl, §', "jay"])
    write_embeddings(path, replace(rows, embeddings=NUMBERS.half(), made_by="me", precision="32-true"))
    assert np.load(path).dtype == np.float32
    found = read_embeddings(path, tmp_path / "e.paths.csv")
    assert found.embeddings is not None
    assert torch.equal(found.embeddings, NUMBERS.half().float())
    assert columns(found) == columns(rows)
    assert not columns(read_embeddings(path))
    assert json.loads((tmp_path / "e.json").read_text()) == {"made_by": "me", "precision": "32-true"}
    assert (open_rows(path).made_by, open_rows(path).precision) == ("me", "32-true")
    write_embeddings(path, Rows.of(NUMBERS))
    assert open_rows(path).made_by is None
    assert sorted(file.name for file in tmp_path.iterdir()) == ["e.json", "e.npy", "e.paths.csv"]


@pytest.mark.parametrize("content", [b'["a.png", "b.png"]', b'{"preprocessing": {}}', b"[" * 10**5, b"\xff"])
def test_another_json_file_beside_an_array_is_neither_read_nor_overwritten(tmp_path: Path, content: bytes) -> None:
    np.save(tmp_path / "e.npy", NUMBERS.numpy())
    (tmp_path / "e.json").write_bytes(content)
    assert open_rows(tmp_path / "e.npy").made_by is None
    with pytest.raises(ValueError, match=r"e\.json would be overwritten by the metadata of .*e\.npy"):
        write_embeddings(tmp_path / "e.npy", Rows.of(NUMBERS))
    assert (tmp_path / "e.json").read_bytes() == content


def test_some_rows_may_have_no_label(tmp_path: Path) -> None:
    name = "e.parquet"
    write_embeddings(tmp_path / name, Rows.of(NUMBERS, label=[None, "jay"]))
    rows = read_embeddings(tmp_path / name)
    assert rows.labels == [None, "jay"]
    with pytest.raises(ValueError, match="row 1 has no label to evaluate it by"):
        evaluate_embeddings(NUMBERS, ImageSet.of(rows), EvaluationConfig())
    with pytest.raises(ValueError, match="queries have no label in row 1"):
        join_query_gallery(rows, ROWS)
    write_embeddings(tmp_path / name, Rows.of(NUMBERS, label=[None, None]))
    assert not read_embeddings(tmp_path / name).has("label")


@pytest.mark.parametrize("name", ["e.parquet", "e.npy"])
def test_chunks_make_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("proxemic.data.embeddings.GROUP", 3)
    numbers = torch.rand(7, 2)
    rows = replace(Rows.of(numbers, label=["a", None, "b", "a", "b", "c", None]), made_by="me")
    write_embeddings(tmp_path / name, rows)
    chunks = (numbers[first : first + 3].numpy() for first in (0, 3, 6))
    write_embedding_chunks(tmp_path / f"chunks-{name}", chunks, (7, 2), rows)
    assert (tmp_path / f"chunks-{name}").read_bytes() == (tmp_path / name).read_bytes()
    np.testing.assert_array_equal(read_embeddings(tmp_path / name).embeddings, numbers)


def test_images_give_their_labels_flags_and_paths() -> None:
    pixels = FilePixels([Path("b/1.png"), Path("a/1.png")])
    flags = torch.tensor([True, False])
    images = ImageSet.from_names(pixels, ["b", "a"], flags, ~flags)
    assert columns(images.described()) == {
        "path": ["b/1.png", "a/1.png"], "label": ["b", "a"],
        "is_query": ["true", "false"], "is_gallery": ["false", "true"],
    }  # fmt: skip


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, ">f4"])
def test_floats_of_any_width_and_order_of_bytes_or_rows_are_read_as_float32(tmp_path: Path, kind: Any) -> None:
    array = np.asfortranarray(np.arange(6).reshape(3, 2).astype(kind))
    np.save(tmp_path / "e.npy", array)
    found = read_embeddings(tmp_path / "e.npy").embeddings
    assert found is not None
    assert found.dtype == torch.float32
    assert found.tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float16()), pa.large_list(pa.float64()), pa.list_(pa.float32(), 2), pa.list_(pa.float64())]
)
def test_parquet_made_elsewhere(tmp_path: Path, kind: pa.DataType) -> None:
    values = pa.array([[1.0, 0.5], [2.0, 4.0], [0.0, 8.0]], type=kind)
    table = pa.table({"id": [1, 2, 3], "label": [2, 10, 2], "split": ["odd", "x", "y"], "embedding": values})
    pyarrow.parquet.write_table(table, tmp_path / "e.parquet", row_group_size=2)
    found = read_embeddings(tmp_path / "e.parquet")
    np.testing.assert_array_equal(found.embeddings, [[1, 0.5], [2, 4], [0, 8]])
    assert found.labels == ["2", "10", "2"]


def test_what_float32_cannot_hold_becomes_infinite(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", [[1e300, 1.0]])
    pyarrow.parquet.write_table(pa.table({"embedding": [[1e300, 1.0]]}), tmp_path / "e.parquet")
    for name in ("e.npy", "e.parquet"):
        np.testing.assert_array_equal(read_embeddings(tmp_path / name).embeddings, [[np.inf, 1.0]])


# Labels beside the embeddings.


def save(folder: Path, table: str, count: int = 3) -> tuple[Path, Path]:
    np.save(folder / "e.npy", np.arange(2.0 * count).reshape(count, 2))
    (folder / "l.csv").write_text(table, encoding="utf-8")
    return folder / "e.npy", folder / "l.csv"


def test_labels_of_a_csv_table_are_in_the_order_of_the_embeddings(tmp_path: Path) -> None:
    table = "\ufeffid,label,is_query,is_gallery\n1,owl,true,0\n2,jay,False,1\n3,owl,1,true\n"
    rows = read_embeddings(*save(tmp_path, table))
    assert rows.labels == ["owl", "jay", "owl"]
    assert [flags.tolist() for flags in rows.flags() if flags is not None] == [[True, False, True], [False, True, True]]
    assert not rows.has("path")


def test_labels_of_a_parquet_table(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"label": [2**40, 5, 2**40]}), tmp_path / "l.parquet")
    rows = read_labels(tmp_path / "l.parquet")
    assert rows.labels == ["1099511627776", "5", "1099511627776"]


def test_rows_in_another_order_are_matched_by_path(tmp_path: Path) -> None:
    write_embeddings(tmp_path / "e.parquet", ROWS)
    labels = tmp_path / "l.csv"
    labels.write_text("path,label,is_query,is_gallery\nb/ü.png,x,1,0\na/1.png,y,0,1\n", encoding="utf-8")
    assert columns(read_embeddings(tmp_path / "e.parquet", labels)) == {
        "path": ["a/1.png", "b/ü.png"], "label": ["y", "x"], "is_query": ["0", "1"], "is_gallery": ["1", "0"],
    }  # fmt: skip
    labels.write_text("path,label\nb/ü.png,x\nc.png,y\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"l\.csv lacks a/1\.png, which is in .*e\.parquet"):
        read_embeddings(tmp_path / "e.parquet", labels)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("label\nx\ny\n", r"l\.csv has 2 rows, but .*e\.npy has 3 vectors"),
        ("label,n\nx,1\n,2\nz,3\n", "line 3: label is empty"),
        ("label,is_query\nx,1\ny,1\nz,1\n", "only one of the columns is_query and is_gallery"),
        ("label,is_query,is_gallery\nx,1,1\ny,,1\nz,1,1\n", "line 3: is_query or is_gallery is empty"),
        ("label,is_query,is_gallery\nx,1,1\ny,maybe,1\nz,1,1\n", "line 3: is_query is 'maybe'"),
        ("label\n", "has no rows"),
    ],
)
def test_labels_that_do_not_fit_are_refused(tmp_path: Path, table: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ImageSet.of(read_embeddings(*save(tmp_path, table)))


# What is refused.


class Bomb:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch BOOM",)


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.eye(2))
    return file.getvalue()


def parquet(embedding: Any, **columns: Any) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"embedding": embedding, **columns}), file)
    return file.getvalue()


def parquet_of(*columns: tuple[str, list[Any]]) -> bytes:
    file = io.BytesIO()
    names, values = zip(*columns, strict=True)
    pyarrow.parquet.write_table(pa.Table.from_arrays([pa.array(value) for value in values], names=list(names)), file)
    return file.getvalue()


ONE = ("embedding", [[1.0]])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("e.npy", b"", "is empty"),
        ("e.npy", b"nonsense, and more of it", "not a .npy file of numbers"),
        ("e.parquet", b"nonsense, and more of it", "not a sound Parquet file"),
        ("e.npy", npy(np.eye(9))[:-1], "not a .npy file of numbers"),
        ("e.npy", npy(np.eye(9)).replace(b"(9, 9)", b"(999999999999, 9)"), "not a .npy file of numbers"),
        ("e.parquet", parquet([[1.0]])[:-9], "not a sound Parquet file"),
        ("e.npy", npy(np.array([Bomb()], dtype=object)), "opening a pickle may run code"),
        ("e.npy", pickle.dumps(Bomb()), "opening a pickle may run code"),
        ("e.npy", npz(), r"archive of arrays \(\.npz\)"),
        ("e.npy", npy(np.ones(3)), r"float64 of shape \[3\], but vectors are float16"),
        ("e.npy", npy(np.ones((0, 3))), r"shape \[0, 3\]"),
        ("e.npy", npy(np.ones((3, 3), int)), "int64 of shape"),
        ("e.parquet", parquet([1.0, 2.0]), "double in its column embedding, but it must hold lists of floats"),
        ("e.parquet", parquet([[1.0, 2.0], [3.0]]), "row 2: embedding is of 1 dimensions, but those before have 2"),
        ("e.parquet", parquet([[1.0, 2.0], None]), "row 2: embedding is not a list"),
        ("e.parquet", parquet([[1.0, 2.0], [None, 1.0]]), "row 2: embedding lacks a number"),
        ("e.parquet", parquet(pa.array([], pa.list_(pa.float32()))), r"shape \[0, 0\]"),
        ("e.parquet", parquet([[1.0]]).replace(b"embedding", b"embeddigs"), "no column embedding: its columns are"),
        ("e.parquet", parquet_of(ONE, ONE), "has the column embedding more than once: keep one of them"),
        ("e.parquet", parquet_of(ONE, ("label", ["x"]), ("label", ["y"])), "has the column label more than once"),
        ("e.safetensors", b"", "not a format of embeddings here: use .parquet, or .npy"),
        ("e.pt", pickle.dumps(Bomb()), "opening a pickle may run code: use .parquet"),
        ("e", b"1", "ends in nothing, which is not a format"),
    ],
)
def test_other_files_are_refused_with_a_sentence_and_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words) as caught:
        read_embeddings(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)
    assert not Path("BOOM").exists()


def test_broken_bytes_raise_nothing_but_value_errors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("e.npy", "e.parquet"):
        path = tmp_path / name
        write_embeddings(path, ROWS)
        sound = path.read_bytes()
        for _ in range(100):
            broken = bytearray(sound)
            for place in rng.integers(0, min(len(sound), 200), 3):
                broken[place] = rng.integers(256)
            path.write_bytes(broken)
            with suppress(ValueError):
                read_embeddings(path)


def test_missing_files_folders_and_other_endings(tmp_path: Path) -> None:
    (tmp_path / "folder.npy").mkdir()
    for name, words in (("no.npy", "does not exist"), ("folder.npy", "is a folder")):
        with pytest.raises(ValueError, match=words):
            read_embeddings(tmp_path / name)
    with pytest.raises(ValueError, match=r"\.csv, .*\.parquet"):
        read_labels(tmp_path / "l.npy")


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("e.npy", "e.parquet"):
        with pytest.raises(UserError, match="could not be written"):
            write_embeddings(tmp_path / "file" / name, Rows.of(NUMBERS))


@pytest.mark.parametrize("name", ["e.npy", "e.parquet"])
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))  # as of a disk with so little left
    try:
        with pytest.raises(UserError, match=rf"{name} could not be written: .*free some space"):
            write_embeddings(tmp_path / name, Rows.of(NUMBERS))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_embeddings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"parts of rows have \[1, 2\] entries"):
        Rows.of(NUMBERS, label=["a"])
    with pytest.raises(ValueError, match="rows have no embeddings to write"):
        write_embeddings(tmp_path / "e.parquet", Rows.of(torch.ones(0, 2)))


def test_a_label_file_goes_before_the_labels_of_the_embedding_file(tmp_path: Path) -> None:
    write_embeddings(tmp_path / "e.parquet", ROWS)
    (tmp_path / "l.csv").write_text("label\nx\ny\n")
    rows = read_embeddings(tmp_path / "e.parquet", tmp_path / "l.csv")
    assert columns(rows) == columns(ROWS.with_texts(label=["x", "y"]))
