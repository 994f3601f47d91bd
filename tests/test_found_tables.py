"""Every reader of tables takes the same tables in the same way."""

import csv
import io
import subprocess
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from command_line import Here, assert_refused

Rows = list[tuple[str, str]]

READERS = {
    "check": "datasets check {table}",
    "show": "evaluate {model} --data.root {table}",
    "gallery": "gallery create {out}/shop {table} --model {model}",
    "cluster": "cluster {table} --model {model} --min-size 2",
}
"""By name, a command that reads a table of pictures."""


def read(reader: str, table: Path, shelf: Path, here: Here) -> subprocess.CompletedProcess[str]:
    """Run a command on a table; what it writes lies beside that."""
    places = {"table": table, "model": shelf / "model", "out": table.parent}
    return here(*(word.format(**places) for word in READERS[reader].split(" ")))


@pytest.fixture(scope="module")
def rows(shelf: Path) -> Rows:
    return [(str(path), path.parent.name) for path in sorted((shelf / "photos").glob("*/*.png"))]


def write_csv(path: Path, header: str, lines: list[str]) -> Path:
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def labels_of(gallery: Path, table: Path, here: Here) -> set[str]:
    """What each picture's nearest one, itself, is called; "" for those without a label."""
    result = here("search", gallery, table, "-k", "1", "--format", "csv")
    assert result.returncode == 0, result.stderr
    return {row["label"] for row in csv.DictReader(io.StringIO(result.stdout))}


def indexed(reader: str, table: Path, shelf: Path, here: Here) -> None:
    result = read(reader, table, shelf, here)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("column", ["", "id"])
def test_the_index_of_pandas_is_no_obstacle(column: str, rows: Rows, shelf: Path, tmp_path: Path, here: Here) -> None:
    lines = [f"{number},{path},{label}" for number, (path, label) in enumerate(rows)]
    indexed("gallery", write_csv(tmp_path / "t.csv", f"{column},path,label", lines), shelf, here)


@pytest.mark.parametrize("reader", ["check", "gallery", "cluster"])
def test_the_index_of_pandas_is_noted(reader: str, rows: Rows, shelf: Path, tmp_path: Path, here: Here) -> None:
    lines = [f"{number},{path},{label}" for number, (path, label) in enumerate(rows)]
    table = write_csv(tmp_path / "t.csv", ",path,label", lines)
    result = read(reader, table, shelf, here)
    assert result.returncode == 0, result.stderr
    assert "column" in result.stdout + result.stderr
    assert "ignored" in result.stdout + result.stderr


@pytest.mark.parametrize("header", ["id,path,label", ",path,label"])
def test_a_refused_table_leaves_no_gallery(header: str, rows: Rows, shelf: Path, tmp_path: Path, here: Here) -> None:
    bad = write_csv(tmp_path / "bad.csv", header, [f"{label},{path},{label}" for path, label in rows])
    good = write_csv(tmp_path / "good.csv", "path,label", [f"{path},{label}" for path, label in rows])
    words = ["gallery", "create", tmp_path / "shop"]
    first = here(*words, bad, "--model", shelf / "model")
    if first.returncode:
        result = here(*words, good, "--model", shelf / "model")
        assert result.returncode == 0, result.stderr
    assert len(labels_of(tmp_path / "shop", good, here)) == 7


@pytest.mark.parametrize("reader", ["check", "show"])
def test_spaces_in_a_header_are_stripped(reader: str, rows: Rows, shelf: Path, tmp_path: Path, here: Here) -> None:
    table = write_csv(tmp_path / "t.csv", "path, label", [f"{path}, {label}" for path, label in rows])
    indexed(reader, table, shelf, here)


def test_spaces_in_a_header_lose_no_labels_in_a_gallery(rows: Rows, shelf: Path, tmp_path: Path, here: Here) -> None:
    table = write_csv(tmp_path / "t.csv", "path, label", [f"{path}, {label}" for path, label in rows])
    indexed("gallery", table, shelf, here)
    assert labels_of(tmp_path / "shop", shelf / "photos", here) == {label for _, label in rows}


def test_spaces_in_a_header_lose_no_labels_of_clusters(rows: Rows, shelf: Path, tmp_path: Path, here: Here) -> None:
    table = write_csv(tmp_path / "t.csv", "path, label", [f"{path}, {label}" for path, label in rows])
    result = read("cluster", table, shelf, here)
    assert "With the labels" in result.stdout


@pytest.mark.parametrize("text", ["Nan", "NAN"])
def test_not_a_number_is_a_label_everywhere_or_nowhere(
    text: str, rows: Rows, shelf: Path, tmp_path: Path, here: Here
) -> None:
    lines = [f"{path},{text if label.endswith('0') else label}" for path, label in rows]
    table = write_csv(tmp_path / "t.csv", "path,label", lines)
    checked = here("datasets", "check", table)
    indexed("gallery", table, shelf, here)
    is_class = checked.returncode == 0 and "7 classes" in checked.stdout
    assert is_class == (text in labels_of(tmp_path / "shop", shelf / "photos", here))


@pytest.mark.parametrize("reader", ["check", "show", "gallery", "cluster"])
def test_labels_that_are_lists_are_refused(reader: str, rows: Rows, shelf: Path, tmp_path: Path, here: Here) -> None:
    paths, labels = zip(*rows, strict=True)
    table = tmp_path / "t.parquet"
    numbers = [[int(label[-2:]), 100] for label in labels]
    pyarrow.parquet.write_table(pyarrow.table({"path": paths, "label": numbers}), table)
    result = read(reader, table, shelf, here)
    assert result.returncode == 2, result.stdout
    assert "label" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "shop").exists()


def test_a_table_without_paths_is_one_sentence(shelf: Path, tmp_path: Path, here: Here) -> None:
    table = write_csv(tmp_path / "t.csv", "file,label", ["a.png,x"])
    for name in ("check", "gallery"):
        assert_refused(read(name, table, shelf, here), ["path"])
