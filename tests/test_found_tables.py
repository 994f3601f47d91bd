"""Every reader of tables takes the same tables in the same way."""

import csv
import io
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from command_line import Here, assert_refused

READERS = {
    "check": "datasets check {table}",
    "show": "evaluate {model} --data.root {table}",
    "gallery": "gallery create {out}/shop {table} --model {model}",
    "cluster": "cluster {table} --model {model} --min-size 2",
}
"""Commands that read a table of pictures, by name."""
Read = Callable[[str, Path], subprocess.CompletedProcess[str]]


@pytest.fixture
def read(shelf: Path, here: Here) -> Read:
    """Run a command on a table; what it writes lies beside that."""

    def run(reader: str, table: Path) -> subprocess.CompletedProcess[str]:
        places = {"table": table, "model": shelf / "model", "out": table.parent}
        return here(*(word.format(**places) for word in READERS[reader].split(" ")))

    return run


@pytest.fixture
def table(shelf: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write the table of the shelf's photos; a line is made of number, path and label."""

    def write(header: str, line: Callable[[int, Path, str], str], name: str = "t.csv") -> Path:
        paths = sorted((shelf / "photos").glob("*/*.png"))
        lines = [line(number, path, path.parent.name) for number, path in enumerate(paths)]
        (tmp_path / name).write_text("\n".join([header, *lines]) + "\n")
        return tmp_path / name

    return write


def labels_of(gallery: Path, photos: Path, here: Here) -> set[str]:
    """Return the labels of the pictures' nearest hits, which are themselves; "" without a label."""
    result = here("search", gallery, photos, "-k", "1", "--format", "csv")
    assert result.returncode == 0, result.stderr
    return {row["label"] for row in csv.DictReader(io.StringIO(result.stdout))}


@pytest.mark.parametrize(("column", "reader"), [("id", "gallery"), ("", "check"), ("", "gallery")])
def test_the_index_of_pandas_is_no_obstacle(column: str, reader: str, table: Callable[..., Path], read: Read) -> None:
    result = read(reader, table(f"{column},path,label", lambda number, path, label: f"{number},{path},{label}"))
    assert result.returncode == 0, result.stderr
    if not column:
        assert re.search(r"column.*ignored", result.stdout + result.stderr)


def test_spaces_in_a_header_are_stripped_and_lose_no_labels(
    table: Callable[..., Path], read: Read, shelf: Path, tmp_path: Path, here: Here
) -> None:
    spaced = table("path, label", lambda _, path, label: f"{path}, {label}")
    printed = []
    for reader in READERS:
        result = read(reader, spaced)
        assert result.returncode == 0, result.stderr
        printed.append(result.stdout)
    assert "With the labels" in printed[-1]  # of clusters
    assert labels_of(tmp_path / "shop", shelf / "photos", here) == {f"class {n:02}" for n in range(7)}


def test_labels_that_are_lists_are_refused(shelf: Path, tmp_path: Path, read: Read) -> None:
    paths = sorted(map(str, (shelf / "photos").glob("*/*.png")))
    pyarrow.parquet.write_table(
        pyarrow.table({"path": paths, "label": [[number, 100] for number in range(len(paths))]}), tmp_path / "t.parquet"
    )
    assert_refused(read("gallery", tmp_path / "t.parquet"), ["label"])
    assert not (tmp_path / "shop").exists()
