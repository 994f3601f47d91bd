"""Labelled image sets, and the base class of their sources."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from proxemic.arrays import number_texts
from proxemic.data.pixels import Pixels
from proxemic.data.rows import RowGroups, Rows, take_parts
from proxemic.data.vectors import Vectors
from proxemic.errors import UserError


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images (or vectors instead) with labels from 0 without gaps.

    Args:
        pixels: The images or vectors.
        labels: Class of each image, from 0, every class at least once.
        class_names: Name of each class.
        is_query: Which images are queries; None if every image is both a query and in the gallery.
        is_gallery: Which images are in the gallery; None likewise.
        sequences: The burst or video that each image comes from: images of one sequence are not hits of each other.
        categories: The group of classes that each image's class belongs to.
        attributes: Further properties of images by name, such as the typeface of a glyph.

    Raises:
        ValueError: If the parts do not fit together.

    >>> import numpy as np
    >>> from proxemic.data import ArrayPixels
    >>> pixels = ArrayPixels(np.zeros((3, 8, 8), dtype=np.uint8))
    >>> images = ImageSet.from_names(pixels, ["b", "a", "b"])
    >>> images.labels.tolist(), images.class_names, images.select_classes([1]).labels.tolist()
    ([1, 0, 1], ('a', 'b'), [0, 0])
    """

    pixels: Pixels | Vectors
    labels: Int64[Tensor, " images"]
    class_names: tuple[str, ...]
    is_query: Bool[Tensor, " images"] | None = None
    is_gallery: Bool[Tensor, " images"] | None = None
    sequences: RowGroups | None = None
    categories: RowGroups | None = None
    attributes: Mapping[str, RowGroups] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.pixels) != len(self.labels):
            raise ValueError(f"pixels has {len(self.pixels)} images but labels has {len(self.labels)}.")
        low, high = map(int, self.labels.aminmax()) if len(self.labels) else (0, -1)
        if (low, high) != (0, self.num_classes - 1) or not self.labels.bincount().all():
            raise ValueError(
                f"labels must use each of 0 to {self.num_classes - 1}, one a name in class_names, and nothing else."
            )
        if (self.is_query is None) != (self.is_gallery is None):
            raise ValueError("is_query and is_gallery must be given together.")
        for name, groups in {"sequences": self.sequences, "categories": self.categories, **self.attributes}.items():
            if groups is not None and len(groups) != len(self.labels):
                raise ValueError(f"{name} has {len(groups)} entries but labels has {len(self.labels)}.")

    @classmethod
    def from_names(
        cls,
        pixels: Pixels,
        names: Sequence[str],
        is_query: Bool[Tensor, " images"] | None = None,
        is_gallery: Bool[Tensor, " images"] | None = None,
    ) -> "ImageSet":
        """Build an image set from one class name per image; labels index the sorted names."""
        return cls(pixels, *number_texts(names), is_query, is_gallery)

    @classmethod
    def of(cls, rows: Rows, flagged: bool = True) -> "ImageSet":
        """Build an image set from rows; labels and groups are numbers in the sorted order of their texts.

        With `flagged`, the columns is_query and is_gallery say which are queries and which are in the gallery.
        """
        return cls(
            rows.pixels,
            *rows.numbers("label"),
            *(rows.flags() if flagged else (None, None)),
            sequences=rows.groups("sequence"),
            categories=rows.groups("category"),
            attributes={name: groups for name in ("subclass",) if (groups := rows.groups(name)) is not None},
        )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

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

    def select_classes(self, classes: Sequence[int] | Int64[Tensor, " classes"]) -> "ImageSet":
        """Keep the images of `classes`; the i-th of these becomes label i and keeps its name."""
        classes = torch.as_tensor(classes, dtype=torch.int64)
        relabel = torch.full((self.num_classes,), -1)
        relabel[classes] = torch.arange(len(classes))
        chosen = (relabel[self.labels] >= 0).nonzero().flatten()
        return self._take(chosen, relabel[self.labels[chosen]], classes)

    def select(self, indices: Sequence[int] | Int64[Tensor, " chosen"]) -> "ImageSet":
        """Keep the images at `indices`, in that order; drop empty classes, and renumber the others."""
        indices = torch.as_tensor(indices, dtype=torch.int64)
        present, labels = self.labels[indices].unique(return_inverse=True)
        return self._take(indices, labels, present)

    def _take(
        self,
        indices: Int64[Tensor, " chosen"],
        labels: Int64[Tensor, " chosen"],
        classes: Int64[Tensor, " classes"],
    ) -> "ImageSet":
        parts = take_parts(self, indices) | {
            "pixels": self.pixels.select(indices.numpy()),  # a list of ten million numbers would take 400 MB
            "labels": labels,
            "class_names": tuple(self.class_names[index] for index in classes.tolist()),
            "attributes": {name: groups.take(indices) for name, groups in self.attributes.items()},
        }
        return ImageSet(**parts)


@dataclass(frozen=True, eq=False)
class Splits:
    """Training, validation and test images; validation chooses hyper-parameters and epoch, the test is used once.

    Args:
        train: Images to train on.
        validation: Images of other classes; None if nothing is held out.
        test: Images of further classes; None if the model is evaluated in another way, such as on pairs of faces.
        notes: Facts that the user must know, one sentence each.
        rows: Path within the data, label and split of each image, by which a run finds its split again; None if the
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
    "These images have no test classes, so that no figure can be taken on them: evaluate the model on others with "
    "proxemic evaluate RUN --data.root OTHER, or one of faces on pairs with proxemic verify RUN."
)
"""The message where images without a test split are to be evaluated."""


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
