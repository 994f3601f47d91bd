"""The coloured frames in the plot of a gallery."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from proxemic.data import ArrayPixels, ImageSet
from proxemic.training.plots import draw_gallery

GREEN, RED, GREY = (0x1A, 0x96, 0x41), (0xD7, 0x19, 0x1C), (0x44, 0x44, 0x44)


def frames(path: Path, colour: tuple[int, int, int]) -> int:
    """Count the tiles with a frame of this colour, as the largest number of runs in a row of pixels."""
    with Image.open(path) as picture:
        same = (np.asarray(picture.convert("RGB")) == colour).all(-1)
    inner = np.convolve(same.sum(1) > 0, np.ones(30), "same") > 29  # rows of pixels well inside a tile
    return max((int((np.diff(row.astype(int)) == 1).sum()) for row in same[inner]), default=0)


def gallery(tmp_path: Path, labels: list[int], sequences: Sequence[str | None] = (None,) * 4) -> Path:
    # Two pairs: each image has its twin as nearest neighbour.
    embeddings = torch.tensor([[1.0, 0.0], [0.99, 0.01], [0.0, 1.0], [0.01, 0.99]])
    names = [f"class {label}" for label in labels]
    images = ImageSet.from_names(ArrayPixels(np.full((4, 40, 40), 255, dtype=np.uint8)), names)
    images = replace(images, rows=images.rows.with_texts(sequence=sequences))
    path = tmp_path / f"{labels}.png"
    draw_gallery(embeddings, images, path, neighbours=1)
    return path


def test_right_neighbours_are_framed_green_and_wrong_ones_red(tmp_path: Path) -> None:
    right = gallery(tmp_path, [0, 0, 1, 1])
    assert frames(right, GREEN) > 0
    assert frames(right, RED) == 0
    wrong = gallery(tmp_path, [0, 1, 0, 1])
    assert frames(wrong, GREEN) == 0
    assert frames(wrong, RED) > 0
    assert frames(wrong, GREY) > 0


def test_a_query_is_not_shown_its_sequence(tmp_path: Path) -> None:
    path = gallery(tmp_path, [0, 0, 1, 1], ["a", "a", "b", "b"])  # twins
    assert frames(path, GREEN) == 0
    assert frames(path, RED) > 0
    path = gallery(tmp_path, [0, 0, 1, 1], ["a"] * 4)
    assert frames(path, GREEN) == frames(path, RED) == 0


def test_a_gallery_of_one_image_is_not_drawn(tmp_path: Path) -> None:
    images = ImageSet.from_names(ArrayPixels(np.zeros((1, 40, 40), dtype=np.uint8)), ["a"])
    draw_gallery(torch.ones(1, 2), images, tmp_path / "gallery.png")
    assert not (tmp_path / "gallery.png").exists()


@pytest.mark.parametrize("name", ["two\nlines", "$x_1$", "日本語", "\udc80 of no encoding", ""])
def test_a_class_may_have_any_name(tmp_path: Path, name: str) -> None:
    images = ImageSet.from_names(ArrayPixels(np.zeros((2, 400, 1), dtype=np.uint8)), [name, name])
    draw_gallery(torch.eye(2), images, tmp_path / "gallery.png")
    assert frames(tmp_path / "gallery.png", GREEN) > 0
