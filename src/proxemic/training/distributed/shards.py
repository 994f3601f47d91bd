"""Sharded proxies in files next to the checkpoints of a run, readable by any number of processes."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from proxemic.distributed.checkpoint import load_shards, load_whole, save_shards
from proxemic.runs.processes import Processes

_PROXIES = "loss.proxies"


@dataclass
class ProxyShards:
    """Saves and loads sharded proxies and their optimiser state, in a folder next to each checkpoint.

    The checkpoint names its folder, which is complete before the checkpoint is written; ``latest`` is the last folder.
    """

    folder: Path
    processes: Processes
    num_classes: int
    latest: str = ""

    def save(self, checkpoint: dict[str, Any], optimizer: Optimizer, proxies: nn.Parameter, step: int) -> None:
        """Move this process's shard from a checkpoint to files; every process must call this."""
        everything = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        index = next((number for number, item in enumerate(everything) if item is proxies), None)
        tensors = {_PROXIES: checkpoint["loss"].pop("proxies")}
        states = checkpoint["optimizer"]["state"]
        if index in states:
            rows = {
                name: value for name, value in states[index].items() if getattr(value, "shape", None) == proxies.shape
            }
            # A copy, as the optimiser still uses its own.
            states[index] = {name: value for name, value in states[index].items() if name not in rows}
            tensors |= {f"optimizer.{name}": value for name, value in rows.items()}
        self._write(tensors, step)
        types = {name: value.dtype for name, value in tensors.items()}
        checkpoint["shards"] = {"folder": self.latest, "index": index, "types": types}

    def save_start(self, proxies: nn.Parameter) -> None:
        """Write the proxies without a checkpoint, before the first step; every process must call this."""
        self._write({_PROXIES: proxies.detach()}, 0)

    def _write(self, tensors: dict[str, Tensor], step: int) -> None:
        names = (f"proxies-{step}{suffix}" for suffix in ("", *(f"-{number}" for number in range(2, 100))))
        self.latest = self.processes.broadcast(next(name for name in names if not (self.folder / name).exists()))
        save_shards(self.folder / self.latest, tensors, self.num_classes, self.processes.group)

    def load(self, checkpoint: dict[str, Any], proxies: nn.Parameter) -> None:
        """Move this process's shard from files into a checkpoint."""
        kept = checkpoint["shards"]
        self.latest = kept["folder"]
        tensors = {name: torch.empty(proxies.shape, dtype=kind) for name, kind in kept["types"].items()}
        load_shards(self.folder / self.latest, tensors, self.num_classes, self.processes.group)
        checkpoint["loss"]["proxies"] = tensors.pop(_PROXIES)
        if tensors:
            state = checkpoint["optimizer"]["state"].setdefault(kept["index"], {})
            state |= {name.removeprefix("optimizer."): value for name, value in tensors.items()}

    def whole(self) -> Tensor:
        """Load the proxies of all classes, as in the latest checkpoint."""
        return load_whole(self.folder / self.latest, _PROXIES)

    def drop_others(self) -> None:
        """Remove the files of other checkpoints, including incomplete ones that a killed run has left."""
        for path in self.folder.glob("proxies-*"):
            if path.name != self.latest:
                shutil.rmtree(path, ignore_errors=True)
