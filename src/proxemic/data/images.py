"""Sets of images or vectors with numbered classes, and the base class of their sources."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from proxemic.arrays import number_texts
from proxemic.data.formats.tables import IMAGE_COLUMNS
from proxemic.data.pixels import FilePixels, Pixels
from proxemic.data.rows import Rows, truth_texts
from proxemic.data.vectors import Vectors
from proxemic.errors import UserError


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A set of images or vectors whose classes are numbered from 0 without gaps.

    Args:
        rows: The images or vectors. The column `is_query` tells which are queries, `is_gallery` which are in the
            gallery; without both columns, each is both. Images of one `sequence`, a burst or video, are not hits of
            each other. A `category` is a group of classes. Further columns are `attributes`.
        labels: Class of each image, from 0, every class at least once; -1 for an image without a class.
        class_names: Name of each class.

    Raises:
        ValueError: If the parts do not fit together.

    >>> import numpy as np
    >>> from proxemic.data import ArrayPixels
    >>> pixels = ArrayPixels(np.zeros((3, 8, 8), dtype=np.uint8))
    >>> images = ImageSet.from_names(pixels, ["b", "a", "b"])
    >>> images.labels.tolist(), images.class_names, images.select_classes([1]).labels.tolist()
    ([1, 0, 1], ('a', 'b'), [0, 0])
    """

    rows: Rows
    labels: Int64[Tensor, " images"]
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.labels):
            raise ValueError(f"rows has {len(self.rows)} entries but labels has {len(self.labels)}.")
        low, high = map(int, self.labels.aminmax()) if len(self.labels) else (-1, -1)
        known = self.labels if low >= 0 else self.labels[self.labels >= 0]
        if low < -1 or high != self.num_classes - 1 or not known.bincount().all():
            raise ValueError(
                f"labels must use each of 0 to {self.num_classes - 1}, one a name in class_names, and nothing else but "
                "-1 for none."
            )
        self._flags  # noqa: B018 - raises if a flag has no meaning

    @classmethod
    def from_names(
        cls,
        pixels: Pixels | Vectors,
        names: Sequence[str],
        is_query: Bool[Tensor, " images"] | None = None,
        is_gallery: Bool[Tensor, " images"] | None = None,
    ) -> "ImageSet":
        """Build an image set from one class name per image; labels index the sorted names."""
        flags = {"is_query": is_query, "is_gallery": is_gallery}
        texts = {name: truth_texts(flag) for name, flag in flags.items() if flag is not None}
        return cls(Rows.of(pixels, **texts), *number_texts(names))

    @classmethod
    def of(cls, rows: Rows, flagged: bool = True) -> "ImageSet":
        """Build an image set from rows; labels index the sorted texts of the column label.

        Without `flagged`, the columns is_query and is_gallery are ignored.
        """
        return cls(rows if flagged else rows.without("is_query", "is_gallery"), *rows.numbers("label"))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def pixels(self) -> Pixels | Vectors:
        """The images or vectors."""
        return self.rows.pixels

    @property
    def pictures(self) -> Pixels:
        """The images; `UserError` if there are vectors instead."""
        if isinstance(self.pixels, Vectors):
            raise UserError("The data are vectors, which cannot be shown or changed as images: leave this out.")
        return self.pixels

    @property
    def kind(self) -> Literal["images", "vectors"]:
        """The word for the content in messages."""
        return "vectors" if isinstance(self.pixels, Vectors) else "images"

    @cached_property
    def names(self) -> tuple[str, ...] | None:
        """The file of each image with its box, or the name of each vector; None if there are no names."""
        if isinstance(self.rows.pixels, FilePixels | Vectors):
            return self.rows.pixels.names
        return tuple(self.rows.names) if self.rows.has("path") else None

    @cached_property
    def _flags(self) -> tuple[Bool[Tensor, " images"] | None, Bool[Tensor, " images"] | None]:
        return self.rows.flags()

    @property
    def is_query(self) -> Bool[Tensor, " images"] | None:
        """Which images are queries; None if every image is both a query and in the gallery."""
        return self._flags[0]

    @property
    def is_gallery(self) -> Bool[Tensor, " images"] | None:
        """Which images are in the gallery; None if every image is both a query and in the gallery."""
        return self._flags[1]

    @cached_property
    def sequences(self) -> Int64[Tensor, " images"] | None:
        """The number of the sequence of each image, -1 for none; None if no image has one."""
        numbers, names = self.rows.numbers("sequence")
        return numbers if names else None

    @cached_property
    def categories(self) -> Int64[Tensor, " images"] | None:
        """The number of the category of each image by sorted names, -1 for none; None if no image has one."""
        numbers, names = self.rows.numbers("category")
        return numbers if names else None

    @property
    def category_names(self) -> tuple[str, ...]:
        """The names of the categories."""
        return self.rows.numbers("category")[1]

    @property
    def attributes(self) -> tuple[str, ...]:
        """The columns of further properties, such as the typeface of a glyph; `Rows.numbers` numbers their values."""
        return tuple(name for name in self.rows.columns.column_names if name not in _WITH_A_MEANING)

    def label_texts(self) -> list[str | None]:
        """Return the name of each image's class, or None."""
        return [None if label < 0 else self.class_names[label] for label in self.labels.tolist()]

    def with_pixels(self, pixels: Pixels | Vectors) -> "ImageSet":
        """Return the same set with other pixels or vectors."""
        return replace(self, rows=replace(self.rows, pixels=pixels))

    def described(self) -> Rows:
        """Return the rows with their names and the names of their classes as columns, without pixels."""
        columns = {"path": self.names, "label": self.label_texts() if self.class_names else None}
        texts = {name: column for name, column in columns.items() if column is not None}
        return replace(self.rows.with_texts(**texts), pixels=None)

    def select_classes(self, classes: Sequence[int] | Int64[Tensor, " classes"]) -> "ImageSet":
        """Keep the images of `classes`; the i-th of these becomes label i and keeps its name."""
        classes = torch.as_tensor(classes, dtype=torch.int64)
        labels = self._renumber(classes)
        chosen = (labels >= 0).nonzero().flatten()
        return self._take(chosen, labels, classes)

    def select(self, indices: Sequence[int] | Int64[Tensor, " chosen"]) -> "ImageSet":
        """Keep the images at `indices`, in that order; drop empty classes, and renumber the others."""
        indices = torch.as_tensor(indices, dtype=torch.int64)
        classes = self.labels[indices].unique()
        classes = classes[classes >= 0]
        return self._take(indices, self._renumber(classes), classes)

    def _renumber(self, classes: Int64[Tensor, " classes"]) -> Int64[Tensor, " images"]:
        """Number the classes by their position in `classes`; all others become -1."""
        places = torch.full((self.num_classes + 1,), -1)  # the last one is that of -1
        places[classes] = torch.arange(len(classes))
        return places[self.labels]

    def _take(
        self, indices: Int64[Tensor, " chosen"], labels: Int64[Tensor, " images"], classes: Int64[Tensor, " classes"]
    ) -> "ImageSet":
        names = tuple(self.class_names[label] for label in classes.tolist())
        return ImageSet(self.rows.take(indices), labels[indices], names)


_WITH_A_MEANING = {*IMAGE_COLUMNS} - {"subclass"}


@dataclass(frozen=True, eq=False)
class Splits:
    """Training, validation and test images: validation is for tuning and model selection; the test is used once.

    Args:
        train: Images to train on.
        validation: Images of other classes; None if nothing is held out.
        test: Images of further classes; None if the model is evaluated in another way, such as on pairs of faces.
        notes: Facts that the user must know, one sentence each.
        rows: Path within the data, label and split of each image, from which a run restores its split; None if the
            images are not files.
    """

    train: ImageSet
    validation: ImageSet | None
    test: ImageSet | None
    notes: tuple[str, ...] = ()
    rows: Rows | None = None

    @property
    def test_images(self) -> ImageSet:
        """The test images; `UserError` if there are none."""
        if self.test is None:
            raise UserError(NO_TEST)
        return self.test


NO_TEST = (
    "These images have no test classes to evaluate on: evaluate the model on other images with "
    "proxemic evaluate RUN --data.root OTHER, or a model of faces on pairs with proxemic verify RUN."
)
"""The message if images without a test split are to be evaluated."""


def require_root(root: Path | None, what: str) -> Path:
    """Return the root of a source as a path; raise `ValueError` if it was not given."""
    if root is None:
        raise ValueError(f"data.root is missing: give {what} (--data.root PATH).")
    return Path(root)


class ImageSource(ABC):
    """Base class of sources, which load `Splits`.

    Attributes:
        how_to_evaluate: Advice on evaluating a model if the source has no test; ``{run}`` stands for its run.
    """

    how_to_evaluate: ClassVar[str] = "on other images with proxemic evaluate {run} --data.root OTHER"

    @property
    def has_test(self) -> bool:
        """Whether the source has test classes, which is known before it is loaded."""
        return True

    @abstractmethod
    def load(self) -> Splits:
        """Read the images and split them."""
