"""Prepare pictures as inputs of a network, batch by batch, also in processes that do not hold the network."""

import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from proxemic.arrays import as_tensor
from proxemic.data import read_image
from proxemic.data.pixels import Pixels
from proxemic.data.reading import ImageInput, UnreadableImageError
from proxemic.data.vectors import Vectors
from proxemic.ranges import check_range
from proxemic.runs.library_preprocessing import AnyPreprocessing
from proxemic.runs.workers import worker_settings

Transform = Callable[[Image.Image], Any]
"""Maps an image to a floating tensor `[C, H, W]`, or to a mapping with this tensor as `pixel_values`."""

Picture = ImageInput | Tensor
"""A picture for `Embedder.embed`: any input of `read_image`, or a prepared tensor `[C, H, W]`."""

Prepared = tuple[Tensor, list[int], dict[int, str]]
"""A batch: the readable pictures, their places, and by place why the others cannot be read."""


def check_reading(batch_size: int = 1, workers: int | None = 0) -> None:
    """Raise `ValueError` unless pictures can be read in such batches by so many processes."""
    check_range("batch_size", batch_size, f"[1, {2**31})")
    check_range("workers", workers, "[0, 256]")


class Preparation:
    """Prepare a picture as the input tensor ``[C, H, W]`` of a network, in processes that do not hold the network.

    Args:
        transform: `Preprocessing`, `LibraryPreprocessing`, or any function of an RGB image. If it returns a mapping, as
            processors of transformers do, its ``pixel_values`` are the tensor.
    """

    def __init__(self, transform: AnyPreprocessing | Transform) -> None:
        self.is_ours = isinstance(transform, AnyPreprocessing)
        ours = transform if isinstance(transform, AnyPreprocessing) else None
        self.side, self.bits = (None, None) if ours is None else (ours.reduced_side, ours.bits)
        self._transform: Transform = transform.evaluation() if isinstance(transform, AnyPreprocessing) else transform

    def __call__(self, picture: Picture) -> Tensor:
        if isinstance(picture, Tensor):
            return picture
        image = read_image(picture, self.side, self.bits)
        prepared: Any = self._transform(image if self.is_ours else image.convert("RGB"))
        if isinstance(prepared, Mapping) and "pixel_values" in prepared:
            values = prepared["pixel_values"]
            prepared = as_tensor("pixel_values", values)
            prepared = prepared[0] if prepared.ndim == 4 and len(prepared) == 1 else prepared
        if not isinstance(prepared, Tensor) or prepared.ndim != 3 or not prepared.is_floating_point():
            shape = list(prepared.shape) if isinstance(prepared, Tensor) else type(prepared).__name__
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
        """Prepare batch by batch; with `strict`, raise `UnreadableImageError` for a picture that cannot be read."""
        check_reading(batch_size, workers)
        if isinstance(pictures, Vectors):
            for first in range(0, len(pictures), batch_size):
                places = [*range(first, min(first + batch_size, len(pictures)))]
                yield pictures.fetch(places), places, {}
            return
        settings = worker_settings(workers)
        # A loader draws a seed: not from the caller's generator.
        settings |= {"generator": torch.Generator(), "pin_memory": pin}
        try:
            loader = DataLoader(_Pictures(self, pictures, strict), batch_size, collate_fn=_collate, **settings)
            for batch, places, failures in loader:
                yield pickle.loads(batch) if isinstance(batch, bytes) else batch, places, failures
        except UnreadableImageError as error:
            # The error holds torch's frames, which hold the loading processes. The garbage collector would wait for
            # these processes for five seconds, in vain.
            traceback.clear_frames(error.__traceback__)
            raise


class _Pictures(Dataset[tuple[int, Tensor | str]]):
    def __init__(self, prepare: Preparation, pictures: Sequence[Picture] | Pixels, strict: bool) -> None:
        self.prepare, self.pictures, self.strict = prepare, pictures, strict

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, place: int) -> tuple[int, Tensor | str]:
        try:
            if isinstance(self.pictures, Pixels):
                return place, self.prepare(self.pictures.load(place, self.prepare.side, self.prepare.bits))
            return place, self.prepare(self.pictures[place])
        except UnreadableImageError as error:
            if self.strict:
                raise
            return place, error.reason or str(error)


def _collate(items: Sequence[tuple[int, Tensor | str]]) -> tuple[Tensor | bytes, list[int], dict[int, str]]:
    prepared = {place: item for place, item in items if isinstance(item, Tensor)}
    failures = {place: item for place, item in items if isinstance(item, str)}
    shapes = [*dict.fromkeys(tuple(item.shape) for item in prepared.values())]
    if len(shapes) > 1:
        raise ValueError(
            f"images of one batch are prepared to {list(shapes[0])} and {list(shapes[1])}: have transform give "
            "one shape."
        )
    batch: Tensor | bytes = torch.stack([*prepared.values()]) if prepared else torch.empty(0)
    if get_worker_info() is not None:
        # The queue between the processes would share the memory later, but hangs if that fails.
        try:
            batch.share_memory_()
        except RuntimeError:  # a container has little shared memory: send a copy, which is slower
            batch = pickle.dumps(batch)
    return batch, [*prepared], failures
