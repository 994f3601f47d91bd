"""Prepare images as timm and transformers do, for pretrained networks that come with their settings."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image

from proxemic.addresses import TIMM
from proxemic.data.reading import ImageInput, cut_thin, read_image
from proxemic.data.transforms import Interpolation, Preprocessing, Steps, Transform
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import reading
from proxemic.lazy import Tensor

Library = Literal["timm", "transformers"]
_EXTRAS: dict[Library, str] = {"timm": "train", "transformers": "transformers"}
_CONVNEXT_CROPS = 384  # pixels; ConvNeXT's image processor crops smaller images


@dataclass(frozen=True)
class LibraryPreprocessing:
    """Prepare every image with the transform of timm or the image processor of transformers itself.

    It is used for pretrained networks whose settings `Preprocessing` cannot express. Images are read by `read_image`,
    converted to RGB, and cropped if one side is more than 100 times as long as the other. The fields identify the
    transform: embeddings made with two versions of a library are not compared.

    Args:
        library: ``timm`` or ``transformers``.
        version: Version of the library.
        configuration: The arguments of timm's ``create_transform``, or the settings of the image processor, as plain
            JSON data.

    Raises:
        ValueError: If there is no such library.
        UserError: If another version of the library is installed.
        ImportError: If the library is not installed.
    """

    library: Library
    version: str
    configuration: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.library not in _EXTRAS:
            raise ValueError(f"library is {self.library!r}, but must be timm or transformers.")
        if not is_current(asdict(self)):
            raise UserError(
                f"The images of this model were prepared by {self.library} {self.version}, but "
                f"{version_of(self.library)} is installed: pip install {self.library}=={self.version}, or create the "
                "model or gallery again."
            )

    @property
    def reduced_side(self) -> None:
        """None: images are decoded at their full size (see `Preprocessing.reduced_side`)."""

    @property
    def bits(self) -> None:
        """None: pixels have the range that their file states (see `Preprocessing.bits`)."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data, for `read_preprocessing`."""
        return asdict(self)

    def evaluation(self) -> Transform:
        """Make the deterministic transform; it takes any input of `read_image`.

        Raises:
            ValueError: If the library does not take the configuration.
        """
        if self.library == "transformers":
            from proxemic.models.backbones.transformers_models import image_processor

            return Steps([_read, _Processor(image_processor(dict(self.configuration)))])
        from timm.data import create_transform

        try:
            transform: Any = create_transform(**self.configuration)
        except Exception as error:  # timm does not check its arguments
            raise ValueError(f"timm cannot make a transform of {self.configuration}: {error!r}") from error
        return Steps([_read, transform])


AnyPreprocessing = Preprocessing | LibraryPreprocessing


def read_preprocessing(described: Any, file: Path) -> AnyPreprocessing:
    """Make the preprocessing that `as_dict` wrote into a JSON file; `ValueError` if it is malformed."""
    if not isinstance(described, Mapping) or "library" not in described:
        return Preprocessing.read(described, file)
    with reading(file, "JSON"):
        return LibraryPreprocessing(**described)


def is_current(described: Mapping[str, Any]) -> bool:
    """Return whether the library that prepares images is installed in the same version; True if none is named."""
    library = described.get("library")
    if library not in _EXTRAS:
        return True
    with optional_dependency(_EXTRAS[library]):
        return version_of(library) == described.get("version")


def pretrained_preprocessing(name: str) -> AnyPreprocessing:
    """Return the preprocessing of the network ``timm:NAME``, ``hf:NAME`` or ``hf:FOLDER``.

    The result is a `Preprocessing` if that gives the same tensors as the library, otherwise the library's own.

    Raises:
        ValueError: If there is no such network, or its image tensors cannot be put into one batch.
        UserError: If the settings cannot be downloaded.
        ImportError: If the library is not installed.
    """
    if name.startswith(TIMM):
        return translate(_library("timm", timm_configuration(name.removeprefix(TIMM))), _of_timm)
    from proxemic.models.backbones.transformers_models import find_folder, read_image_processor

    processor = read_image_processor(find_folder(name, weights=True))
    if processor is None:
        return Preprocessing()
    return translate(_library("transformers", json.loads(processor.to_json_string())), _of_transformers)


def timm_configuration(name: str) -> dict[str, Any]:
    """Return the arguments of timm's ``create_transform`` for the pretrained weights of a network."""
    from proxemic.models.backbones.timm_models import check_timm_name

    check_timm_name(name)
    from timm.data import resolve_data_config
    from timm.models import get_pretrained_cfg

    known = get_pretrained_cfg(name)
    return json.loads(json.dumps(resolve_data_config({}, pretrained_cfg=known.to_dict() if known else {"": None})))


def translate(
    library: LibraryPreprocessing, translation: Callable[[Mapping[str, Any]], Preprocessing]
) -> AnyPreprocessing:
    """Translate a library's configuration to a `Preprocessing` if both prepare images equally; else return ``library``.

    Raises:
        ValueError: If the library does not map each image to one tensor of the same shape.
    """
    try:
        ours = translation(library.configuration)
    except (AttributeError, KeyError, TypeError, ValueError):  # settings that `Preprocessing` does not have
        ours = None
    side = ours.shorter_side or ours.size if ours else 64
    images = [*_images(side)]
    theirs = [*map(library.evaluation(), images)]
    shapes = [*dict.fromkeys(tuple(tensor.shape) for tensor in theirs)]
    if len(shapes) > 1 or len(shapes[0]) != 3:
        shown = " or ".join(str([*shape]) for shape in shapes[:2])
        raise ValueError(
            f"{library.library} prepares images of this network to {shown}, but a batch needs one shape [channels, "
            "height, width]: take another network."
        )
    return ours if ours and all(map(_are_equal, map(ours.evaluation(), images), theirs)) else library


def _library(library: Library, configuration: dict[str, Any]) -> LibraryPreprocessing:
    return LibraryPreprocessing(library, version_of(library), configuration)


def _images(side: int) -> Iterator[Image.Image]:
    """Make images of noise: some need no resizing to `side` and leave the crop every remainder, others are resized."""
    noise = np.random.default_rng(0).integers(0, 256, (2 * side, 2 * side, 3), np.uint8)
    unresized = [(side, side + 1), (side + 2, side), (side, side + 3), (side + 4, side)]
    for height, width in (*unresized, (side // 2, side // 2 + 5), (2 * side, side + 9)):
        yield Image.fromarray(noise[:height, :width])


def _are_equal(one: Tensor, other: Tensor) -> bool:
    """Compare up to rounding of float32."""
    return one.shape == other.shape and float((one - other).abs().max()) < 1e-5


def _of_timm(said: Mapping[str, Any]) -> Preprocessing:
    size = said["input_size"][-1]
    scaled = int(size / said["crop_pct"])
    resize = [scaled, scaled] if said["crop_mode"] == "squash" else scaled
    return Preprocessing(size, resize, mean=said["mean"], std=said["std"], interpolation=said["interpolation"])


def _of_transformers(said: Mapping[str, Any]) -> Preprocessing:
    shorter, share = said["size"].get("shortest_edge"), said.get("crop_pct")
    side, resize = shorter or said["size"]["height"], shorter or [said["size"]["height"], said["size"]["width"]]
    if said.get("do_center_crop"):
        side = said["crop_size"]["height"]
    if share and shorter:
        resize = int(shorter / share) if shorter < _CONVNEXT_CROPS else None
    is_normalized = said.get("do_normalize")
    return Preprocessing(
        side,
        resize,
        mean=said["image_mean"] if is_normalized else (0.0,) * 3,
        std=said["image_std"] if is_normalized else (1.0,) * 3,
        interpolation=get_args(Interpolation)[said["resample"]],
        crop_rounding="down",
    )


def _read(image: ImageInput) -> Image.Image:
    return cut_thin(read_image(image).convert("RGB"))


@dataclass(frozen=True)
class _Processor:
    """Map an image to the tensor ``pixel_values`` of an image processor."""

    processor: Any

    def __call__(self, image: Image.Image) -> Tensor:
        try:
            values = self.processor(image, return_tensors="pt")["pixel_values"]
            if len(values) != 1:
                raise ValueError(f"it makes {len(values)}")
        except Exception as error:  # processors of several images or patches, or that need texts or boxes
            kind, message = type(self.processor).__name__, " ".join(str(error).split())[:200]
            raise ValueError(f"{kind} of transformers does not make one tensor of an image: {message}") from error
        return values[0].float()
