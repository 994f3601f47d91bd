"""How the work of a loss is laid over processes: by classes."""

from dataclasses import dataclass
from typing import NoReturn

import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from proxemic.distributed.gather import exchange_sizes, gather_batch


@dataclass(frozen=True)
class ClassSharding:
    """Every process works on its shard of the classes, with the joined batch.

    The shards are consecutive, ``⌈C/W⌉`` classes each, as `torch.chunk` and `torch.distributed.tensor.Shard` cut them:
    the last may be smaller, or empty.

    Args:
        group: The W processes.
        num_classes: C.
        sharded: Each process holds only its shard of the proxies; otherwise all processes hold all of them.
        even_batches: All processes always have batches of the same size, so that sizes need not be exchanged.
    """

    group: dist.ProcessGroup
    num_classes: int
    sharded: bool = False
    even_batches: bool = False

    @property
    def local(self) -> slice:
        """The classes of this process."""
        return part_of(self.num_classes, self.group.rank(), self.group.size())

    def __deepcopy__(self, memo: object) -> "ClassSharding":
        return self  # a copy of the loss is of the same processes

    def __reduce__(self) -> NoReturn:
        raise TypeError("a distributed loss cannot be pickled, as its processes are not in a file: save state_dict().")

    def gather(
        self, embeddings: Float[Tensor, "batch dim"], labels: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "joined dim"], Float[Tensor, "joined dim"], Int[Tensor, " joined"]]:
        """Gather the batch, as `gather_batch` does.

        Raises:
            ValueError: On every process, if the joined batch is empty.
        """
        return self.join(embeddings, labels)[:3]

    def join(
        self, embeddings: Float[Tensor, "batch dim"], labels: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "joined dim"], Float[Tensor, "joined dim"], Int[Tensor, " joined"], list[int]]:
        """Gather the batch, as `gather` does, and say how many rows of it each process has."""
        if self.even_batches:
            sizes = [len(embeddings)] * self.group.size()
        else:
            sizes, wanted = exchange_sizes(embeddings, self.group)
            if wanted and not embeddings.requires_grad:  # an empty batch made by hand; the others wait for its backward
                embeddings = embeddings.detach().requires_grad_()
        if not any(sizes):
            raise ValueError("embeddings hold no rows on any process, but the mean over an empty batch is not defined.")
        return *gather_batch(embeddings, labels, self.group, sizes), sizes


def make_class_sharding(
    earlier: ClassSharding | None, num_classes: int, sharded: bool, group: dist.ProcessGroup | None, even_batches: bool
) -> ClassSharding:
    """Make the `ClassSharding` of a loss over a group, or over all processes.

    Raises:
        ValueError: If there is no process group, this process is not in it, or the loss is distributed already.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            "there is no process group to distribute over: call torch.distributed.init_process_group first."
        )
    if earlier is not None:
        raise ValueError("the loss is distributed already: do so once, on every process.")
    group = group or dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):  # what `new_group` gives the others
        raise ValueError("this process is not in the group to distribute over: call distribute on its members alone.")
    return ClassSharding(group, num_classes, sharded, even_batches)


def part_of(count: int, rank: int, world: int) -> slice:
    """Give the part of ``count`` items that process ``rank`` of ``world`` has.

    >>> [part_of(5, rank, 4) for rank in range(4)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None), slice(5, 5, None)]
    """
    size = -(-count // world)
    return slice(min(rank * size, count), min((rank + 1) * size, count))
