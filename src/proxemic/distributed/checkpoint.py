"""Sharded tensors on disk: written by any number of processes, read by any other number.

`torch.distributed.checkpoint` writes one safetensors file per process, whose header holds the place of its rows.
"""

import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from jaxtyping import Shaped
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from proxemic.distributed.class_sharding import part_of

Rows = Mapping[str, Shaped[Tensor, "rows *shape"]]


def save_shards(folder: Path, tensors: Rows, total: int, group: dist.ProcessGroup | None = None) -> None:
    """Write the rows that each process of the group holds, its `part_of` ``total`` rows, to a new folder.

    Every process of the group calls this; ``None`` is this process alone, with all rows. The folder exists once all is
    written. If it cannot be written, every process raises `OSError`.
    """
    temporary = folder.with_name(folder.name + ".tmp")
    first = group is None or group.rank() == 0
    try:
        with _as_one(group, OSError):
            if first:
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True)
        with _alone_is_meant():
            dcp.save(
                _laid_out(tensors, total, group),
                storage_writer=HuggingFaceStorageWriter(str(temporary), save_distributed=True),
                process_group=group,
                no_dist=group is None,
            )
        with _as_one(group, OSError):
            if first:
                temporary.replace(folder)
    except (OSError, CheckpointException) as error:  # the same on every process
        if first:
            shutil.rmtree(temporary, ignore_errors=True)
        reason = _reasons(error) if isinstance(error, CheckpointException) else error
        raise OSError(f"{folder} cannot be written: {reason}") from error


def load_shards(folder: Path, tensors: Rows, total: int, group: dist.ProcessGroup | None = None) -> None:
    """Read each process's rows into ``tensors`` from what any number of processes wrote; arguments as `save_shards`.

    Every process raises `ValueError` if the folder or a file of it is missing or damaged, or holds other tensors.
    """
    with _as_one(group, ValueError):
        _check(folder, tensors, total)
    try:
        with _alone_is_meant():
            dcp.load(
                _laid_out(tensors, total, group),
                storage_reader=HuggingFaceStorageReader(str(folder)),
                process_group=group,
                no_dist=group is None,
            )
    except CheckpointException as error:
        raise ValueError(f"{folder} is damaged: {_reasons(error)}") from error


def load_whole(folder: Path, name: str) -> Shaped[Tensor, "rows *shape"]:
    """All rows of one tensor that `save_shards` wrote, on this process alone; errors as `load_shards`."""
    saved = _saved(folder, name, _metadata(folder))
    whole = torch.empty(saved.size, dtype=saved.properties.dtype)
    load_shards(folder, {name: whole}, len(whole))
    return whole


def _laid_out(tensors: Rows, total: int, group: dist.ProcessGroup | None) -> dict[str, Tensor]:
    if group is None:
        return dict(tensors)
    # A DTensor's rows must be distributed as torch does it: see `part_of`.
    part = part_of(total, group.rank(), group.size())
    laid_out: dict[str, Tensor] = {}
    for name, rows in tensors.items():
        if len(rows) != part.stop - part.start:
            raise ValueError(
                f"{name} has {len(rows)} rows on process {group.rank()} of {group.size()}, but of {total} it is to "
                f"hold {part.stop - part.start}."
            )
        mesh = DeviceMesh.from_group(group, rows.device.type)
        shape = torch.Size([total, *rows.shape[1:]])
        stride = torch.empty(shape, device="meta").stride()
        laid_out[name] = DTensor.from_local(rows.contiguous(), mesh, [Shard(0)], shape=shape, stride=stride)
    return laid_out


def _metadata(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise ValueError(f"{folder} is missing, so that the checkpoint that names it is not whole.")
    try:
        return HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    except Exception as error:  # safetensors has its own
        raise ValueError(f"{folder} is damaged: {' '.join(str(error).split())[:200]}") from error


def _saved(folder: Path, name: str, metadata: dict[str, Any]) -> Any:
    if name not in metadata:
        raise ValueError(f"{folder} holds no {name}, but {', '.join(sorted(metadata)) or 'nothing'}.")
    return metadata[name]


def _check(folder: Path, tensors: Rows, total: int) -> None:
    """Refuse files in which rows are missing: torch would leave uninitialised memory in their place."""
    metadata = _metadata(folder)
    for name, rows in tensors.items():
        saved = _saved(folder, name, metadata)
        if saved.properties.dtype != rows.dtype:
            raise ValueError(
                f"{folder} holds {name} in {saved.properties.dtype}, but {rows.dtype} is asked for: it is of another "
                "loss."
            )
        expected = 0
        for chunk in sorted(saved.chunks, key=lambda chunk: chunk.offsets[0]):
            if chunk.sizes[0] and chunk.offsets[0] != expected:
                break
            expected += chunk.sizes[0]
        if expected != total or tuple(saved.size[1:]) != tuple(rows.shape[1:]):
            raise ValueError(
                f"{folder} holds {name} as {list(saved.size)}, of which the first {expected} rows are there, but "
                f"{[total, *rows.shape[1:]]} is asked for: a file of it is missing, or it is of another loss."
            )


def _reasons(error: CheckpointException) -> str:
    return "; ".join(sorted({f"{reason[0]}" for reason in error.failures.values()}))[:300]


@contextmanager
def _alone_is_meant() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*assuming the intent is to (save|load) in a single process.*")
        yield


@contextmanager
def _as_one(group: dist.ProcessGroup | None, kind: type[OSError | ValueError]) -> Iterator[None]:
    """Raise an error of one process on every process."""
    local: Exception | None = None
    try:
        yield
    except kind as error:
        local = error
    if group is not None:
        messages: list[str | None] = [None] * group.size()
        dist.all_gather_object(messages, None if local is None else str(local), group)
        first = next((message for message in messages if message is not None), None)
        local = local or (None if first is None else kind(first))
    if local is not None:
        raise local
