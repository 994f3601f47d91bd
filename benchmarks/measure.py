"""Helpers of the benchmarks: flags, tables, interleaved timings, peaks of memory, transferred bytes and pictures.

Timings on a shared machine are noisy; ratios of interleaved timings are less so.
"""

import ctypes
import inspect
import os
import re
import resource
import statistics
import time
import weakref
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Literal, get_args, get_origin

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def command(main: Callable[..., None]) -> None:
    """Call `main` with the command line: keyword-only parameters are flags, and others are optional words."""
    parser = ArgumentParser(
        description=vars(inspect.getmodule(main))["__doc__"], formatter_class=RawDescriptionHelpFormatter
    )
    for name, parameter in inspect.signature(main).parameters.items():
        hint, flag = parameter.annotation, parameter.kind is parameter.KEYWORD_ONLY
        kinds = [kind for kind in get_args(hint) or [hint] if kind is not NoneType]
        options: dict[str, Any] = {"default": parameter.default, "help": f"(default: {parameter.default})"}
        if hint is bool:
            options["action"] = "store_true"
        elif get_origin(hint) is Literal:
            options["choices"] = kinds
        else:
            options["type"] = kinds[0]
            options["nargs"] = {Sequence: "*", tuple: len(kinds)}.get(get_origin(hint), None if flag else "?")
        if flag:
            options["dest"] = name
        parser.add_argument(f"--{name.rstrip('_').replace('_', '-')}" if flag else name, **options)
    main(**vars(parser.parse_args()))


def machine() -> str:
    """Describe the processor: its model, the cores that this process may use, and the cache they share."""
    model = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())[0]
    caches = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    last = f", last cache {caches[-1].read_text().strip()}" if caches else ""
    return f"{model}, {len(os.sched_getaffinity(0))} cores{last}"


def print_header(*columns: str) -> None:
    """Print the first two lines of a table in Markdown."""
    print_row(*columns)
    print(f"|---|{'---:|' * (len(columns) - 1)}")


def print_row(*cells: object) -> None:
    """Print a row of a table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def medians(calls: Mapping[str, Callable[[], object]], rounds: int, *, cuda: bool = False) -> dict[str, float]:
    """Return the median seconds of each call; every round runs each call once, so that all see the same machine."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(-1, rounds):  # the first round warms up and does not count
        for name, call in calls.items():
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            if cuda:
                torch.cuda.synchronize()
            if number >= 0:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


class Held(TorchDispatchMode):
    """Measure the peak of bytes of all tensors that are created in the block; views of ``before`` do not count."""

    def __init__(self, *before: Tensor) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known = {tensor.untyped_storage()._cdata for tensor in before}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            # The parts of a sparse tensor were dense tensors before.
            if isinstance(value, Tensor) and func.namespace == "aten" and not value.is_sparse:
                self._count(value.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.known:
            return
        self.known.add(key)
        self.now += storage.nbytes()
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._forget, key, storage.nbytes())

    def _forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


class Moved:
    """Record the collectives in the block with the shape of their larger tensor, and the bytes a process receives.

    The bytes are those of the usual ring algorithms, in which W processes pass parts around.
    """

    # Position of the larger tensor, and how often a process receives its bytes, except for its own part.
    COUNTED: ClassVar = {"all_gather_into_tensor": (0, 1), "reduce_scatter_tensor": (1, 1), "all_reduce": (0, 2)}

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.bytes = 0.0
        self._originals: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> "Moved":
        for name in (*self.COUNTED, "broadcast"):
            self._originals[name] = getattr(dist, name)
            setattr(dist, name, partial(self._call, name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, original in self._originals.items():
            setattr(dist, name, original)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        position, times = self.COUNTED.get(name, (0, 1))
        tensor: Tensor = args[position]
        world = dist.get_world_size()
        self.calls.append((name, list(tensor.shape)))
        self.bytes += times * tensor.nbytes * (1 if name == "broadcast" else (world - 1) / world)
        return self._originals[name](*args, **kwargs)


def page_faults(call: Callable[[], object], rounds: int = 5) -> int:
    """Return the page faults of a call; each costs as much time as copying some kilobytes."""
    call()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // rounds


def resident_peak(call: Callable[[], object]) -> int:
    """Return the peak increase of resident memory during a call, in bytes (Linux with glibc)."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # memory that was freed before must not be reused
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts from now
    before = resident()
    call()
    return resident(key="VmHWM") - before


def resident(process: int | str = "self", key: str = "VmRSS") -> int:
    """Return the resident memory of a process in bytes, including mapped files."""
    return int(re.findall(rf"{key}:\s+(\d+)", Path(f"/proc/{process}/status").read_text())[0]) * 1024


def write_photographs(folder: Path, count: int, size: tuple[int, int]) -> list[Path]:
    """Write noise of several scales as JPEG files, with as many bytes as photographs of that size have."""
    rng = np.random.default_rng(0)
    paths = [folder / f"{number}.jpg" for number in range(count)]
    for path in paths:
        picture = np.full((size[1], size[0], 3), 128.0)
        for cell in (96, 24, 6, 1.5):  # pixels; coarser patterns are stronger, as in photographs
            coarse = rng.integers(0, 256, (int(size[1] / cell) + 1, int(size[0] / cell) + 1, 3), dtype=np.uint8)
            smooth = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
            picture += (np.asarray(smooth) / 255 - 0.5) * 20 * cell**0.5
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(path, quality=94)
    return paths
