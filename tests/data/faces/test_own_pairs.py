"""The table of pairs of one's own: what it names, its folds, and what is wrong with it in one sentence."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from proxemic.data.embeddings import open_rows
from proxemic.data.faces import read_own_pairs
from proxemic.data.pixels import FilePixels
from proxemic.data.vectors import VectorArray, Vectors
from vectors import write_table

ROWS = [(str(number % 7), str((number * 3 + 1) % 7), number % 2 == 0) for number in range(40)]


def vectors(names: list[str] | None = None) -> Vectors:
    reader = VectorArray(torch.arange(7.0)[:, None], "v.npy")
    return Vectors(reader, names=None if names is None else np.array(names, np.dtypes.StringDType()))


def csv(path: Path, *rows: str, header: str = "first,second,same") -> Path:
    path.write_text("\n".join([header, *rows, ""]))
    return path


def test_rows_by_number_dealt_to_ten_folds(tmp_path: Path) -> None:
    table = csv(tmp_path / "p.csv", *(f"{a},{b},{same}" for a, b, same in ROWS))
    pairs, notes = read_own_pairs(table, vectors())
    assert isinstance(pairs.pixels, Vectors)
    found = pairs.pixels.fetch(range(len(pairs.pixels))).flatten()
    assert found[pairs.first].tolist() == [float(a) for a, _, _ in ROWS]
    assert found[pairs.second].tolist() == [float(b) for _, b, _ in ROWS]
    assert pairs.same.tolist() == [same for _, _, same in ROWS]
    for kind in (pairs.same, ~pairs.same):
        assert pairs.folds[kind].tolist() == [*range(10), *range(10)]
    assert notes == ()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_rows_by_name_in_folds_of_ones_own(tmp_path: Path, kind: str) -> None:
    columns = {"first": ["b", "b", "a", "g"], "second": ["a", "c", "g", "b"], "same": [1, 0, 1, 0]}
    columns |= {"fold": [7, 7, 10, 10], "why": ["x"] * 4}
    table = tmp_path / f"p.{kind}"
    if kind == "csv":
        csv(table, *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True)), header=",".join(columns))
    else:
        write_table(table, **columns | {"same": [bool(each) for each in columns["same"]]})
    pairs, notes = read_own_pairs(table, vectors([*"abcdefg"]))
    assert isinstance(pairs.pixels, Vectors)
    assert pairs.pixels.names == ("a", "b", "c", "g")  # each once, and only what is compared
    assert pairs.first.tolist() == [1, 1, 0, 3]
    assert pairs.folds.tolist() == [7, 7, 10, 10]
    assert notes == (f"{table} has columns that are not used: why.",)


def test_names_come_from_the_file_or_its_labels(tmp_path: Path) -> None:
    array = np.eye(3, dtype=np.float32)
    np.save(tmp_path / "v.npy", array)
    write_table(tmp_path / "l.parquet", label=["x"] * 3, path=["c", "b", "a"])
    assert open_rows(tmp_path / "v.npy").pixels.names is None
    assert open_rows(tmp_path / "v.npy", tmp_path / "l.parquet").pixels.names == ("c", "b", "a")
    assert open_rows(write_table(tmp_path / "v.parquet", array, path=["d", "e", "f"])).pixels.names == ("d", "e", "f")
    write_table(tmp_path / "l.parquet", label=["x"] * 2, path=["b", "a"])
    with pytest.raises(ValueError, match=r"l\.parquet has 2 rows, but .*v\.npy has 3 vectors"):
        open_rows(tmp_path / "v.npy", tmp_path / "l.parquet")


def test_images_by_path(tmp_path: Path) -> None:
    for name in "ab":
        Image.new("L", (4, 4)).save(tmp_path / f"{name}.png")
    rows = [f"a.png,b.png,{same},{fold}" for fold in (0, 1) for same in ("true", "False")]
    table = csv(tmp_path / "p.csv", *rows, header="first,second,same,fold")
    pairs, _ = read_own_pairs(table, tmp_path)
    assert isinstance(pairs.pixels, FilePixels)
    assert pairs.pixels.paths == (tmp_path / "a.png", tmp_path / "b.png")
    (tmp_path / "b.png").unlink()
    with pytest.raises(ValueError, match=r"lacks 1 of the 2 that .*p\.csv names: b\.png\.$"):
        read_own_pairs(table, tmp_path)
    rows = [row.replace("a.png", "deep\\a.png") for row in rows]
    table = csv(tmp_path / "p.csv", *rows, header="first,second,same,fold")
    with pytest.raises(ValueError, match=r"deep\\a\.png; its path has backslashes"):
        read_own_pairs(table, tmp_path)


@pytest.mark.parametrize(
    ("header", "rows", "words"),
    [
        ("first,second", ["0,1"], r"no column same: its columns are first, second"),
        ("first,second,same", [], "has no pairs"),
        ("first,second,same", ["0,1,true", ",1,false"], "line 3: first is empty"),
        ("first,second,same", ["0,1,true", "0,1,"], "line 3: same is empty"),
        ("first,second,same", ["0,1,true", "0,1,maybe"], "line 3: same is 'maybe', but it must be true or false"),
        ("first,second,same", ["0,1,1"] * 3, "has 3 same pairs and 0 different ones, but verification needs both"),
        ("first,second,same", ["0,1,1", "1,2,0"], "1 same pairs and 1 different ones, too few for 10 folds"),
        ("first,second,same,fold", ["0,1,1,0", "1,2,0,a"], "line 3: fold is 'a', but it must be a whole number"),
        ("first,second,same,fold", ["0,1,1,0", "1,2,0,"], "line 3: fold is empty"),
        ("first,second,same,fold", ["0,1,1,3", "1,2,0,3"], "all pairs in fold 3, but there must be two"),
        ("first,second,same,fold", ["0,1,1,0", "1,2,0,0", "0,1,1,1"], "fold 1 has no different pair"),
        ("first,second,same,fold", ["0,1,1,0", "1,2,0,0", "0,1,0,1"], "fold 1 has no same pair"),
    ],
)
def test_a_table_that_cannot_be_used(tmp_path: Path, header: str, rows: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=rf"p\.csv.*{words}"):
        read_own_pairs(csv(tmp_path / "p.csv", *rows, header=header), vectors())


def test_names_that_are_not_there(tmp_path: Path) -> None:
    rows = ["0,1,1,0", "7,2,0,0", "-1,1,1,1", f"{'9' * 5000},2,0,1"]
    table = csv(tmp_path / "p.csv", *rows, header="first,second,same,fold")
    with pytest.raises(ValueError, match=r"v\.npy, whose rows are numbered from 0 to 6, lacks 3 of the 6 .* -1, 7, 9"):
        read_own_pairs(table, vectors())
    with pytest.raises(ValueError, match=r"named by the column path, lacks 3 of the 6 that .* names: -1, 7, 9"):
        read_own_pairs(table, vectors([*"0123456"]))
    with pytest.raises(ValueError, match=r"names 1, but v\.npy has several of that name"):
        read_own_pairs(table, vectors([*"0123451"]))
    with pytest.raises(ValueError, match=r"ends in \.txt, but pairs are read from \.csv and \.parquet"):
        read_own_pairs(tmp_path / "p.txt", vectors())
    with pytest.raises(ValueError, match=r"gone\.csv is no regular file"):
        read_own_pairs(tmp_path / "gone.csv", vectors())
