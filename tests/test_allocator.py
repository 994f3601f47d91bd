"""glibc's allocator, in separate processes, as settings last until a process ends."""

import subprocess
import sys

import pytest

import proxemic

# Page faults of ten buffers, each freed before the next, of 64 MiB or 16,384 pages.
FAULTS = """
import resource

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        bytearray(64 * 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the allocator of glibc")


def printed(code: str) -> str:
    """Return the output of Python in an environment without allocators."""
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_freed_memory_is_taken_again_without_page_faults() -> None:
    code = FAULTS + "import proxemic; print(faults(), proxemic.keep_freed_memory(), faults() and faults())"
    before, kept, after = printed(code).split()
    assert kept == "True"
    assert int(before) > 1_000
    assert int(after) < int(before) / 20


def test_the_command_line_keeps_it_and_an_import_does_not() -> None:
    code = "import proxemic.allocator, proxemic.cli; print(faults() > 1_000); "
    code += "proxemic.cli.main(['recipes', 'list']); faults(); print(faults() < 50)"
    lines = printed(FAULTS + code).splitlines()
    assert (lines[0], lines[-1]) == ("True", "True")


@pytest.mark.parametrize(
    "environment",
    [
        {"LD_PRELOAD": "libjemalloc.so.2"},
        {"MALLOC_ARENA_MAX": "2"},
        {"GLIBC_TUNABLES": "glibc.malloc.check=1"},
    ],
)
def test_an_allocator_of_the_users_own_is_left_alone(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert not proxemic.keep_freed_memory()


def test_an_older_glibc_maps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Library:
        gnu_get_libc_version = None

        @staticmethod
        def mallopt(parameter: int, value: int) -> int:
            asked.append((parameter, value))
            return int(not (parameter == -3 and value > 32 * 2**20))

    monkeypatch.setattr("ctypes.CDLL", lambda _: Library)
    monkeypatch.setattr("proxemic.allocator._chosen_by_user", lambda _: False)
    assert proxemic.keep_freed_memory()
    assert (-4, 0) in asked


GIVEN_BACK = """
import re, threading
from pathlib import Path
from proxemic.allocator import give_back_freed_memory, keep_freed_memory, share_one_heap

def resident():
    return int(re.findall(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[0]) >> 10

def work():
    [b"x" * 2**20 for _ in range(40)]  # less than the heap of a thread keeps

keep_freed_memory()
share_one_heap()
before = resident()
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
kept = resident() - before
give_back_freed_memory()
print(kept, resident() - before)
"""


def test_the_memory_of_threads_is_given_back() -> None:
    kept, left = map(int, printed(GIVEN_BACK).split())
    assert kept > 30
    assert left < 5
