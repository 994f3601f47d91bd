"""Pairs of faces and of vectors: reading them, and messages about mistakes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data.record_writer import draw_people, write_pack
from proxemic.data.embeddings import open_rows
from proxemic.data.faces import VERIFICATION_SETS, FacePairs, read_lfw_pairs, read_own_pairs, read_verification_set
from proxemic.data.pixels import FilePixels
from proxemic.data.vectors import VectorArray, Vectors
from vectors import write_table

SAME = ("Ada\t1\t2", "Bob\t4\t3")
DIFFERENT = ("Ada\t1\tBob\t4", "Cy\t12\tAda\t2")
FOLDS = "\n".join(["2\t2", *SAME, *DIFFERENT, "Cy\t1\t12", "Dee\t1\t2", *DIFFERENT, ""])


def write(folder: Path, text: str) -> Path:
    path = folder / "pairs.txt"
    path.write_text(text, encoding="utf-8")
    return path


def paths_of(pairs: FacePairs) -> list[tuple[str, str]]:
    assert isinstance(pairs.pixels, FilePixels)
    names = [Path(path).as_posix() for path in pairs.pixels.paths]
    return [(names[one], names[two]) for one, two in zip(pairs.first, pairs.second, strict=True)]


def test_lfw_pairs(tmp_path: Path) -> None:
    pairs = read_lfw_pairs(write(tmp_path, FOLDS))
    assert paths_of(pairs)[:4] == [
        ("Ada/Ada_0001.jpg", "Ada/Ada_0002.jpg"),
        ("Bob/Bob_0004.jpg", "Bob/Bob_0003.jpg"),
        ("Ada/Ada_0001.jpg", "Bob/Bob_0004.jpg"),
        ("Cy/Cy_0012.jpg", "Ada/Ada_0002.jpg"),
    ]
    assert pairs.same.tolist() == [True, True, False, False] * 2
    assert pairs.folds.tolist() == [0] * 4 + [1] * 4
    assert len(pairs.pixels) == 8, "each picture once"


@pytest.mark.parametrize("text", [FOLDS.replace("\n", "\r\n"), "\ufeff" + FOLDS, FOLDS.replace("\t", "  ") + "\n\n"])
def test_lfw_pairs_of_other_editors(tmp_path: Path, text: str) -> None:
    (tmp_path / "other").mkdir()
    expected, found = read_lfw_pairs(write(tmp_path, FOLDS)), read_lfw_pairs(write(tmp_path / "other", text))
    assert paths_of(found) == paths_of(expected)
    assert torch.equal(found.folds, expected.folds)


def test_lfw_development_list_is_one_fold(tmp_path: Path) -> None:
    pairs = read_lfw_pairs(write(tmp_path, "\n".join(["2", *SAME, *DIFFERENT])), suffix=".png")
    assert pairs.folds.tolist() == [0] * 4
    assert paths_of(pairs)[3] == ("Cy/Cy_0012.png", "Ada/Ada_0002.png")


def test_lfw_images_are_looked_for(tmp_path: Path) -> None:
    path = write(tmp_path, FOLDS)
    wanted = (
        r"lacks 8 of the 8 images of .*pairs\.txt: Ada/Ada_0001\.jpg, Ada/Ada_0002\.jpg, Bob/Bob_0004\.jpg, \.\.\.\.$"
    )
    with pytest.raises(ValueError, match=wanted):
        read_lfw_pairs(path, tmp_path)
    for one, two in paths_of(read_lfw_pairs(path)):
        for name in (one, two):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            Image.new("RGB", (4, 4), "red").save(tmp_path / name)
    pairs = read_lfw_pairs(path, tmp_path)
    assert pairs.images().pictures[int(pairs.second[-1])].size == (4, 4)
    (tmp_path / "Dee" / "Dee_0002.jpg").unlink()
    with pytest.raises(ValueError, match=r"lacks 1 of the 8 images of .*: Dee/Dee_0002\.jpg\.$"):
        read_lfw_pairs(path, tmp_path)


LINES = FOLDS.splitlines()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (LINES[1:], r"line 1: 'Ada\\t1\\t2' is neither `folds count`"),
        ([*LINES[:5], *LINES[6:]], r"line 7: 'Ada\\t1\\tBob\\t4' is not `name n1 n2`"),
        ([*LINES[:3], *LINES[4:]], r"line 5: 'Cy\\t1\\t12' is not `name1 n1 name2 n2` of two people"),
        (LINES[:-1], r"has 7 pairs, but its first line announces 8"),
        ([*LINES[:2], "../Bob\t4\t1", *LINES[3:]], "line 3: .* is not `name"),
    ],
)
def test_lfw_list_that_is_wrong_names_the_line(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=rf"pairs\.txt.* ?{message}") as caught:
        read_lfw_pairs(write(tmp_path, "\n".join(lines)))
    assert "\n" not in str(caught.value)


def test_lfw_list_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"gone\.txt cannot be read: no such file"):
        read_lfw_pairs(tmp_path / "gone.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xd8\xff\x00")
    with pytest.raises(ValueError, match=r"binary\.txt is not a list of pairs: it is not text in UTF-8"):
        read_lfw_pairs(tmp_path / "binary.txt")


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
        write_table(table, **columns | {"same": [bool(column) for column in columns["same"]]})
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


@pytest.mark.parametrize(
    ("header", "rows", "words"),
    [
        ("first,second,same", ["0,1,true", ",1,false"], "line 3: first is empty"),
        ("first,second,same", ["0,1,true", "0,1,maybe"], "line 3: same is 'maybe', but it must be true or false"),
        ("first,second,same", ["0,1,1"] * 3, "has 3 same pairs and 0 different ones, but verification needs both"),
        ("first,second,same", ["0,1,1", "1,2,0"], "1 same pairs and 1 different ones, too few for 10 folds"),
        ("first,second,same,fold", ["0,1,1,0", "1,2,0,a"], "line 3: fold is 'a', but it must be a whole number"),
        ("first,second,same,fold", ["0,1,1,3", "1,2,0,3"], "all pairs in fold 3, but there must be two"),
        ("first,second,same,fold", ["0,1,1,0", "1,2,0,0", "0,1,1,1"], "fold 1 has no different pair"),
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


@pytest.mark.parametrize("name", VERIFICATION_SETS)
def test_a_pack_is_found(tmp_path: Path, name: str) -> None:
    people = draw_people(3, 2)
    write_pack(tmp_path / f"{name}.bin", people, pairs=20)
    pairs, notes = read_verification_set(name, tmp_path)
    assert (len(pairs), int(pairs.same.sum()), len(pairs.folds.unique())) == (20, 10, 10)
    title, published = VERIFICATION_SETS[name].title, VERIFICATION_SETS[name].pairs
    path = tmp_path / f"{name}.bin"
    assert notes == (
        f"{path} has 20 pairs, but {title} was published with {published:,}: its figures are not comparable.",
    )


@pytest.mark.parametrize("suffix", [".jpg", ".jpeg", ".png"])
def test_lfw_from_its_images(tmp_path: Path, suffix: str) -> None:
    for person in ("Ada", "Bob"):
        for number in (1, 2):
            path = tmp_path / "lfw" / person / f"{person}_{number:04d}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), "red" if person == "Ada" else "blue").save(path)
    with pytest.raises(ValueError, match=r"there is no lfw\.bin, and no pairs\.txt with a folder lfw of images"):
        read_verification_set("lfw", tmp_path)
    (tmp_path / "pairs.txt").write_text("1\nAda\t1\t2\nAda\t1\tBob\t2\n")
    pairs, _ = read_verification_set("lfw", tmp_path)
    assert torch.equal(pairs.same, torch.tensor([True, False]))
    assert pairs.images().pictures[int(pairs.second[1])].getpixel((4, 4))[2] > 200  # type: ignore[index]
    (tmp_path / "lfw" / "Bob" / f"Bob_0002{suffix}").unlink()
    with pytest.raises(ValueError, match=rf"lacks 1 of the 3 images of .*pairs\.txt: Bob/Bob_0002\{suffix}\.$"):
        read_verification_set("lfw", tmp_path)
