"""Set up glibc's allocator to keep large buffers: returning them to the kernel costs half of a step in page faults."""

import ctypes
import os
import sys
from collections.abc import Mapping

# The parameters of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -2, -3, -4, -8


def keep_freed_memory() -> bool:
    """Make glibc keep the memory that tensors free for the tensors of the next step.

    By default, glibc maps every large buffer anew and unmaps it when it is freed, so that each step of a network on a
    CPU touches all its memory for the first time: hundreds of thousands of page faults. After this call, buffers below
    1 GiB come from the heap, which does not shrink. The process then holds about a tenth more than its peak memory. The
    commands call this function first. In your own script, call it once before you compute.

    Nothing changes without glibc, with another allocator in `LD_PRELOAD`, or if you set parameters yourself by
    `MALLOC_*` variables or `glibc.malloc` in `GLIBC_TUNABLES`. Forked processes inherit the setting; spawned ones must
    call this function, too.

    Returns:
        Whether glibc keeps freed memory now.

    >>> import proxemic
    >>> kept = proxemic.keep_freed_memory()
    """
    libc = _glibc()
    if libc is None:
        return False
    mallopt = libc.mallopt
    # Before 2.35, glibc refuses thresholds above 32 MiB: then map nothing at all.
    large = mallopt(_MMAP_THRESHOLD, 2**30) or mallopt(_MMAP_MAX, 0)
    return bool(large and mallopt(_TRIM_THRESHOLD, -1) and mallopt(_TOP_PAD, 64 * 2**20))


def share_one_heap() -> None:
    """Make threads that start later share one heap, which `give_back_freed_memory` can return as a whole.

    Otherwise each thread gets its own heap and never returns up to 64 MiB of it.
    """
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_ARENA_MAX, 1)


def give_back_freed_memory() -> None:
    """Return freed memory to the kernel once, such as after a large image in a process that runs for months."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """Return glibc if it is the allocator and has its default parameters."""
    if sys.platform != "linux" or _chosen_by_user(os.environ):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None  # musl has none


def _chosen_by_user(environment: Mapping[str, str]) -> bool:
    """Return whether the environment replaces the allocator or sets one of its parameters."""
    preloaded = environment.get("LD_PRELOAD", "")
    return (
        "malloc" in preloaded  # jemalloc, mimalloc, rpmalloc, snmalloc, tcmalloc
        or "hoard" in preloaded
        or "glibc.malloc" in environment.get("GLIBC_TUNABLES", "")
        or any(name.startswith("MALLOC_") for name in environment)
    )
