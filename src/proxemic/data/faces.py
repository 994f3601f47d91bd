"""Pairs of faces, or of vectors, for verification: published sets and the user's own tables."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from proxemic.data.formats.packs import read_pack
from proxemic.data.formats.tables import read_table, unused_note
from proxemic.data.images import ImageSet
from proxemic.data.pixels import FilePixels, Pixels
from proxemic.data.reading import describe
from proxemic.data.rows import Rows, first_few
from proxemic.data.vectors import Vectors
from proxemic.files import backslash_hint, on_disk, readable
from proxemic.image_formats import ENDINGS
from proxemic.spelling import without_invisible

_FOLDS = 10
_PAGE = "https://github.com/deepinsight/insightface/wiki/Dataset-Zoo"
_HEADER = re.compile(r"(?:([1-9][0-9]{0,8})\s+)?([1-9][0-9]{0,8})")
_PAIR = re.compile(r"([^\s/\\]+)\s+([0-9]{1,9})\s+(?:([^\s/\\]+)\s+)?([0-9]{1,9})")
_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, eq=False)
class FacePairs:
    """Images of faces (or vectors instead), and the pairs of them to verify.

    Args:
        pixels: The images or vectors, without repetition.
        first: Index of the first image of each pair.
        second: Index of the second image of each pair.
        same: Whether both images show the same person.
        folds: The fold of each pair, from 0.

    >>> first, second = torch.tensor([[0, 0], [1, 2]])
    >>> pairs = FacePairs(FilePixels([Path("a.jpg")] * 3), first, second, torch.tensor([True, False]), first)
    >>> len(pairs), len(pairs.images())
    (2, 3)
    """

    pixels: Pixels | Vectors
    first: Int64[Tensor, " pairs"]
    second: Int64[Tensor, " pairs"]
    same: Bool[Tensor, " pairs"]
    folds: Int64[Tensor, " pairs"]

    def __len__(self) -> int:
        return len(self.same)

    def images(self) -> ImageSet:
        """Return the images as a set to embed, in a single class without a name, as pairs do not name people."""
        return ImageSet(Rows.of(self.pixels), torch.zeros(len(self.pixels), dtype=torch.int64), ("",))


class VerificationSet(NamedTuple):
    """A published set of pairs, in ten folds."""

    title: str
    pairs: int


VERIFICATION_SETS = {
    "lfw": VerificationSet("LFW", 6000),
    "cfp_fp": VerificationSet("CFP-FP", 7000),
    "agedb_30": VerificationSet("AgeDB-30", 6000),
    "calfw": VerificationSet("CALFW", 6000),
    "cplfw": VerificationSet("CPLFW", 6000),
}
"""The sets by name, in the order of the papers' tables; the pack of a set is the file `NAME.bin`."""


def read_verification_set(name: str, folder: str | Path) -> tuple[FacePairs, tuple[str, ...]]:
    """Read a published set of pairs from its pack or, for LFW, from its images and its list of pairs.

    Args:
        name: One of `VERIFICATION_SETS`.
        folder: Folder with `NAME.bin`, or for LFW with `pairs.txt` and the images of each person in `lfw/PERSON`, all
            with the same ending.

    Returns:
        The pairs, and notes for the user.

    Raises:
        ValueError: If the name is unknown, or the set is missing from the folder, damaged or refused.

    >>> read_verification_set("lfw", "faces_emore")
    Traceback (most recent call last):
        ...
    ValueError: lfw is not in faces_emore: there is no lfw.bin, and no pairs.txt with a folder lfw of images; ...
    """
    if name not in VERIFICATION_SETS:
        raise ValueError(f"{name!r} is not a known set of pairs: give {', '.join(VERIFICATION_SETS)}.")
    source, images = Path(folder, f"{name}.bin"), Path(folder, "lfw")
    if source.exists():
        pairs = read_face_pack(source)
    elif name == "lfw" and Path(folder, "pairs.txt").exists() and images.is_dir():
        source = Path(folder, "pairs.txt")
        suffix = next((ending for ending in ENDINGS if any(images.glob(f"*/*_0001{ending}"))), ENDINGS[0])
        pairs = read_lfw_pairs(source, images, suffix=suffix)
    else:
        other = ", and no pairs.txt with a folder lfw of images" if name == "lfw" else ""
        raise ValueError(
            f"{name} is not in {folder}: there is no {source.name}{other}; the packs come with the training sets of "
            f"{_PAGE}."
        )
    title, published = VERIFICATION_SETS[name]
    if len(pairs) == published:
        return pairs, ()
    return pairs, (
        f"{source} has {len(pairs):,} pairs, but {title} was published with {published:,}: its figures are not "
        "comparable.",
    )


def read_face_pack(path: str | Path) -> FacePairs:
    """Read a pack of insightface, such as `lfw.bin`, `cfp_fp.bin` or `agedb_30.bin`, without running code in it.

    A pack is a pickle of `(images, same)`, with two encoded images and one bool per pair; its folds are ten blocks of
    consecutive pairs. An image may also be a NumPy array of its bytes, and the flags an array of bools. Other objects
    than these, lists, tuples, bytes, integers and bools are refused.

    Args:
        path: The pack, of pickle protocol 2 to 5, written by Python 2 or 3.

    Raises:
        ValueError: If the file is missing, damaged or not a pack, or asks for more than a pack needs.

    >>> import pickle, tempfile
    >>> path = Path(tempfile.mkdtemp(), "two.bin")
    >>> _ = path.write_bytes(pickle.dumps(([b"a", b"b", b"c", b"d"], [True, False])))
    >>> read_face_pack(path).same.tolist()
    [True, False]
    """
    pixels, indices, same = read_pack(Path(path))
    first, second = torch.tensor(indices).view(-1, 2).T
    blocks = torch.arange(len(same)).tensor_split(_FOLDS)
    folds = torch.cat([torch.full_like(block, fold) for fold, block in enumerate(blocks)])
    return FacePairs(pixels, first, second, torch.tensor(same), folds)


def read_lfw_pairs(path: str | Path, root: str | Path | None = None, *, suffix: str = ".jpg") -> FacePairs:
    r"""Read `pairs.txt`, `pairsDevTrain.txt` or `pairsDevTest.txt` of Labeled Faces in the Wild.

    The first line is `folds count`, or `count` alone for one fold. Each fold has `count` lines `name n1 n2` (one
    person), then `count` lines `name1 n1 name2 n2` (two people); image n of a person is `name/name_000n.jpg`.

    Args:
        path: The list.
        root: Folder of the images; None leaves their paths relative, and unchecked.
        suffix: The ending of the images' names.

    Raises:
        ValueError: If the list is missing, malformed, or not as long as its first line states; or images are missing.

    Source: Huang et al., Labeled Faces in the Wild, 2007.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "pairs.txt")
    >>> _ = path.write_text("1\nAda\t1\t2\nAda\t2\tBob\t1\n")
    >>> pairs = read_lfw_pairs(path)
    >>> pairs.pixels.names, pairs.first.tolist(), pairs.second.tolist()
    (('Ada/Ada_0001.jpg', 'Ada/Ada_0002.jpg', 'Bob/Bob_0001.jpg'), [0, 1], [1, 2])
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a list of pairs: it is not text in UTF-8 ({error}).") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {describe(error)}.") from error
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    number, header = lines[0] if lines else (1, "")
    if not (announced := _HEADER.fullmatch(header)):
        raise ValueError(f"{path}, line {number}: {header!r} is neither `folds count` nor `count`, as LFW lists begin.")
    folds, count = int(announced[1] or 1), int(announced[2])
    places: dict[str, int] = {}
    pairs: list[tuple[int, int]] = []
    for number, line in lines[1:]:
        match, is_same = _PAIR.fullmatch(line), len(pairs) % (2 * count) < count
        if not match or (match[3] is None) != is_same or match[1] == match[3]:
            wanted = "`name n1 n2`" if is_same else "`name1 n1 name2 n2` of two people"
            raise ValueError(f"{path}, line {number}: {line!r} is not {wanted}, which follows here in LFW lists.")
        images = ((match[1], match[2]), (match[3] or match[1], match[4]))
        first, second = (f"{person}/{person}_{int(which):04}{suffix}" for person, which in images)
        pairs.append((places.setdefault(first, len(places)), places.setdefault(second, len(places))))
    if len(pairs) != 2 * count * folds:
        raise ValueError(
            f"{path} has {len(pairs):,} pairs, but its first line announces {2 * count * folds:,}: get it again."
        )
    folder = Path(root or "")
    if root is not None and (missing := [name for name in places if not (folder / name).is_file()]):
        raise ValueError(
            f"{root} lacks {len(missing):,} of the {len(places):,} images of {path}: {first_few(missing)}."
        )
    indices, order = torch.tensor(pairs), torch.arange(len(pairs))
    pixels = FilePixels([folder / name for name in places])
    return FacePairs(pixels, indices[:, 0], indices[:, 1], order % (2 * count) < count, order // (2 * count))


def read_own_pairs(table: str | Path, source: Path | Vectors) -> tuple[FacePairs, tuple[str, ...]]:
    r"""Read pairs from a table (CSV or Parquet) with the columns `first`, `second`, `same` and perhaps `fold`.

    Without a column `fold`, the same pairs and the different pairs are each dealt to ten folds in turn.

    Args:
        table: The table. `first` and `second` name the two items, `same` is true or false (or 1 or 0), `fold` is a
            whole number.
        source: The folder to which the paths of images are relative; or vectors, which the table names by path, or by
            index from 0 if they have no paths.

    Returns:
        The pairs, and notes for the user.

    Raises:
        ValueError: If the table cannot be read, lacks a column or a value, names missing items, or has a fold without
            pairs of both kinds.

    >>> import tempfile
    >>> from proxemic.data.vectors import VectorArray
    >>> table = Path(tempfile.mkdtemp(), "pairs.csv")
    >>> _ = table.write_text("first,second,same,fold\n2,0,true,0\n2,3,false,0\n0,2,true,1\n3,0,false,1\n")
    >>> pairs, _ = read_own_pairs(table, Vectors(VectorArray(torch.eye(4))))
    >>> len(pairs.pixels), pairs.first.tolist(), pairs.second.tolist()
    (3, [1, 1, 0, 2], [0, 2, 1, 0])
    """
    table, needed = Path(table), ("first", "second", "same")
    rows = read_table(table, (*needed, "fold"), needed)
    if not len(rows):
        raise ValueError(f"{table} has no pairs.")
    for column in needed:
        rows.require(column)
    first, second = ([text or "" for text in rows.texts(column)] for column in ("first", "second"))
    same = rows.truths("same").bool()
    names = sorted({*first, *second})
    place = {name: number for number, name in enumerate(names)}
    pixels = _files(names, source, table) if isinstance(source, Path) else _rows(names, source, table)
    left, right = (torch.tensor([place[name] for name in column]) for column in (first, second))
    return FacePairs(pixels, left, right, same, _folds(same, rows, table)), unused_note(table, rows)


def _folds(same: Bool[Tensor, " pairs"], rows: Rows, table: Path) -> Int64[Tensor, " pairs"]:
    """Return the fold of each pair, from the column `fold` or dealt in turn; each fold has pairs of both kinds."""
    counts = int(same.sum()), int((~same).sum())
    has = f"{table} has {counts[0]:,} same pairs and {counts[1]:,} different ones"
    if not all(counts):
        raise ValueError(f"{has}, but verification needs both kinds: add the other.")
    if not rows.has("fold"):
        if min(counts) < _FOLDS:
            raise ValueError(f"{has}, too few for {_FOLDS} folds: add some, or give fewer folds in a column fold.")
        folds = torch.empty(len(same), dtype=torch.int64)
        folds[same], folds[~same] = (torch.arange(count) % _FOLDS for count in counts)
        return folds
    rows.require("fold")
    numbers = {text: int(text) for text in rows.numbers("fold")[1] if _NUMBER.fullmatch(text)}
    folds = rows.meanings("fold", numbers, "a whole number")
    different = folds.unique().tolist()
    if len(different) < 2:
        raise ValueError(f"{table} has all pairs in fold {different[0]}, but there must be two folds or more.")
    for fold in different:
        kinds = same[folds == fold]
        if kinds.all() or not kinds.any():
            lacking = "different" if kinds.all() else "same"
            raise ValueError(f"{table}: fold {fold} has no {lacking} pair, but each needs both kinds: deal them anew.")
    return folds


def _files(names: Sequence[str], folder: Path, table: Path) -> Pixels:
    paths = [on_disk(folder / name) for name in names]
    missing = [name for name, path in zip(names, paths, strict=True) if not path.is_file()]
    _check_known(missing, names, table, str(folder))
    return FilePixels(paths)


def _rows(names: Sequence[str], vectors: Vectors, table: Path) -> Vectors:
    rows: dict[str, int]
    if vectors.names is None:
        rows = {name: int(name) for name in names if _NUMBER.fullmatch(name) and int(name) < len(vectors)}
        what = f"{vectors.reader.name}, whose rows are numbered from 0 to {len(vectors) - 1:,},"
    else:
        wanted, rows = {without_invisible(name): name for name in names}, {}
        for row, text in enumerate(vectors.names):
            name = wanted.get(without_invisible(text))
            if name is not None and rows.setdefault(name, row) != row:
                raise ValueError(f"{table} names {readable(name)}, but {vectors.reader.name} has several of that name.")
        what = f"{vectors.reader.name}, whose rows are named by the column path,"
    _check_known([name for name in names if name not in rows], names, table, what)
    return vectors.select([rows[name] for name in names])


def _check_known(missing: Sequence[str], names: Sequence[str], table: Path, what: str) -> None:
    if missing:
        examples = first_few([readable(name) for name in missing])
        hint = next(filter(None, map(backslash_hint, missing)), "")
        raise ValueError(f"{what} lacks {len(missing):,} of the {len(names):,} that {table} names: {examples}{hint}.")
