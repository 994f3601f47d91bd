"""Pairs of faces, or of vectors, to verify, and the pair lists of Labeled Faces in the Wild."""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from proxemic.data.images import ImageSet
from proxemic.data.pixels import FilePixels, Pixels
from proxemic.data.pixels.reading import describe
from proxemic.data.sources.listing import first_few
from proxemic.data.vectors import Vectors

_PAIR = re.compile(r"([^\s/\\]+)\s+([0-9]{1,9})\s+(?:([^\s/\\]+)\s+)?([0-9]{1,9})")


@dataclass(frozen=True, eq=False)
class FacePairs:
    """Images of faces, or vectors in their place, and the pairs of these to verify.

    Args:
        pixels: The images, or the vectors, each once.
        first: Index of the first image of each pair.
        second: Index of the second image of each pair.
        same: Whether the two show one person.
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
        """The images as a set to embed, in one class without a name, as pairs do not say who is shown."""
        return ImageSet(self.pixels, torch.zeros(len(self.pixels), dtype=torch.int64), ("",))


def read_lfw_pairs(path: str | Path, root: str | Path | None = None, *, suffix: str = ".jpg") -> FacePairs:
    r"""Read `pairs.txt`, `pairsDevTrain.txt` or `pairsDevTest.txt` of Labeled Faces in the Wild.

    The first line is `folds count`, or `count` alone for one fold. Each fold has `count` lines `name n1 n2` (one
    person), then `count` lines `name1 n1 name2 n2` (two people); image n of a person is `name/name_000n.jpg`.

    Args:
        path: The list.
        root: Folder of the images; None leaves their paths relative, and unchecked.
        suffix: The ending of the images' names.

    Raises:
        ValueError: If the list is missing, malformed, or not as long as its first line says; or images are missing.

    Source: Huang et al., Labeled Faces in the Wild, 2007.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "pairs.txt")
    >>> _ = path.write_text("1\nAda\t1\t2\nAda\t2\tBob\t1\n")
    >>> pairs = read_lfw_pairs(path)
    >>> pairs.pixels.names, pairs.first.tolist(), pairs.second.tolist()
    (('Ada/Ada_0001.jpg', 'Ada/Ada_0002.jpg', 'Bob/Bob_0001.jpg'), [0, 1], [1, 2])
    """
    path, root = Path(path), None if root is None else Path(root)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no list of pairs: it is not text in UTF-8 ({error}).") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {describe(error)}.") from error
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), start=1) if line.strip())
    number, header = next(lines, (1, ""))
    if not re.fullmatch(r"([1-9][0-9]{0,8}\s+)?[1-9][0-9]{0,8}", header):
        raise ValueError(f"{path}, line {number}: {header!r} is neither `folds count` nor `count`, as LFW lists begin.")
    *folds_given, count = map(int, header.split())
    folds = folds_given[0] if folds_given else 1

    places: dict[str, int] = {}  # of each image, in order of appearance
    pairs: list[tuple[int, int]] = []
    for number, line in lines:
        fold, pair = divmod(len(pairs), 2 * count)
        where = f"{path}, line {number}"
        if fold == folds:
            raise ValueError(f"{where}: the list goes on after the {len(pairs):,} pairs that its first line announces.")
        match = _PAIR.fullmatch(line)
        if not match:
            raise ValueError(f"{where}: {line!r} is neither `name n1 n2` nor `name1 n1 name2 n2`.")
        name, number_of_first, other, number_of_second = match.groups()
        kinds = ("one person", "two people") if pair < count else ("two people", "one person")
        if (pair < count) != (other is None):
            progress = f"fold {fold + 1} has had {pair % count} of {count} pairs of {kinds[0]}"
            raise ValueError(f"{where}: {line!r} is a pair of {kinds[1]}, but {progress}.")
        if other == name:
            raise ValueError(f"{where}: {line!r} stands among the pairs of two people, but names one person twice.")
        images = ((name, number_of_first), (other or name, number_of_second))
        first, second = (f"{person}/{person}_{int(which):04}" for person, which in images)
        pairs.append((places.setdefault(first, len(places)), places.setdefault(second, len(places))))
    if len(pairs) < 2 * count * folds:
        fold, pair = divmod(len(pairs), 2 * count)
        raise ValueError(
            f"{path} ends at line {number} with {pair} of the {2 * count} pairs of fold {fold + 1}, but its first line "
            f"announces {folds} folds ({2 * count * folds:,} pairs): it is cut short."
        )
    names = [name + suffix for name in places]
    if root is not None:
        missing = [name for name in names if not (root / name).is_file()]
        if missing:
            examples = first_few(missing)
            raise ValueError(f"{root} lacks {len(missing):,} of the {len(names):,} images of {path}: {examples}.")
    indices = torch.tensor(pairs)
    order = torch.arange(len(pairs))
    paths = [Path(name) if root is None else root / name for name in names]
    return FacePairs(FilePixels(paths), indices[:, 0], indices[:, 1], order % (2 * count) < count, order // (2 * count))
