"""Medians of interleaved runs, and the peak of memory: timings on a shared machine are noisy, their ratios less so."""

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

__all__ = ["medians", "peak_memory"]


def medians(calls: Mapping[str, Callable[[], object]], rounds: int, *, cuda: bool = False) -> dict[str, float]:
    """Median seconds of each call; every round runs each once, so that all meet the same machine."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(-1, rounds):  # the first round warms caches up and does not count
        for name, call in calls.items():
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            if cuda:
                torch.cuda.synchronize()
            if number >= 0:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in seconds.items()}


def peak_memory(call: Callable[[], object]) -> int:
    """Bytes by which this process's resident memory rose at its highest while ``call`` ran (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts from now
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)
