"""Transforms from an image to a normalised tensor, with or without augmentation, described by plain data."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import floor
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32
from PIL import Image

from proxemic.data.reading import ImageInput, cut_thin, read_image, resize_shorter
from proxemic.extras import optional_dependency
from proxemic.files import reading
from proxemic.lazy import Tensor, torch
from proxemic.ranges import check_fields

Transform = Callable[[ImageInput], Tensor]
Interpolation = Literal[
    "nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"
]  # in the order of Pillow's numbers
CustomTransform = Callable[..., Any]

_SMALL = 2**14  # values of an image; larger images are faster one by one, as they stay in the processor's cache


@dataclass(frozen=True)
class Preprocessing:
    """Preparation of every image: channels, size, range.

    `x = (image · white / 255 - mean) / std`, after the image is resized to `resize` and the centre is cropped.
    Networks converted from Caffe, such as BN-Inception, need `Preprocessing(channel_order="bgr", white=255, mean=(104,
    117, 128), std=(1, 1, 1))`.

    Args:
        size: Side of the square that the network sees, in pixels.
        resize: The shorter side before the centre crop, at least `size`; or height and width, as [256, 256], to which
            the whole image is squeezed before the crop; `auto` is a shorter side of 8/7 of `size`, rounded down to a
            multiple of 8, as 256 for 224; None squeezes the whole image to the square of `size`.
        channels: 1 for grey, 3 for colour.
        mean: Per channel, in the order of `channel_order`, on the scale where white is `white`.
        std: Per channel, positive, in the same order and on the same scale.
        channel_order: Order of the colours; `bgr` needs 3 channels.
        white: The value of white, 1 or 255; black is 0.
        reduce: First shrink larger images, also in training, to a shorter side of twice the resized one
            (`reduced_side`). JPEG files are then decoded at 1/2, 1/4 or 1/8 of their size if the result is large
            enough, which is much faster, and the cache of decoded images (`CacheConfig`) changes no pixel. Tensors of
            large images differ slightly from those that are resized in one step.
        interpolation: Interpolation of the resizing to `resize`, by Pillow's name; pretrained networks are often
            trained with `bicubic`.
        crop_rounding: The pixel at which the centre crop begins if that is between two pixels: the `nearest`, half to
            even, as torchvision and timm round, or `down`, as transformers rounds.
        bits: How many of the 16 or 32 bits of a pixel are used, 1 to 32, such as 12 for microscopes and X-ray whose
            white is 4,095. None takes the range that a file states, else 16 bits; files that state no range and stay
            below 4,096 are refused. Images of 8 bits are unchanged.

    Raises:
        ValueError: If a value is out of its range.

    >>> transform = Preprocessing(size=32, resize=40).evaluation()
    >>> transform(Image.new("L", (50, 80))).shape
    torch.Size([3, 32, 32])
    """

    size: int = 224
    resize: int | Sequence[int] | Literal["auto"] | None = "auto"
    channels: Literal[1, 3] = 3
    mean: Sequence[float] = (0.485, 0.456, 0.406)
    std: Sequence[float] = (0.229, 0.224, 0.225)
    channel_order: Literal["rgb", "bgr"] = "rgb"
    white: Literal[1, 255] = 1
    reduce: bool = False
    interpolation: Interpolation = "bilinear"
    crop_rounding: Literal["nearest", "down"] = "nearest"
    bits: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, size="[1, inf)", bits="[1, 32]")
        sides = [self.resize] * 2 if isinstance(self.resize, int | str | None) else self.resize
        whole = len(sides) == 2 and all(isinstance(side, int) and side >= self.size for side in sides)
        if self.resize not in (None, "auto") and not whole:
            raise ValueError(
                f"resize is {self.resize!r}, but it must be auto, null, a shorter side, or height and width as "
                f"[256, 256], of at least size={self.size} pixels."
            )
        if self.channel_order == "bgr" and self.channels != 3:
            raise ValueError(f"channel_order is bgr, but channels={self.channels} has no colours: set channels to 3.")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.channels:
                raise ValueError(
                    f"{name} has {len(values)} values, but channels={self.channels} needs {self.channels}: "
                    f"give one {name} per channel."
                )
        if min(self.std) <= 0:
            raise ValueError(f"std is {self.std}, but every value must be above 0.")

    @classmethod
    def read(cls, content: Any, file: Path) -> "Preprocessing":
        """Make a preprocessing of the plain data in a JSON file; `ValueError` if they do not describe one."""
        with reading(file, "JSON"):
            made = cls(**content)
            made.evaluation()
        return made

    @property
    def resized(self) -> int | tuple[int, ...] | None:
        """`resize` in pixels: the shorter side, or height and width; None without a crop."""
        if isinstance(self.resize, str):
            return max(self.size, self.size * 8 // 7 // 8 * 8)
        return tuple(self.resize) if isinstance(self.resize, Sequence) else self.resize

    @property
    def shorter_side(self) -> int | None:
        """The shorter side of the resized image; None if the whole image is squeezed to the square of `size`."""
        return min(self.resized) if isinstance(self.resized, tuple) else self.resized

    @property
    def reduced_side(self) -> int | None:
        """The shorter side to which `reduce` shrinks larger images, in pixels; None without `reduce`."""
        if not self.reduce:
            return None
        return 2 * (max(self.resized) if isinstance(self.resized, tuple) else self.resized or self.size)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data, with `resize` in pixels, for `Preprocessing(**data)`."""
        return asdict(self) | {"resize": self.resized}

    def fit(self) -> Callable[[ImageInput], Image.Image]:
        """Make the first half of `evaluation`: from an image to the square of pixels that the network sees."""
        return Steps([_ToChannels(self), *_fit(self)])

    def evaluation(self) -> "Steps":
        """Make the deterministic transform; it takes any input of `read_image`."""
        return Steps([*self.arrays().steps, _as_tensor])

    def arrays(self) -> "Steps":
        """Make the same transform as `evaluation` without torch: its tensors share the memory of these arrays."""
        return Steps([_ToChannels(self), *_fit(self), _Normalize(self)])


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of training images; the defaults do nothing.

    The steps happen in this order: `before_crop`; the crop, as large as the network sees; the mirror image;
    rotation, shift, zoom and shear in one; `rand_augment` or `trivial_augment`; brightness, contrast, saturation and
    hue, in random order; grey; `after_crop`; noise and the normalisation of `Preprocessing`; `erase`; `on_tensor`.

    Args:
        random_resized_crop: Smallest and largest fraction of the image's area to crop and resize to the square, in
            (0, 1]; its sides differ by a factor of up to 4/3. None uses the crop of evaluation.
        size: Side of that square in pixels; None uses `Preprocessing.size`. A random crop shows objects larger than the
            crop of evaluation does; training at 128 pixels for evaluation at 160 compensates this, and is faster
            (Touvron et al., "Fixing the train-test resolution discrepancy", 2019).
        random_crop: Move the crop of evaluation to a random position; `Preprocessing.resize` leaves the room for it.
        horizontal_flip: Probability of a mirror image.
        degrees: Largest rotation either way, 0 to 180.
        translate: Largest shift either way, as a fraction of the side, 0 to 1.
        scale: Smallest and largest zoom factor; None does not zoom.
        shear: Largest horizontal shear either way, in degrees, 0 to below 90.
        noise: Standard deviation of Gaussian noise on each pixel, as a fraction of white.
        rand_augment: Number of operations and their magnitude, 0 to 30, of RandAugment (Cubuk et al., 2020), as [2, 9].
        trivial_augment: One random operation of random strength (TrivialAugment, Müller and Hutter, 2021).
        brightness: Largest change either way, as a fraction, 0 or more: 0.4 draws a factor from 0.6 to 1.4.
        contrast: The same for the contrast.
        saturation: The same for the saturation.
        hue: Largest turn either way, as a fraction of the circle of hues, 0 to 0.5.
        grey: Probability of an image without colour.
        erase: Probability that a random rectangle, of 2 to 33 % of the area, is set to the mean colour.
        before_crop: Functions or modules of your own, or of `torchvision.transforms.v2`, from PIL image to PIL image,
            for the whole image, grey or RGB according to `Preprocessing.channels`; they must draw random numbers only
            from torch's generator.
        after_crop: The same for the square, which must keep its size.
        on_tensor: The same for the normalised tensor `[channels, size, size]`, which must keep its shape.

    Raises:
        ValueError: If a value is out of its range, or two fields exclude each other.

    >>> augmentation = Augmentation(random_resized_crop=(0.2, 1.0), horizontal_flip=0.5)
    >>> transform = augmentation.training(Preprocessing(size=32, resize=40))
    >>> transform(Image.new("RGB", (50, 80))).shape
    torch.Size([3, 32, 32])
    """

    random_resized_crop: tuple[float, float] | None = None
    size: int | None = None
    random_crop: bool = False
    horizontal_flip: float = 0.0
    degrees: float = 0.0
    translate: float = 0.0
    scale: tuple[float, float] | None = None
    shear: float = 0.0
    noise: float = 0.0
    rand_augment: tuple[int, int] | None = None
    trivial_augment: bool = False
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    grey: float = 0.0
    erase: float = 0.0
    before_crop: list[CustomTransform] | None = None
    after_crop: list[CustomTransform] | None = None
    on_tensor: list[CustomTransform] | None = None

    def __post_init__(self) -> None:
        crop = self.random_resized_crop
        if crop is not None and not 0 < crop[0] <= crop[1] <= 1:
            raise ValueError(
                f"random_resized_crop is {crop}, but it must be two ascending fractions of the area in (0, 1]."
            )
        if self.size is not None and (self.size < 1 or crop is None):
            raise ValueError(
                f"size is {self.size}, but it must be at least 1 pixel, and belongs to random_resized_crop: set both, "
                "or leave size null for the side that evaluation takes."
            )
        if crop is not None and self.random_crop:
            raise ValueError("random_resized_crop and random_crop are both set, but images are cropped once: drop one.")
        if self.scale is not None and not 0 < self.scale[0] <= self.scale[1]:
            raise ValueError(f"scale is {self.scale}, but it must be two ascending factors above 0.")
        shares = dict.fromkeys(("horizontal_flip", "translate", "grey", "erase"), "[0, 1]")
        sizes = dict.fromkeys(("noise", "brightness", "contrast", "saturation"), "[0, inf)")
        check_fields(self, degrees="[0, 180]", shear="[0, 90)", hue="[0, 0.5]", **shares, **sizes)
        if self.rand_augment is not None and not (self.rand_augment[0] >= 1 and 0 <= self.rand_augment[1] <= 30):
            raise ValueError(
                f"rand_augment is {self.rand_augment}, but it must be a number of operations from 1 and a magnitude "
                "from 0 to 30, as [2, 9]."
            )
        if self.rand_augment is not None and self.trivial_augment:
            raise ValueError("rand_augment and trivial_augment are both set, but they exclude each other: drop one.")

    def training(self, preprocessing: Preprocessing) -> "Steps":
        """Make the random transform; it draws only from torch's generator.

        Raises:
            ValueError: If `random_crop` is set, but preprocessing squeezes the whole image to the square.
        """
        if self.random_crop and preprocessing.resize is None:
            raise ValueError("random_crop is set, but resize is null: give the shorter side before the crop, as 256.")
        with optional_dependency("train"):  # not imported for evaluation, as that takes seconds
            from torchvision.transforms import v2
        bilinear = v2.InterpolationMode.BILINEAR
        steps: list[Callable[..., Any]] = [_ToChannels(preprocessing), *(self.before_crop or [])]
        if self.random_resized_crop is not None:
            size = self.size or preprocessing.size
            steps.append(v2.RandomResizedCrop(size, self.random_resized_crop, interpolation=bilinear))
        elif self.random_crop:
            steps += [_fit(preprocessing)[0], v2.RandomCrop(preprocessing.size)]
        else:
            steps += _fit(preprocessing)
        if self.horizontal_flip > 0:
            steps.append(v2.RandomHorizontalFlip(self.horizontal_flip))
        if self.degrees or self.translate or self.scale is not None or self.shear:
            steps.append(RandomAffine(self.degrees, self.translate, self.scale, self.shear))
        if self.rand_augment is not None:
            steps.append(v2.RandAugment(*self.rand_augment, interpolation=bilinear))
        if self.trivial_augment:
            steps.append(v2.TrivialAugmentWide(interpolation=bilinear))
        if self.brightness or self.contrast or self.saturation or self.hue:
            steps.append(v2.ColorJitter(self.brightness, self.contrast, self.saturation, self.hue))
        if self.grey > 0:
            steps.append(v2.RandomGrayscale(self.grey))
        steps += [*(self.after_crop or []), _Normalize(preprocessing, self.noise), _as_tensor]
        if self.erase > 0:
            steps.append(v2.RandomErasing(self.erase))
        return Steps([*steps, *(self.on_tensor or [])])


def _fit(preprocessing: Preprocessing) -> list[Callable[[Any], Any]]:
    size, method = preprocessing.size, Image.Resampling[preprocessing.interpolation.upper()]
    if preprocessing.resized is None:
        return [Resize((size, size), method)]
    return [Resize(preprocessing.resized, method), CenterCrop(size, preprocessing.crop_rounding)]


class _ToChannels:
    """Read any input of `read_image`, reduce it, and convert it to grey or RGB."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.mode = "L" if preprocessing.channels == 1 else "RGB"
        self.side, self.bits = preprocessing.reduced_side, preprocessing.bits

    def __call__(self, image: ImageInput) -> Image.Image:
        image = read_image(image, self.side, self.bits)
        return image if image.mode == self.mode else image.convert(self.mode)


class _Normalize:
    """Scale, add noise and normalise in one step; torchvision's three steps cost more than all others together."""

    def __init__(self, preprocessing: Preprocessing, noise: float = 0.0) -> None:
        self.is_bgr, self.white, self.noise = preprocessing.channel_order == "bgr", preprocessing.white, noise
        self.mean, self.std = (
            np.array(values, np.float32).reshape(-1, 1, 1) for values in (preprocessing.mean, preprocessing.std)
        )

    def __call__(self, image: Image.Image) -> Float32[np.ndarray, "channels height width"]:
        return self.scale(*self.draw(image))

    def draw(self, image: Image.Image) -> tuple[np.ndarray, Tensor | None]:
        """Return the pixels of an image, and its noise if there is any."""
        pixels = np.asarray(image).reshape(image.height, image.width, -1).transpose(2, 0, 1)
        if self.is_bgr:
            pixels = pixels[::-1]
        if self.noise == 0:
            return pixels, None
        # In the order of interleaved channels.
        return pixels, torch.empty(image.height, image.width, len(pixels)).permute(2, 0, 1).normal_()

    def scale(self, pixels: np.ndarray, noise: Tensor | None) -> Float32[np.ndarray, "*images channels height width"]:
        """Normalise the pixels of one or several images."""
        # Contiguous channels: the next steps are slow on interleaved ones.
        values = pixels.astype(np.float32, order="C")
        if self.white != 255:
            values /= np.float32(255)
        if noise is not None:
            torch.from_numpy(values).add_(noise, alpha=self.noise * self.white)
        values -= self.mean
        values /= self.std
        return values


def _as_tensor(values: Float32[np.ndarray, "*images channels height width"]) -> Tensor:
    return torch.from_numpy(values)


@dataclass(frozen=True)
class RandomAffine:
    """Rotate, shift, zoom and shear a PIL image, with the random numbers and pixels of torchvision's `RandomAffine`.

    At 32 by 32 pixels, torchvision's takes 1.7 times as long. A map of a batch of tensors would give other pixels.
    """

    degrees: float
    translate: float
    zoom: tuple[float, float] | None
    shear: float

    def __call__(self, image: Image.Image) -> Image.Image:
        width, height = image.size
        ranges = [(-self.degrees, self.degrees)]
        if self.translate:
            ranges += [(-self.translate * side, self.translate * side) for side in image.size]
        if self.zoom is not None:
            ranges.append(self.zoom)
        if self.shear:
            ranges.append((-self.shear, self.shear))
        drawn = iter(_uniform(ranges))
        turn = math.radians(next(drawn))
        right, down = (round(next(drawn)), round(next(drawn))) if self.translate else (0, 0)
        zoom = 1.0 if self.zoom is None else next(drawn)
        skew = math.tan(math.radians(next(drawn))) if self.shear else 0.0
        # Pillow takes the inverse map, from the pixels of the result to those of the image.
        cos, sin, x, y = math.cos(turn), math.sin(turn), width * 0.5, height * 0.5
        a, b, c, d = (-sin * skew + cos) / zoom, (cos * skew + sin) / zoom, -sin / zoom, cos / zoom
        e, f = a * (-x - right) + b * (-y - down) + x, c * (-x - right) + d * (-y - down) + y
        return image.transform(
            image.size, Image.Transform.AFFINE, (a, b, e, c, d, f), Image.Resampling.BILINEAR, fillcolor=0
        )


def _uniform(ranges: Sequence[tuple[float, float]]) -> list[float]:
    """Draw a number from each range, as `torch.empty(1).uniform_` would one after the other, in half of the time."""
    drawn = torch.rand(len(ranges)).tolist()
    ends = np.array(ranges, np.float32)
    return (drawn * (ends[:, 1] - ends[:, 0]).astype(float) + ends[:, 0]).astype(np.float32).tolist()


# The steps of evaluation are torchvision's, pixel by pixel, for PIL images alone: importing those takes seconds.


@dataclass(frozen=True)
class Steps:
    """Apply steps one after the other."""

    steps: Sequence[Callable[[Any], Any]]

    def __call__(self, image: Any) -> Any:
        for step in self.steps:
            image = step(image)
        return image

    def batch(self, images: Iterable[Any]) -> list[Tensor]:
        """Return the tensors of several images; small ones are scaled, noised and normalised together."""
        *first, normalize, last = self.steps
        if last is not _as_tensor or not isinstance(normalize, _Normalize):  # later steps may draw for each image
            return [self(image) for image in images]
        prepare, drawn, tensors = Steps(first), [], []
        for image in images:
            pixels, noise = normalize.draw(prepare(image))
            if pixels.size > _SMALL:
                tensors.append(_as_tensor(normalize.scale(pixels, noise)))
            else:
                drawn.append((pixels, noise))
        if not drawn:
            return tensors
        pixels, noises = zip(*drawn, strict=True)
        return [*_as_tensor(normalize.scale(np.stack(pixels), None if noises[0] is None else torch.stack(noises)))]


@dataclass(frozen=True)
class Resize:
    """Resize to a shorter side, or to height and width; crop thin images first (`cut_thin`)."""

    size: int | tuple[int, ...]
    method: Image.Resampling = Image.Resampling.BILINEAR

    def __call__(self, image: Image.Image) -> Image.Image:
        image = cut_thin(image)
        if isinstance(self.size, int):
            return resize_shorter(image, self.size, self.method)
        height, width = self.size
        return image if image.size == (width, height) else image.resize((width, height), self.method)


@dataclass(frozen=True)
class CenterCrop:
    """Crop the square in the middle of an image."""

    size: int
    rounding: Literal["nearest", "down"] = "nearest"

    def __call__(self, image: Image.Image) -> Image.Image:
        to_pixel = round if self.rounding == "nearest" else floor
        left, top = (to_pixel((side - self.size) / 2) for side in image.size)
        return image.crop((left, top, left + self.size, top + self.size))
