import numpy as np
import pytest
import torch

from proxemic.data import ArrayPixels, ImageSet, Rows
from proxemic.data.vectors import VectorArray, Vectors
from proxemic.errors import UserError


def pixels(count: int) -> ArrayPixels:
    return ArrayPixels(np.arange(count, dtype=np.uint8).reshape(count, 1, 1))


def images() -> ImageSet:
    flags = {"is_query": ["true", "false"] * 2, "is_gallery": ["false", "true"] * 2}
    return ImageSet.of(Rows.of(pixels(4), label=["c", "a", "b", "c"], face=[*"wxyz"], **flags))


def content(chosen: ImageSet) -> list[float | tuple[int, ...] | None]:
    return [chosen.pictures[index].getpixel((0, 0)) for index in range(len(chosen))]


def test_select_classes_relabels_in_the_order_asked_for() -> None:
    chosen = images().select_classes([2, 0])
    assert chosen.class_names == ("c", "a")
    assert content(chosen) == [0, 1, 3]
    assert chosen.labels.tolist() == [0, 1, 0]
    assert chosen.is_query is not None
    assert chosen.is_query.tolist() == [True, False, False]
    assert chosen.attributes == ("face",)
    assert chosen.rows.texts("face") == ["w", "x", "z"]


def test_select_keeps_order_and_closes_gaps() -> None:
    chosen = images().select([3, 2])
    assert chosen.class_names == ("b", "c")
    assert content(chosen) == [3, 2]
    assert chosen.labels.tolist() == [1, 0]


def test_a_row_without_a_class_has_the_label_minus_one() -> None:
    some = ImageSet.of(Rows.of(pixels(4), label=["b", None, "c", "a"]))
    assert some.labels.tolist() == [1, -1, 2, 0]
    assert some.select([2, 1, 0]).labels.tolist() == [1, -1, 0]
    assert content(some.select_classes([2, 0])) == [2, 3]


def test_names_are_numbered_as_text() -> None:
    chosen = ImageSet.from_names(pixels(3), ["10", "9", "10"])
    assert chosen.class_names == ("10", "9")
    assert chosen.labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize("labels", [[0, 2, 2], [1, 1, 1], [-2, 0, 1], [0, 1, 5]])
def test_labels_must_be_dense(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="labels must use each of 0 to 1"):
        ImageSet(Rows.of(pixels(3)), torch.tensor(labels), ("a", "b"))


def test_parts_must_fit() -> None:
    with pytest.raises(ValueError, match="rows has 3 entries but labels has 2"):
        ImageSet(Rows.of(pixels(3)), torch.tensor([0, 1]), ("a", "b"))
    with pytest.raises(ValueError, match="row 1: is_query or is_gallery is empty"):
        ImageSet.from_names(pixels(2), ["a", "b"], is_query=torch.tensor([True, True]))


def test_vectors_are_not_images() -> None:
    vectors = ImageSet.of(Rows.of(Vectors(VectorArray(torch.eye(3))), label=["a", "b", "a"]))
    assert vectors.kind == "vectors"
    with pytest.raises(UserError, match="vectors, which cannot be shown or changed as images"):
        _ = vectors.pictures
