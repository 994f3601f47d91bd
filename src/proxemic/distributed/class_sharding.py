"""Division of the work of a loss among processes: each computes the scores of some classes."""

from dataclasses import dataclass
from typing import NoReturn

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from proxemic.distributed.gather import exchange_sizes, gather_batch


@dataclass(frozen=True)
class ClassSharding:
    """Assignment of each process to its shard of the classes; all processes use the global batch.

    A shard has ``⌈C/W⌉`` consecutive classes, as with `torch.chunk` and `torch.distributed.tensor.Shard`: the last ones
    may be smaller or empty.

    Args:
        group: The W processes.
        num_classes: C.
        sharded: Whether each process holds only its shard of the proxies; otherwise every process holds all proxies.
        even_batches: Whether all processes always have batches of the same size; sizes are then not exchanged.
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
        return self  # a copy of the loss has the same processes

    def __reduce__(self) -> NoReturn:
        raise TypeError("a distributed loss cannot be pickled, as its processes are not in a file: save state_dict().")

    def gather(
        self, embeddings: Float[Tensor, "batch dim"], labels: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "joined dim"], Float[Tensor, "joined dim"], Int[Tensor, " joined"]]:
        """Gather the batch with `gather_batch`; raise `ValueError` on every process if the global batch is empty."""
        return self.join(embeddings, labels)[:3]

    def join(
        self, embeddings: Float[Tensor, "batch dim"], labels: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "joined dim"], Float[Tensor, "joined dim"], Int[Tensor, " joined"], list[int]]:
        """Gather the batch like `gather`, and also return the batch size of each process."""
        if self.even_batches:
            sizes = [len(embeddings)] * self.group.size()
        else:
            sizes, wanted = exchange_sizes(embeddings, self.group)
            if wanted and not embeddings.requires_grad:  # an empty batch: the others wait for its backward
                embeddings = embeddings.detach().requires_grad_()
        if not any(sizes):
            raise ValueError("embeddings are empty on every process, but the mean over an empty batch is not defined.")
        return *gather_batch(embeddings, labels, self.group, sizes), sizes

    def check_shards(self, proxies: Float[Tensor, "classes *shape"], before: Float[Tensor, " 2"]) -> None:
        """Raise `ValueError` on every process if the first process's shard has overwritten that of another process.

        ``before`` is the `fingerprint` of this process's shard when the loss was distributed: shards that were equal
        from the start, such as constant ones, do not count.
        """
        now = fingerprint(proxies)
        changed = (now != before.to(now)).any(0, keepdim=True)
        joined = now.new_empty(self.group.size(), 3)
        dist.all_gather_into_tensor(joined, torch.cat([now, changed.to(now)]).unsqueeze(0), self.group)
        overwritten = ((joined[1:, :2] == joined[0, :2]).all(1) & (joined[1:, 2] > 0)).any()
        if torch.compiler.is_compiling():
            torch._assert_async(~overwritten, _OVERWRITTEN)
        elif overwritten:
            raise ValueError(_OVERWRITTEN)


_OVERWRITTEN = (
    "the sharded proxies were overwritten with those of the first process, as DistributedDataParallel does with all "
    "parameters of the module that it wraps: before it wraps the module, and after loss.distribute, call "
    "DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ['loss.proxies']) with the name that "
    "the proxies have in module.named_parameters()."
)


def fingerprint(proxies: Float[Tensor, "classes *shape"]) -> Float[Tensor, " 2"]:
    """Return the extreme coordinates of the first class's proxies, with the same bits on every device."""
    first = proxies.detach()[:1].flatten().double()
    return torch.stack(torch.cat([first, first.new_zeros(1)]).aminmax())  # a shard may be empty


def make_class_sharding(
    earlier: ClassSharding | None, num_classes: int, sharded: bool, group: dist.ProcessGroup | None, even_batches: bool
) -> ClassSharding:
    """Check that a loss can be distributed over a group, or over all processes, and return its `ClassSharding`."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            "there is no process group to distribute the loss over: call torch.distributed.init_process_group first."
        )
    if earlier is not None:
        raise ValueError("the loss is distributed already: call distribute once, on every process.")
    group = group or dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):  # what `new_group` gives the others
        raise ValueError("this process is not in the group to distribute over: call distribute on its members only.")
    return ClassSharding(group, num_classes, sharded, even_batches)


def part_of(count: int, rank: int, world: int) -> slice:
    """Return the slice of ``count`` items that process ``rank`` of ``world`` holds.

    >>> [part_of(5, rank, 4) for rank in range(4)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None), slice(5, 5, None)]
    """
    size = -(-count // world)
    return slice(min(rank * size, count), min((rank + 1) * size, count))
