"""Pair lists of Labeled Faces in the Wild: what is read, and what is named as wrong."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from proxemic.data import FilePixels
from proxemic.data.faces import FacePairs, read_lfw_pairs

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
        ([], r"line 1: '' is neither `folds count` nor `count`"),
        (LINES[1:], r"line 1: 'Ada\\t1\\t2' is neither `folds count`"),
        (["0\t2", *LINES[1:]], "line 1: '0"),
        (["2\t2\t2", *LINES[1:]], "line 1: '2"),
        (
            [*LINES[:5], *LINES[6:]],
            r"line 7: 'Ada\\t1\\tBob\\t4' is a pair of two people, but fold 2 has had 1 of 2 pairs ",
        ),
        (
            [*LINES[:3], *LINES[4:]],
            r"line 5: 'Cy\\t1\\t12' is a pair of one person, but fold 1 has had 1 of 2 pairs of two",
        ),
        (LINES[:-1], r"ends at line 8 with 3 of the 4 pairs of fold 2, but .* announces 2 folds \(8 pairs\)"),
        (LINES[:1], r"ends at line 1 with 0 of the 4 pairs of fold 1"),
        ([*LINES, SAME[0]], "line 10: the list goes on after the 8 pairs that its first line announces"),
        ([*LINES[:2], "Bob\t4", *LINES[3:]], r"line 3: 'Bob\\t4' is neither `name n1 n2` nor `name1 n1 name2 n2`"),
        ([*LINES[:2], "Bob\t4\tx", *LINES[3:]], "line 3: .* is neither `name"),
        ([*LINES[:2], "../Bob\t4\t1", *LINES[3:]], "line 3: .* is neither `name"),
        ([*LINES[:3], "Ada\t1\tAda\t2", *LINES[4:]], "line 4: .* among the pairs of two people, but names one person"),
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
    with pytest.raises(ValueError, match=r"binary\.txt is no list of pairs: it is not text in UTF-8"):
        read_lfw_pairs(tmp_path / "binary.txt")
