"""How each corruption changes one image, and its strength in the five severities."""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from proxemic.extras import optional_dependency

ImageTensor = Float32[Tensor, "channels height width"]

TILES = 6


def _gaussian_noise(image: ImageTensor, level: float, draw: np.random.Generator) -> ImageTensor:
    return image + level * torch.from_numpy(draw.standard_normal(image.shape[1:], dtype=np.float32))


def _uniform_noise(image: ImageTensor, level: float, draw: np.random.Generator) -> ImageTensor:
    return image + level * (2 * _uniform(image, draw) - 1)


def _salt_and_pepper(image: ImageTensor, level: float, draw: np.random.Generator) -> ImageTensor:
    place = _uniform(image, draw)
    return image.masked_fill(place < level / 2, 0).masked_fill(place >= 1 - level / 2, 1)


def _dropout(image: ImageTensor, level: float, draw: np.random.Generator) -> ImageTensor:
    return image.masked_fill(_uniform(image, draw) < level, 0)


def _uniform(image: ImageTensor, draw: np.random.Generator) -> Float32[Tensor, "height width"]:
    return torch.from_numpy(draw.random(image.shape[1:], dtype=np.float32))


def _cutout(image: ImageTensor, level: float, draw: np.random.Generator) -> ImageTensor:
    height, width = image.shape[1:]
    side = round(level * min(height, width))
    # The same draw at every severity: its place moves little as it grows.
    down, right = draw.random(2)
    top, left = int(down * (height - side + 1)), int(right * (width - side + 1))
    cut = image.clone()
    cut[:, top : top + side, left : left + side] = 0.5
    return cut


def _shear(image: ImageTensor, level: float, draw: np.random.Generator) -> ImageTensor:
    with optional_dependency("analyze"):
        from kornia.geometry.transform import get_shear_matrix2d, warp_affine
    height, width = image.shape[1:]
    center = torch.tensor([[(width - 1) / 2, (height - 1) / 2]])
    matrix = get_shear_matrix2d(center, torch.tensor([_sign(draw) * math.radians(level)]))
    return warp_affine(image.unsqueeze(0), matrix[:, :2], (height, width), align_corners=True).squeeze(0)


def _jigsaw(image: ImageTensor, level: float, draw: np.random.Generator) -> ImageTensor:
    height, width = image.shape[1:]
    rows, columns = height // TILES, width // TILES
    top, left = height % TILES // 2, width % TILES // 2
    inside = (slice(None), slice(top, top + TILES * rows), slice(left, left + TILES * columns))
    tiles = image[inside].unflatten(1, (TILES, rows)).unflatten(3, (TILES, columns)).transpose(2, 3).flatten(1, 2)
    order = np.arange(TILES * TILES)
    places = order.reshape(TILES, TILES)
    beside, below = (places[:, :-1], places[:, 1:]), (places[:-1], places[1:])
    neighbours = np.concatenate([np.stack(pair, -1).reshape(-1, 2) for pair in (beside, below)])
    for pair in neighbours[draw.integers(len(neighbours), size=round(level))]:
        order[pair] = order[pair[::-1]]
    moved = tiles[:, torch.from_numpy(order)].unflatten(1, (TILES, TILES)).transpose(2, 3)
    puzzle = image.clone()
    puzzle[inside] = moved.flatten(3, 4).flatten(1, 2)
    return puzzle


def _hue_and_saturation(image: ImageTensor, level: float, draw: np.random.Generator) -> ImageTensor:
    if len(image) == 1:
        raise ValueError("image is grey, but hue-and-saturation changes colours: give 3 channels, or leave it out.")
    with optional_dependency("analyze"):
        from kornia.color import hsv_to_rgb, rgb_to_hsv
    hue, saturation, value = rgb_to_hsv(image)
    turned = (hue + _sign(draw) * level * 2 * math.pi) % (2 * math.pi)
    return hsv_to_rgb(torch.stack([turned, (saturation + _sign(draw) * level).clamp(0, 1), value]))


def _defocus_blur(image: ImageTensor, level: float, draw: np.random.Generator) -> ImageTensor:
    with optional_dependency("analyze"):
        from kornia.filters import filter2d
    disk = _disk(level / 224 * min(image.shape[1:]))
    return filter2d(image.unsqueeze(0), disk.unsqueeze(0), "reflect").squeeze(0)


@lru_cache
def _disk(radius: float) -> Float32[Tensor, "side side"]:
    """The mean over a disk, of `radius` pixels, of an image that is interpolated bilinearly: also below one pixel."""
    line = radius * (2 * (torch.arange(256, dtype=torch.float64) + 0.5) / 256 - 1)
    x, y = torch.cartesian_prod(line, line)[(line.square().unsqueeze(1) + line.square() <= radius**2).flatten()].T
    reach = math.ceil(radius)
    pixels = torch.arange(-reach, reach + 1)
    across, down = ((1 - (points.unsqueeze(1) - pixels).abs()).clamp(min=0) for points in (x, y))
    return (down.T @ across / len(x)).to(torch.float32)


def _sign(draw: np.random.Generator) -> int:
    return 1 if draw.random() < 0.5 else -1


KINDS: dict[str, tuple[Callable[[ImageTensor, float, np.random.Generator], ImageTensor], tuple[float, ...]]] = {
    "gaussian-noise": (_gaussian_noise, (0.02, 0.04, 0.06, 0.10, 0.15)),
    "uniform-noise": (_uniform_noise, (0.03, 0.05, 0.08, 0.13, 0.20)),
    "salt-and-pepper": (_salt_and_pepper, (0.01, 0.02, 0.03, 0.06, 0.10)),
    "dropout": (_dropout, (0.01, 0.03, 0.05, 0.10, 0.20)),
    "cutout": (_cutout, (0.10, 0.15, 0.20, 0.30, 0.40)),
    "shear": (_shear, (10.0, 20.0, 30.0, 40.0, 50.0)),
    "jigsaw": (_jigsaw, (4.0, 9.0, 18.0, 36.0, 72.0)),
    "hue-and-saturation": (_hue_and_saturation, (0.05, 0.10, 0.16, 0.25, 0.40)),
    "defocus-blur": (_defocus_blur, (3.0, 4.0, 6.0, 8.0, 10.0)),
}
