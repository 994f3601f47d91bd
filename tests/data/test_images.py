import numpy as np
import pytest
import torch

from proxemic.data import ArrayPixels, ImageSet, RowGroups


def pixels(count: int) -> ArrayPixels:
    return ArrayPixels(np.arange(count, dtype=np.uint8).reshape(count, 1, 1))


def images() -> ImageSet:
    flags = torch.tensor([True, False, True, False])
    faces = RowGroups(torch.arange(4), ("w", "x", "y", "z"))
    labels = torch.tensor([2, 0, 1, 2])
    return ImageSet(pixels(4), labels, ("a", "b", "c"), flags, ~flags, attributes={"face": faces})


def content(chosen: ImageSet) -> list[float | tuple[int, ...] | None]:
    return [chosen.pictures[index].getpixel((0, 0)) for index in range(len(chosen))]


def test_select_classes_relabels_in_the_order_asked_for() -> None:
    chosen = images().select_classes([2, 0])
    assert chosen.class_names == ("c", "a")
    assert content(chosen) == [0, 1, 3]
    assert chosen.labels.tolist() == [0, 1, 0]
    assert chosen.is_query is not None
    assert chosen.is_query.tolist() == [True, False, False]
    assert chosen.attributes["face"].texts() == ("w", "x", "z")


def test_select_keeps_order_and_closes_gaps() -> None:
    chosen = images().select([3, 2])
    assert chosen.class_names == ("b", "c")
    assert content(chosen) == [3, 2]
    assert chosen.labels.tolist() == [1, 0]


def test_names_are_numbered_as_text() -> None:
    chosen = ImageSet.from_names(pixels(3), ["10", "9", "10"])
    assert chosen.class_names == ("10", "9")
    assert chosen.labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize("labels", [[0, 2, 2], [1, 1, 1], [-1, 0, 1], [0, 1, 5]])
def test_labels_must_be_dense(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="labels must use each of 0 to 1"):
        ImageSet(pixels(3), torch.tensor(labels), ("a", "b"))


def test_parts_must_fit() -> None:
    with pytest.raises(ValueError, match="pixels has 3 images but labels has 2"):
        ImageSet(pixels(3), torch.tensor([0, 1]), ("a", "b"))
    with pytest.raises(ValueError, match="is_query and is_gallery must be given together"):
        ImageSet(pixels(2), torch.tensor([0, 1]), ("a", "b"), is_query=torch.tensor([True, True]))
    with pytest.raises(ValueError, match="sequences has 1 entries but labels has 2"):
        ImageSet(pixels(2), torch.tensor([0, 1]), ("a", "b"), sequences=RowGroups.from_names(["x"]))
    with pytest.raises(ValueError, match="face has 1 entries but labels has 2"):
        ImageSet(pixels(2), torch.tensor([0, 1]), ("a", "b"), attributes={"face": RowGroups(torch.tensor([0]), ("x",))})


def test_groups_have_names() -> None:
    with pytest.raises(ValueError, match="go from -1 to 1, but there are 1 names"):
        RowGroups(torch.tensor([-1, 1]), ("a",))
