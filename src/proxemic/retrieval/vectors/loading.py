"""Prepare images by a `DataLoader` of torch, also in processes that do not hold the network."""

import pickle
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from proxemic.data.reading import UnreadableImageError
from proxemic.runs.workers import worker_settings

if TYPE_CHECKING:
    from proxemic.retrieval.vectors.preparation import Preparation


def load_batches(
    prepare: "Preparation", pictures: Any, batch_size: int, workers: int, *, strict: bool, pin: bool
) -> Iterator[tuple[Tensor, list[int], dict[int, str]]]:
    """Yield batches as `Preparation.batches` does."""
    settings = worker_settings(workers)
    # A loader draws a seed: not from the caller's generator.
    settings |= {"generator": torch.Generator(), "pin_memory": pin}
    try:
        loader = DataLoader(_Pictures(prepare, pictures, strict), batch_size, collate_fn=_collate, **settings)
        for batch, places, failures in loader:
            yield pickle.loads(batch) if isinstance(batch, bytes) else batch, places, failures
    except UnreadableImageError as error:
        # The error holds torch's frames, which hold the loading processes. The garbage collector would wait for
        # these processes for five seconds, in vain.
        traceback.clear_frames(error.__traceback__)
        raise


class _Pictures(Dataset[tuple[int, Tensor | str]]):
    def __init__(self, prepare: "Preparation", pictures: Any, strict: bool) -> None:
        self.prepare, self.pictures, self.strict = prepare, pictures, strict

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, place: int) -> tuple[int, Tensor | str]:
        return place, self.prepare.at(self.pictures, place, self.prepare, strict=self.strict)


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
