r"""Nine corruptions of images, each in five severities, for measuring how robust embeddings are.

| corruption | severity sets | 1 | 2 | 3 | 4 | 5 |
|---|---|---|---|---|---|---|
| gaussian-noise | standard deviation, as a fraction of white | 0.02 | 0.04 | 0.06 | 0.10 | 0.15 |
| uniform-noise | largest change either way, as a fraction of white | 0.03 | 0.05 | 0.08 | 0.13 | 0.20 |
| salt-and-pepper | fraction of pixels set to white or black | 0.01 | 0.02 | 0.03 | 0.06 | 0.10 |
| dropout | fraction of pixels set to black | 0.01 | 0.03 | 0.05 | 0.10 | 0.20 |
| cutout | side of a mid-grey square, as a fraction of the shorter side | 0.10 | 0.15 | 0.20 | 0.30 | 0.40 |
| shear | horizontal shear to the left or right, degrees | 10 | 20 | 30 | 40 | 50 |
| jigsaw | swaps of neighbours among 6 × 6 tiles | 4 | 9 | 18 | 36 | 72 |
| hue-and-saturation | change of both, a fraction of a turn and of full | 0.05 | 0.10 | 0.16 | 0.25 | 0.40 |
| defocus-blur | radius of the disk, in 224ths of the shorter side | 3 | 4 | 6 | 8 | 10 |

The warping paper used imgaug with mostly its defaults, which draw the strength for each image. Severity 3 is the
strongest value that imgaug draws by default. For jigsaw (imgaug: 3 to 10 tiles per side) and for defocus blur (the same
five severities), severity 3 is the middle value. As in imgaug, noise, salt and pepper, and dropout change all channels
of a pixel alike. The random draws do not depend on the severity: a dropped pixel is also dropped at the next severity.
"""

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import torch
from jaxtyping import Float32
from PIL import Image
from torch import Tensor

from proxemic.data.pixels import Indices, Pixels
from proxemic.data.reading import ImageInput
from proxemic.data.transforms import Preprocessing
from proxemic.extras import optional_dependency
from proxemic.ranges import check_fields

ImageTensor = Float32[Tensor, "channels height width"]

_TILES = 6


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
    # The same random draw at every severity, so that the place changes little with it.
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
    rows, columns = height // _TILES, width // _TILES
    top, left = height % _TILES // 2, width % _TILES // 2
    inside = (slice(None), slice(top, top + _TILES * rows), slice(left, left + _TILES * columns))
    tiles = image[inside].unflatten(1, (_TILES, rows)).unflatten(3, (_TILES, columns)).transpose(2, 3).flatten(1, 2)
    order = np.arange(_TILES * _TILES)
    places = order.reshape(_TILES, _TILES)
    beside, below = (places[:, :-1], places[:, 1:]), (places[:-1], places[1:])
    neighbours = np.concatenate([np.stack(pair, -1).reshape(-1, 2) for pair in (beside, below)])
    for pair in neighbours[draw.integers(len(neighbours), size=round(level))]:
        order[pair] = order[pair[::-1]]
    moved = tiles[:, torch.from_numpy(order)].unflatten(1, (_TILES, _TILES)).transpose(2, 3)
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
    """Return a kernel that averages a bilinearly interpolated image over a disk; the radius may be below one pixel."""
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

CORRUPTIONS = tuple(KINDS)
SEVERITIES = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Corruption:
    """One of `CORRUPTIONS` with a severity; a call with an image returns the corrupted image.

    The random draws depend only on the name, the seed and the index of the image; no global generator is used.

    Args:
        name: One of `CORRUPTIONS`.
        severity: 1 (mild) to 5 (strong), as listed in the table of `proxemic.data.corruptions`.
        seed: Seed of the random draws, 0 or above.

    Raises:
        ValueError: If an argument is out of its range; on a call, if the image cannot be corrupted in this way.

    Source: Realigned Softmax Warping, section IV-F, Table IV.

    >>> dropout = Corruption("dropout", severity=5)
    >>> corrupted = dropout(torch.ones(3, 32, 32), 0)
    >>> f"{1 - corrupted.mean():.2f}", torch.equal(corrupted, dropout(torch.ones(3, 32, 32), 0))
    ('0.19', True)
    """

    name: str
    severity: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.name not in CORRUPTIONS:
            raise ValueError(f"name is {self.name!r}, but the corruptions are: {', '.join(CORRUPTIONS)}.")
        check_fields(self, severity="[1, 5]", seed="[0, inf)")

    def __call__(self, image: ImageTensor, index: int) -> ImageTensor:
        """Return a corrupted copy of an image with values in [0, 1], of 1 or 3 channels and at least 8 by 8 pixels.

        The same `index`, 0 or above, gives the same draws. Shear fills empty places with black. If a side is not a
        multiple of 6, jigsaw leaves the pixels at the edge unchanged. As in imgaug, hue and saturation give grey pixels
        a hue (red, turned) if saturation is added.
        """
        channels, height, width = image.shape
        if channels not in (1, 3) or min(height, width) < 8:
            raise ValueError(
                f"image has shape {list(image.shape)}, but must have 1 or 3 channels of at least 8 by 8 pixels."
            )
        if not (image.min() >= 0 and image.max() <= 1):
            raise ValueError("image has values outside of [0, 1], or NaN: scale white to 1.")
        corrupt, levels = KINDS[self.name]
        draw = np.random.default_rng([zlib.crc32(self.name.encode()), self.seed, index])
        return corrupt(image, levels[self.severity - 1], draw).clamp(0, 1)


@dataclass(frozen=True, eq=False)
class CorruptedPixels(Pixels):
    """Corrupted images as the network sees them: squares of `preprocessing.size`, computed on access.

    Embed them with `dataclasses.replace(preprocessing, resize=None)`, which does not change their pixels.

    Args:
        pixels: The images.
        corruption: The corruption of every image.
        preprocessing: Size, crop and channels, applied before the corruption.
        numbers: The index that the corruption gets for each image; None counts from 0.

    >>> from proxemic.data import ArrayPixels
    >>> pixels = ArrayPixels(np.full((2, 50, 40), 255, dtype=np.uint8))
    >>> noisy = CorruptedPixels(pixels, Corruption("gaussian-noise", 3), Preprocessing(size=32, resize=32))
    >>> noisy[1].mode, noisy[1].size
    ('RGB', (32, 32))
    """

    pixels: Pixels
    corruption: Corruption
    preprocessing: Preprocessing
    numbers: Sequence[int] | None = None

    @cached_property
    def _fit(self) -> Callable[[ImageInput], Image.Image]:
        return self.preprocessing.fit()

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Image.Image:
        from torchvision.transforms.v2 import functional

        whole = self.pixels.load(index, self.preprocessing.reduced_side, self.preprocessing.bits)
        image = functional.pil_to_tensor(self._fit(whole)).to(torch.float32) / 255
        corrupted = self.corruption(image, self._number(index))
        return functional.to_pil_image((255 * corrupted).round().to(torch.uint8))

    def select(self, indices: Indices) -> "CorruptedPixels":
        return replace(self, pixels=self.pixels.select(indices), numbers=[self._number(index) for index in indices])

    def _number(self, index: int) -> int:
        return (range(len(self)) if self.numbers is None else self.numbers)[index]
