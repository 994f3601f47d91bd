"""What is done to pictures before a network sees them, one by one in the processes that read them."""

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from proxemic.arrays import as_tensor
from proxemic.data import Preprocessing, read_image
from proxemic.data.pixels import ImageInput, Pixels, UnreadableImageError
from proxemic.data.vectors import Vectors
from proxemic.runs.workers import worker_settings

Transform = Callable[[Image.Image], Any]
"""To a floating tensor `[C, H, W]`, or a mapping that has it as `pixel_values`."""

Picture = ImageInput | Tensor
"""What `Embedder.embed` takes: what `read_image` does, or a prepared tensor `[C, H, W]`."""

Prepared = tuple[Tensor, list[int], dict[int, str]]
"""A batch: what could be read, its places, and why the others cannot be read, by their places."""


class Preparation:
    """From a picture to the tensor ``[C, H, W]`` that a network is given; it is pickled without the network.

    Args:
        transform: `Preprocessing`, or any function of an RGB image; of a mapping that it gives, as processors of
            transformers do, ``pixel_values`` are taken.
    """

    def __init__(self, transform: Preprocessing | Transform) -> None:
        self.is_ours = isinstance(transform, Preprocessing)
        self.side = transform.reduced_side if isinstance(transform, Preprocessing) else None
        self._transform: Transform = transform.evaluation() if isinstance(transform, Preprocessing) else transform

    def __call__(self, picture: Picture) -> Tensor:
        if isinstance(picture, Tensor):
            return picture
        image = read_image(picture, self.side)
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
        """Prepare batch by batch; with `strict`, a picture that cannot be read is an `UnreadableImageError`."""
        if batch_size < 1 or workers < 0:
            raise ValueError(f"batch_size is {batch_size} and workers {workers}, but must be 1 or more, and 0 or more.")
        if isinstance(pictures, Vectors):
            for first in range(0, len(pictures), batch_size):
                places = [*range(first, min(first + batch_size, len(pictures)))]
                yield pictures.fetch(places), places, {}
            return
        settings = worker_settings(workers)
        # A loader draws a seed, which is not to change that of the caller.
        settings |= {"generator": torch.Generator(), "pin_memory": pin}
        try:
            loader = DataLoader(_Pictures(self, pictures, strict), batch_size, collate_fn=_collate, **settings)
            for batch, places, failures in loader:
                yield pickle.loads(batch) if isinstance(batch, bytes) else batch, places, failures
        except UnreadableImageError as error:
            # torch's frames hold the loading processes and the error, which holds the frames. Left to the garbage
            # collector, the processes would be waited for in vain, for five seconds.
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
                return place, self.prepare(self.pictures.load(place, self.prepare.side))
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
        # Here, as the queue between the processes does the same later, but hangs where that fails.
        try:
            batch.share_memory_()
        except RuntimeError:  # a container has little to share: send a copy, which is slower
            batch = pickle.dumps(batch)
    return batch, [*prepared], failures


def enough_workers(processes: int = 1) -> int:
    """Processes that read for each of so many on a machine: one per core in all, or none where they start slowly."""
    return max(1, len(os.sched_getaffinity(0)) // processes) if sys.platform == "linux" else 0
