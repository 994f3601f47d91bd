"""A corruption with its severity, and pixel stores of corrupted images."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.v2 import functional

from proxemic.data.corruptions.kinds import KINDS, ImageTensor
from proxemic.data.pixels.base import Pixels
from proxemic.data.transforms import Preprocessing

CORRUPTIONS = tuple(KINDS)
SEVERITIES = (1, 2, 3, 4, 5)
SMALLEST = 8


@dataclass(frozen=True)
class Corruption:
    """One of `CORRUPTIONS` with its severity; called with an image, it gives the corrupted one.

    What is drawn depends on the name, the seed and the number of the image alone; no generator is touched.

    Args:
        name: One of `CORRUPTIONS`.
        severity: 1 (mild) to 5 (strong); the table of `proxemic.data.corruptions` says what it sets.
        seed: Of what is drawn, 0 or above.

    Raises:
        ValueError: If an argument is out of its range; on a call, where the image cannot be corrupted so.

    Source:
        Realigned Softmax Warping, section IV-F, Table IV.

    Example:
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
        if self.severity not in SEVERITIES:
            raise ValueError(f"severity is {self.severity}, but must be a whole number from 1 (mild) to 5 (strong).")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}, but must be 0 or above.")

    def __call__(self, image: ImageTensor, index: int) -> ImageTensor:
        """Corrupt an image.

        Args:
            image: 1 (grey) or 3 (red, green, blue) channels in [0, 1], at least 8 by 8 pixels; it is left as it is.
            index: Number of the image, 0 or above: the same number draws the same.

        Returns:
            As many pixels in [0, 1]. Shear shows black where there was no image; jigsaw leaves the edge alone, half
            of what is left over when a side is divided by 6, and hue and saturation follow imgaug in giving grey
            pixels a hue, red turned, where saturation is added.
        """
        channels, height, width = image.shape
        if channels not in (1, 3) or min(height, width) < SMALLEST:
            raise ValueError(
                f"image has shape {list(image.shape)}, but must have 1 or 3 channels of at least 8 by 8 pixels."
            )
        if not (image.min() >= 0 and image.max() <= 1):
            raise ValueError("image has values outside of [0, 1], or NaN: scale white to 1.")
        corrupt, levels = KINDS[self.name]
        draw = np.random.default_rng([zlib.crc32(self.name.encode()), self.seed, index])
        return corrupt(image, levels[self.severity - 1], draw).clamp(0, 1)


class CorruptedPixels(Pixels):
    """Images as the network would see them, but corrupted: squares of `preprocessing.size`, made on access.

    Embed them with `dataclasses.replace(preprocessing, resize=None)`, which leaves their pixels alone.

    Args:
        pixels: The images.
        corruption: What happens to each.
        preprocessing: Its size, crop and channels come first, so that noise is in pixels that the network sees.
        numbers: By which each is corrupted; None counts from 0. `select` keeps them.

    Example:
        >>> from proxemic.data import ArrayPixels
        >>> pixels = ArrayPixels(np.full((2, 50, 40), 255, dtype=np.uint8))
        >>> noisy = CorruptedPixels(pixels, Corruption("gaussian-noise", 3), Preprocessing(size=32, resize=32))
        >>> noisy[1].mode, noisy[1].size
        ('RGB', (32, 32))
    """

    def __init__(
        self,
        pixels: Pixels,
        corruption: Corruption,
        preprocessing: Preprocessing,
        numbers: Sequence[int] | None = None,
    ) -> None:
        self.pixels, self.corruption, self.preprocessing = pixels, corruption, preprocessing
        self.numbers = range(len(pixels)) if numbers is None else numbers
        self._fit = preprocessing.fit()

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Image.Image:
        image = functional.pil_to_tensor(self._fit(self.pixels[index])).to(torch.float32) / 255
        corrupted = self.corruption(image, self.numbers[index])
        return functional.to_pil_image((255 * corrupted).round().to(torch.uint8))

    def select(self, indices: Sequence[int]) -> "CorruptedPixels":
        """Keep the images at `indices`, in that order, each corrupted as before."""
        numbers = [self.numbers[index] for index in indices]
        return CorruptedPixels(self.pixels.select(indices), self.corruption, self.preprocessing, numbers)
