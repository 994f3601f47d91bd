"""Sharded tensors on disk: written by any number of processes, read by any other number.

Each process writes its rows to one safetensors file, whose header says which rows of the whole tensor these are.
"""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
import torch.distributed as dist
from jaxtyping import Shaped
from safetensors import SafetensorError, safe_open
from torch import Tensor

from proxemic.distributed.class_sharding import part_of

Rows = Mapping[str, Shaped[Tensor, "rows *shape"]]


def save_shards(folder: Path, tensors: Rows, total: int, group: dist.ProcessGroup | None = None) -> None:
    """Write the rows that each process of the group holds (its `part_of` ``total`` rows) to a new folder.

    Every process of the group calls this; ``None`` stands for this process alone, with all rows. The folder appears
    once all files are written. Raises `OSError` if this process cannot write.
    """
    rank, world = (0, 1) if group is None else (group.rank(), group.size())
    temporary = folder.with_name(folder.name + ".tmp")
    if folder.exists():
        raise OSError(f"{folder} cannot be written: it exists already")
    _wait(group)
    if rank == 0:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    _wait(group)
    content = safetensors.torch.save(
        {name: rows.contiguous() for name, rows in tensors.items()},
        {"first row": str(part_of(total, rank, world).start), "rows": str(total)},
    )
    try:
        # As bytes: safetensors hides the reason why a write to a file fails.
        (temporary / f"{rank:05}-of-{world:05}.safetensors").write_bytes(content)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise OSError(f"{folder} cannot be written: {error.strerror or error}") from error
    _wait(group)
    if rank == 0:
        temporary.replace(folder)
    _wait(group)


@torch.no_grad()
def load_shards(folder: Path, tensors: Rows, total: int, group: dist.ProcessGroup | None = None) -> None:
    """Read this process's rows into ``tensors`` from files that any number of processes wrote with `save_shards`.

    The arguments are those of `save_shards`.

    Raises:
        ValueError: If the folder or one of its files is missing or damaged, or holds other tensors.
    """
    part = slice(0, total) if group is None else part_of(total, group.rank(), group.size())
    for name, rows in tensors.items():
        saved = _read(folder, name, part)
        if (saved.shape, saved.dtype) != (rows.shape, rows.dtype):
            raise ValueError(
                f"{folder} holds {name} as {saved.dtype} {list(saved.shape)}, but this loss needs {rows.dtype} "
                f"{list(rows.shape)}: the folder belongs to another loss."
            )
        rows.copy_(saved)


def load_whole(folder: Path, name: str) -> Shaped[Tensor, "rows *shape"]:
    """Read all rows of a tensor that `save_shards` wrote, on this process alone; raises what `load_shards` raises."""
    return _read(folder, name, slice(0, sys.maxsize))


def _read(folder: Path, name: str, part: slice) -> Tensor:
    pieces, found, total = [], 0, None
    try:
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                first, total = (int(file.metadata()[key]) for key in ("first row", "rows"))
                if first != found:
                    break
                rows = file.get_slice(name)
                found += rows.get_shape()[0]
                pieces.append(rows[max(part.start, first) - first : max(min(part.stop, found), first) - first])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder} is damaged: {' '.join(str(error).split())[:200]}.") from error
    if found != total:
        raise ValueError(f"{folder} is missing or incomplete: it has only the first {found} rows of {name}.")
    return torch.cat(pieces)


def _wait(group: dist.ProcessGroup | None) -> None:
    if group is not None:
        dist.barrier(group)
