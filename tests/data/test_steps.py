"""The steps against torchvision's: the same pixels, and the same draws."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from proxemic.data.steps import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize, Steps

SIZES = [(100, 90), (90, 100), (64, 64), (333, 215), (400, 41), (41, 300), (65, 64), (1, 40)]
IMAGES = [
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))
    for width, height in SIZES
]


@pytest.mark.parametrize("size", [64, 41, 1, (50, 70), (64, 64)])
def test_resizing(size: int | tuple[int, int]) -> None:
    theirs = v2.Resize(size, v2.InterpolationMode.BILINEAR)
    for image in IMAGES[:-1]:
        assert Resize(size)(image) == theirs(image)


@pytest.mark.parametrize("across", [True, False])
def test_of_a_thin_image_only_the_middle_is_resized(across: bool) -> None:
    """Else a file of some kilobytes would become gigabytes."""
    pixels = np.zeros((2, 20_000), np.uint8)
    pixels[:, 9_900:10_100] = 255
    image = Image.fromarray(pixels if across else pixels.T)
    assert Resize(64)(image) == Image.new("L", (6400, 64) if across else (64, 6400), 255)
    assert Resize((30, 40))(image) == Image.new("L", (40, 30), 255)


def test_what_the_centre_of_a_thin_image_shows_stays_the_same() -> None:
    image = Image.effect_noise((2020, 10), 60)
    ours, theirs = (
        np.asarray(CenterCrop(64)(resize(image)), np.float64)
        for resize in (Resize(72), v2.Resize(72, v2.InterpolationMode.BILINEAR))
    )
    assert np.abs(ours - theirs).mean() < 1


@pytest.mark.parametrize("size", [41, 40, 7])
def test_the_middle(size: int) -> None:
    for image in IMAGES[:-1]:
        assert CenterCrop(size)(image) == v2.CenterCrop(size)(image)


@pytest.mark.parametrize("scale", [(0.01, 0.1), (0.16, 1.0), (1.0, 1.0)])
def test_random_parts_and_mirror_images(scale: tuple[float, float]) -> None:
    ours = Steps([RandomResizedCrop(32, scale), RandomHorizontalFlip(0.3)])
    theirs = v2.Compose(
        [v2.RandomResizedCrop(32, scale, interpolation=v2.InterpolationMode.BILINEAR), v2.RandomHorizontalFlip(0.3)]
    )
    for image in IMAGES:
        for seed in range(8):
            torch.manual_seed(seed)
            mine, after = ours(image), torch.rand(1)
            torch.manual_seed(seed)
            assert mine == theirs(image)
            assert after == torch.rand(1)  # as many draws
