"""From a PIL image to a normalised tensor, with or without augmentation: plain data that recipes spell out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

Transform = Callable[[Image.Image], Tensor]

_BILINEAR = v2.InterpolationMode.BILINEAR


@dataclass(frozen=True)
class Preprocessing:
    """What every image goes through: channels, size, range.

    `x = (image / 255 - mean) / std`, after the shorter side is resized to `resize` and the centre is cropped.

    Args:
        size: side of the square that the network sees, in pixels.
        resize: the shorter side before the centre crop, at least `size`; None squeezes the whole image to the square.
        channels: 1 for grey, 3 for RGB.
        mean: per channel, on the scale where white is 1.
        std: per channel, positive, on the same scale.

    Raises:
        ValueError: a value is out of its range.

    Example:
        >>> transform = Preprocessing(size=32, resize=40).evaluation()
        >>> transform(Image.new("L", (50, 80))).shape
        torch.Size([3, 32, 32])
    """

    size: int = 224
    resize: int | None = 256
    channels: Literal[1, 3] = 3
    mean: Sequence[float] = (0.485, 0.456, 0.406)
    std: Sequence[float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size is {self.size}, but it must be at least 1 pixel.")
        if self.resize is not None and self.resize < self.size:
            raise ValueError(f"resize is {self.resize}, but it must be null or at least size={self.size}.")
        if self.channels not in (1, 3):
            raise ValueError(f"channels is {self.channels}, but it must be 1 (grey) or 3 (RGB).")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.channels:
                raise ValueError(
                    f"{name} has {len(values)} values, but channels={self.channels} needs {self.channels}: "
                    f"give one {name} a channel."
                )
        if min(self.std) <= 0:
            raise ValueError(f"std is {self.std}, but every value must be above 0.")

    def evaluation(self) -> Transform:
        """Make the deterministic transform."""
        return v2.Compose([_ToChannels(self.channels), *_fit(self), _ToTensor(self, noise=0.0)])


@dataclass(frozen=True)
class Augmentation:
    """What training images go through besides; every field at its default does nothing.

    Args:
        random_resized_crop: smallest and largest part of the image's area to crop and resize to the square, in
            (0, 1]; None takes the crop that evaluation takes.
        horizontal_flip: probability of a mirror image.
        degrees: largest rotation either way, 0 to 180.
        translate: largest shift either way, as a part of the side, 0 to 1.
        scale: smallest and largest zoom factor; None for none.
        shear: largest horizontal shear either way, in degrees, 0 to below 90.
        noise: standard deviation of Gaussian noise on each pixel, on the scale where white is 1.

    Raises:
        ValueError: a value is out of its range.

    Example:
        >>> augmentation = Augmentation(random_resized_crop=(0.2, 1.0), horizontal_flip=0.5)
        >>> transform = augmentation.training(Preprocessing(size=32, resize=40))
        >>> transform(Image.new("RGB", (50, 80))).shape
        torch.Size([3, 32, 32])
    """

    random_resized_crop: tuple[float, float] | None = None
    horizontal_flip: float = 0.0
    degrees: float = 0.0
    translate: float = 0.0
    scale: tuple[float, float] | None = None
    shear: float = 0.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        crop = self.random_resized_crop
        if crop is not None and not 0 < crop[0] <= crop[1] <= 1:
            raise ValueError(
                f"random_resized_crop is {crop}, but it must be two ascending parts of the area in (0, 1]."
            )
        if self.scale is not None and not 0 < self.scale[0] <= self.scale[1]:
            raise ValueError(f"scale is {self.scale}, but it must be two ascending factors above 0.")
        for name, most in (("horizontal_flip", 1), ("degrees", 180), ("translate", 1)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name} is {getattr(self, name)}, but it must be from 0 to {most}.")
        if not 0 <= self.shear < 90:
            raise ValueError(f"shear is {self.shear}, but it must be at least 0 and below 90 degrees.")
        if not self.noise >= 0:
            raise ValueError(f"noise is {self.noise}, but it must be at least 0.")

    def training(self, preprocessing: Preprocessing) -> Transform:
        """Make the random transform; it draws from torch's generator alone."""
        steps: list[nn.Module] = [_ToChannels(preprocessing.channels)]
        if self.random_resized_crop is None:
            steps += _fit(preprocessing)
        else:
            steps.append(v2.RandomResizedCrop(preprocessing.size, self.random_resized_crop, interpolation=_BILINEAR))
        if self.horizontal_flip > 0:
            steps.append(v2.RandomHorizontalFlip(self.horizontal_flip))
        if self.degrees or self.translate or self.scale is not None or self.shear:
            # On the PIL side: at 32 by 32 an affine map of a tensor takes three times as long.
            shift = (self.translate, self.translate) if self.translate else None
            turn, shear = (-self.degrees, self.degrees), self.shear or None
            steps.append(v2.RandomAffine(turn, shift, self.scale, shear, interpolation=_BILINEAR))
        return v2.Compose([*steps, _ToTensor(preprocessing, self.noise)])


def _fit(preprocessing: Preprocessing) -> list[nn.Module]:
    if preprocessing.resize is None:
        return [v2.Resize((preprocessing.size, preprocessing.size), interpolation=_BILINEAR)]
    return [v2.Resize(preprocessing.resize, interpolation=_BILINEAR), v2.CenterCrop(preprocessing.size)]


class _ToChannels(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mode = "L" if channels == 1 else "RGB"

    def forward(self, image: Image.Image) -> Image.Image:
        return image if image.mode == self.mode else image.convert(self.mode)


class _ToTensor(nn.Module):
    """Scale, noise and normalise in one step: as three of torchvision's they cost more than everything else."""

    def __init__(self, preprocessing: Preprocessing, noise: float) -> None:
        super().__init__()
        self.noise = noise
        self.mean = torch.tensor(preprocessing.mean).view(-1, 1, 1)
        self.std = torch.tensor(preprocessing.std).view(-1, 1, 1)

    def forward(self, image: Image.Image) -> Tensor:
        pixels = functional.pil_to_tensor(image).to(torch.float32).div_(255)
        if self.noise > 0:
            pixels.add_(torch.randn_like(pixels), alpha=self.noise)
        return pixels.sub_(self.mean).div_(self.std)
