"""Faces to train on: the record files of insightface, and folders of identities."""

import math
import os
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from proxemic.data.formats.recordio import RecordIndex, read_record_index
from proxemic.data.images import ImageSet, ImageSource, Splits, require_root
from proxemic.data.pixels import FilePixels
from proxemic.data.rows import Rows
from proxemic.data.sources.own_source import anything_to_find
from proxemic.data.splits import hold_out
from proxemic.files import readable
from proxemic.image_formats import ENDINGS, is_hidden, is_picture_name
from proxemic.ranges import SEEDS, check_fields

_LARGEST = 2**24  # all whole numbers up to this are exact in float32


@dataclass(frozen=True)
class _Faces(ImageSource):
    """Base class of sources of faces, which train on all identities that are not held out for validation."""

    how_to_evaluate: ClassVar[str] = "on pairs of faces with proxemic verify {run}"

    root: Path | None = None
    validation_fraction: float = 0.0
    split_seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "data", split_seed=SEEDS, validation_fraction="[0, 1)")

    @property
    def has_test(self) -> bool:
        """Never: faces are evaluated by pairs of other people."""
        return False

    def load(self) -> Splits:
        root = require_root(self.root, "the folder of the faces")
        if not root.is_dir():
            raise ValueError(f"{root} is not a folder: give the folder of the faces (--data.root DIR).")
        images, notes = self._read(root)
        if images.num_classes < 2:
            raise ValueError(f"{root} has a single identity, but at least two are needed.")
        train, validation = hold_out(images, self.validation_fraction, self.split_seed)
        if validation is not None and not anything_to_find(validation):
            raise ValueError(
                f"{root} has no identity with two images among those that validate: change split_seed or raise "
                "validation_fraction."
            )
        return Splits(train, validation, None, notes)

    @abstractmethod
    def _read(self, root: Path) -> tuple[ImageSet, tuple[str, ...]]: ...


@dataclass(frozen=True)
class RecordFaces(_Faces):
    """The training sets of insightface: `train.rec` with `train.idx`, such as MS1MV2 in the folder `faces_emore`.

    If record 0 has two labels a and b, the images are the records 1 to a - 1, and the records after them list the
    images of each identity. If record 0 has one label, every record is an image. The first label of an image is its
    identity.
    A file `property` (`identities,height,width`) must agree. Loading reads the header of every record, but decodes no
    image.

    Args:
        root: The folder.
        validation_fraction: Fraction of the identities held out for validation, 0 (none) to below 1; there is no test.
        split_seed: Seed of the random split.

    Raises:
        ValueError: If the fraction is out of range, or (on load) a file is missing, damaged, or not of this layout.

    Source: insightface, `recognition/arcface_torch/dataset.py` (`MXFaceDataset`).

    >>> RecordFaces(Path("faces_emore")).has_test
    False
    """

    def _read(self, root: Path) -> tuple[ImageSet, tuple[str, ...]]:
        index = read_record_index(root / "train.rec")
        chosen = _image_records(index)
        pixels, given = index.pixels.select(chosen), index.labels[chosen, 0]
        wrong = ~((given >= 0) & (given < _LARGEST) & (given == np.floor(given)))
        if wrong.any():
            key = index.pixels.keys[chosen[wrong.argmax()]]
            raise ValueError(
                f"{root / 'train.rec'}: record {key} has the label {given[wrong.argmax()]}, but an identity is a whole "
                f"number from 0 to {_LARGEST - 1}."
            )
        identities, labels = np.unique(given.astype(np.int64), return_inverse=True)
        said = root / "property"
        if said.exists() and said.read_text(encoding="ascii", errors="replace").split(",")[0] != str(len(identities)):
            raise ValueError(
                f"{said} says that there is another number of identities than the {len(identities):,} of the records: "
                "get the files again, or remove it if the records are right."
            )
        return ImageSet(Rows.of(pixels), torch.from_numpy(labels), tuple(map(str, identities.tolist()))), ()


@dataclass(frozen=True)
class FaceFolders(_Faces):
    """Images of faces in one folder per identity; they are listed, not opened, as there may be millions.

    Args:
        root: The folder of the identities' folders.
        validation_fraction: Fraction of the identities held out for validation, 0 (none) to below 1; there is no test.
        split_seed: Seed of the random split.

    Raises:
        ValueError: If the fraction is out of range, or (on load) there are no images or a single identity.

    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> for name in ("Ada", "Bob"):
    ...     (root / name).mkdir()
    ...     (root / name / "1.jpg").touch()
    >>> splits = FaceFolders(root).load()
    >>> splits.train.class_names, splits.train.labels.tolist(), splits.test
    (('Ada', 'Bob'), [0, 1], None)
    """

    def _read(self, root: Path) -> tuple[ImageSet, tuple[str, ...]]:
        inside = root.resolve()
        folders = sorted(
            entry.name
            for entry in os.scandir(root)
            if entry.is_dir()
            and not is_hidden(entry.name)
            # A link to another of the folders would make two people of one.
            and not (entry.is_symlink() and Path(entry).resolve().is_relative_to(inside))
        )
        files = {
            name: sorted(
                entry.name
                for entry in os.scandir(root / name)
                if is_picture_name(entry.name) and not is_hidden(entry.name) and not entry.is_dir()
            )
            for name in folders
        }
        by_identity = {name: own for name, own in files.items() if own}
        if not by_identity:
            raise ValueError(
                f"{root} has no images in folders, one per identity: image files end in {', '.join(ENDINGS)}."
            )
        labels = torch.arange(len(by_identity)).repeat_interleave(
            torch.tensor([len(own) for own in by_identity.values()])
        )
        paths = [root / name / file for name, own in by_identity.items() for file in own]
        empty = len(folders) - len(by_identity)
        notes = (f"{empty} folders of {root} have no images and are left out.",) if empty else ()
        return ImageSet(Rows.of(FilePixels(paths)), labels, tuple(map(readable, by_identity))), notes


def _image_records(index: RecordIndex) -> np.ndarray:
    """Return the indices of the records with images."""
    keys = index.pixels.keys
    if keys[0] != 0 or not index.labels_follow[0]:
        return np.arange(len(keys))
    end = float(index.labels[0, 0])
    if _LARGEST <= end < math.inf:
        end = _end_of_images(int(end), index.bare)
    # The keys ascend from 0 without repetition, so all images exist if the last key has the right position.
    if not (2 <= end <= len(keys) and end == int(end) and keys[int(end) - 1] == end - 1):
        raise ValueError(
            f"{index.pixels.path}: record 0 says that the images are the records 1 to {end - 1:.0f}, but not all of "
            f"them are in the index, which has {len(keys):,}: get both files again."
        )
    return np.arange(1, int(end))


def _end_of_images(rounded: int, bare: np.ndarray) -> int:
    """Find the first record after the images; the header has its number rounded to float32.

    The rounding error is up to one part in 2**24. The records of identities, which are `bare`, follow the images.
    """
    slack = rounded // _LARGEST
    near = bare[rounded - slack : rounded + slack]
    return rounded - slack + int(near.argmax() if near.any() else len(near))
