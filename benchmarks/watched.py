"""Batches that count steps, and what the process holds meanwhile: the sampler of a recipe that is measured."""

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from proxemic.data import Batches, RandomBatches

SEEN: list[tuple[int, float, int]] = []  # step, seconds, bytes


class WatchedBatches(Batches):
    """Random batches, of which an epoch has a few; `SEEN` is filled at twenty of its steps."""

    def __init__(self, num_images: int, batch_size: int, seed: int, steps: int) -> None:
        super().__init__(seed)
        self.whole = RandomBatches(num_images, batch_size, seed)
        self.steps = min(steps, len(self.whole)) if steps else len(self.whole)

    def __len__(self) -> int:
        return self.steps

    def draw(self, epoch: int) -> Iterator[list[int]]:
        for step, batch in enumerate(islice(self.whole.draw(epoch), self.steps)):
            if step % max(1, self.steps // 20) == 0 or step == self.steps - 1:
                SEEN.append((step, time.perf_counter(), resident("VmRSS")))
            yield batch


def resident(name: str) -> int:
    """Bytes of the process in memory: VmRSS now, VmHWM at most so far. Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))
