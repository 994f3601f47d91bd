"""Prepare images as inputs of a network, batch by batch, also in processes that do not hold the network."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
from jaxtyping import Float32
from PIL import Image

from proxemic.arrays import as_tensor
from proxemic.data.pixels import Pixels
from proxemic.data.reading import ImageInput, UnreadableImageError, read_image
from proxemic.data.transforms import Preprocessing
from proxemic.data.vectors import Vectors
from proxemic.lazy import Tensor, is_tensor
from proxemic.ranges import check_range
from proxemic.runs.library_preprocessing import AnyPreprocessing

Transform = Callable[[Image.Image], Any]
"""Maps an image to a floating tensor `[C, H, W]`, or to a mapping with this tensor as `pixel_values`."""

Picture = ImageInput | Tensor
"""An image for `Embedder.embed`: any input of `read_image`, or a prepared tensor `[C, H, W]`."""

Arrays = Float32[np.ndarray, "images channels height width"]
Prepared = tuple[Tensor, list[int], dict[int, str]]
"""A batch: the readable images, their places, and by place why the others cannot be read."""


def check_reading(batch_size: int = 1, workers: int | None = 0) -> None:
    """Validate a batch size and a number of reading processes."""
    check_range("batch_size", batch_size, f"[1, {2**31})")
    check_range("workers", workers, "[0, 256]")


class Preparation:
    """Prepare an image as the input tensor ``[C, H, W]`` of a network, in processes that do not hold the network.

    Args:
        transform: `Preprocessing`, `LibraryPreprocessing`, or any function of an RGB image. If it returns a mapping, as
            processors of transformers do, its ``pixel_values`` are the tensor.
    """

    def __init__(self, transform: AnyPreprocessing | Transform) -> None:
        self.is_ours = isinstance(transform, AnyPreprocessing)
        ours = transform if isinstance(transform, AnyPreprocessing) else None
        self.side, self.bits = (None, None) if ours is None else (ours.reduced_side, ours.bits)
        self._transform: Transform = transform.evaluation() if isinstance(transform, AnyPreprocessing) else transform
        self.array = transform.arrays() if isinstance(transform, Preprocessing) else None
        """The same without torch: a function from an image to an array; None if other libraries prepare images."""

    def __call__(self, picture: Picture) -> Tensor:
        if is_tensor(picture):
            return picture
        image = read_image(cast("ImageInput", picture), self.side, self.bits)
        prepared: Any = self._transform(image if self.is_ours else image.convert("RGB"))
        if isinstance(prepared, Mapping) and "pixel_values" in prepared:
            values = prepared["pixel_values"]
            prepared = as_tensor("pixel_values", values)
            prepared = prepared[0] if prepared.ndim == 4 and len(prepared) == 1 else prepared
        if not is_tensor(prepared) or prepared.ndim != 3 or not prepared.is_floating_point():
            shape = list(prepared.shape) if is_tensor(prepared) else type(prepared).__name__
            raise ValueError(f"transform gives {shape}, but must give a floating tensor [channels, height, width].")
        return prepared

    def batches(
        self,
        pictures: Sequence[Picture] | Pixels | Vectors,
        batch_size: int,
        workers: int,
        *,
        strict: bool,
        pin: bool = False,
    ) -> Iterator[Prepared]:
        """Prepare batch by batch; with `strict`, raise `UnreadableImageError` for an image that cannot be read."""
        check_reading(batch_size, workers)
        if isinstance(pictures, Vectors):
            for first in range(0, len(pictures), batch_size):
                places = [*range(first, min(first + batch_size, len(pictures)))]
                yield pictures.fetch(places), places, {}
            return
        from proxemic.retrieval.vectors.loading import load_batches

        yield from load_batches(self, pictures, batch_size, workers, strict=strict, pin=pin)

    def arrays(
        self, pictures: Sequence[Picture] | Pixels, batch_size: int, *, strict: bool
    ) -> Iterator[tuple[Arrays, list[int], dict[int, str]]]:
        """Prepare batch by batch as `batches` does, in this process and without torch, if there is `array`."""
        check_reading(batch_size)
        for first in range(0, len(pictures), batch_size):
            places = range(first, min(first + batch_size, len(pictures)))
            found = {place: self.at(pictures, place, self.array, strict=strict) for place in places}
            good = {place: item for place, item in found.items() if not isinstance(item, str)}
            failures = {place: item for place, item in found.items() if isinstance(item, str)}
            yield np.stack([*good.values()]) if good else np.empty(0, np.float32), [*good], failures

    def at(self, pictures: Sequence[Picture] | Pixels, place: int, prepare: Any, *, strict: bool) -> Any:
        """Prepare one of several images by `prepare`; unless `strict`, return why an image cannot be read."""
        try:
            if isinstance(pictures, Pixels):
                return prepare(pictures.load(place, self.side, self.bits))
            return prepare(pictures[place])
        except UnreadableImageError as error:
            if strict:
                raise
            return error.reason or str(error)
