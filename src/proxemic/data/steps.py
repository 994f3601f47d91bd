"""Steps of transforms of PIL images: those of torchvision, pixel by pixel and draw by draw, without its generality.

torchvision takes any input, or several, which costs a tenth of the time that a small photograph takes to load.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from proxemic.data.pixels.reading import cut_thin, resize_shorter

_RATIOS = (3 / 4, 4 / 3)
_LOG_RATIOS = torch.tensor(_RATIOS).log().tolist()


@dataclass(frozen=True)
class Steps:
    """One after the other."""

    steps: Sequence[Callable[[Any], Any]]

    def __call__(self, image: Any) -> Any:
        for step in self.steps:
            image = step(image)
        return image


@dataclass(frozen=True)
class Resize:
    """Resize to a shorter side, or to height and width; of a thin image (`cut_thin`), the middle."""

    size: int | tuple[int, ...]

    def __call__(self, image: Image.Image) -> Image.Image:
        image = cut_thin(image)
        if isinstance(self.size, int):
            return resize_shorter(image, self.size)
        return _resize(image, self.size)


@dataclass(frozen=True)
class CenterCrop:
    """The square in the middle of an image that is no smaller."""

    size: int

    def __call__(self, image: Image.Image) -> Image.Image:
        left, top = (round((side - self.size) / 2) for side in image.size)
        return image.crop((left, top, left + self.size, top + self.size))


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random part of the image, of an area within `scale` and sides that differ by up to 4/3, resized to a square."""

    size: int
    scale: tuple[float, float]

    def __call__(self, image: Image.Image) -> Image.Image:
        left, top, width, height = self._place(*image.size)
        return _resize(image.crop((left, top, left + width, top + height)), (self.size, self.size))

    def _place(self, width: int, height: int) -> tuple[int, int, int, int]:
        for _ in range(10):
            area = width * height * torch.empty(1).uniform_(*self.scale).item()
            ratio = torch.empty(1).uniform_(*_LOG_RATIOS).exp_().item()
            across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < across <= width and 0 < down <= height:
                top = int(torch.randint(height - down + 1, (1,)).item())
                return int(torch.randint(width - across + 1, (1,)).item()), top, across, down
        # None of them fits into a long image: its middle, as wide or as high as may be.
        across = min(width, round(height * _RATIOS[1]))
        down = min(height, round(width / _RATIOS[0]))
        return (width - across) // 2, (height - down) // 2, across, down


@dataclass(frozen=True)
class RandomHorizontalFlip:
    """The mirror image, with a probability."""

    probability: float

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(1) < self.probability else image


def _resize(image: Image.Image, size: Sequence[int]) -> Image.Image:
    height, width = size
    return image if image.size == (width, height) else image.resize((width, height), Image.Resampling.BILINEAR)
