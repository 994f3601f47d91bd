"""Processes of their own that need not import: each is forked from one that has imported what the commands use.

They are killed, limited, interrupted and waited for as any other, but do not spend most of their life on imports. What
importing does, alone or in another order, only a new interpreter shows: see `command_line.proxemic`.
"""

import contextlib
import multiprocessing
import os
import re
import resource
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

IMPORTED = [
    "alembic",
    "attrs",
    "numpy",
    "optuna.storages._rdb.models",
    "pandas",
    "proxemic.cli.show",
    "proxemic.studies.evaluation",
    "proxemic.studies.tuning",
    "proxemic.recipes.reader",
    "proxemic.report",
    "proxemic.retrieval.galleries.stores.local",
    "proxemic.training.features",
    "proxemic.training.loop",
    "proxemic.training.results",
    "pytest",  # the main module of those who ask
    "pytorch_metric_learning.losses",
    "pytorch_metric_learning.miners",
    "sklearn.cluster",
    "torch._dynamo",  # of the optimiser, in its first step
    "torch.utils.tensorboard",
    "torchvision.transforms.v2",
    "preloaded",  # the last, as it looks at all of them
]


@cache
def server() -> ForkServerContext:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(IMPORTED)
    # It finds `preloaded` in its working directory, as older Pythons do not tell it where this process looks.
    with contextlib.chdir(Path(__file__).parent):
        forkserver.ensure_running()
    return server


class Process:
    """``python ARGUMENTS`` as `subprocess.Popen` starts it: ``-m MODULE``, ``-c CODE`` or a file, and its own words.

    Args:
        arguments: After ``python``.
        environment: Variables beside those of this process.
        cwd: Working directory.
        largest_file: Bytes beyond which the kernel refuses to write, as a full disk does: in the middle of a write.
    """

    def __init__(
        self,
        *arguments: str | Path,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        largest_file: int | None = None,
    ) -> None:
        self.arguments = list(map(str, arguments))
        self._folder = Path(tempfile.mkdtemp())
        self.outputs = [self._folder / "out", self._folder / "err"]
        for output in self.outputs:
            output.touch()
        settings = (self.arguments, self.outputs, dict(environment or {}), cwd or Path.cwd(), largest_file)
        self._process = server().Process(target=_interpret, args=settings)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the signal that ended it; ``None`` as long as it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        """As ``kill -9``."""
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end, once; what was printed, and what to standard error."""
        self._process.join(timeout)
        late = self.returncode is None
        if late:
            self.kill()
            self._process.join()
        out, err = ((self._folder / name).read_text() for name in ("out", "err"))
        shutil.rmtree(self._folder)
        out = re.sub(r"^\[Gloo\] Rank .*\n", "", out, flags=re.MULTILINE)  # torch 2.9 and 2.10 say so of every group
        if late:
            raise subprocess.TimeoutExpired(self.arguments, timeout or 0, out, err)
        return out, err


def run(*arguments: str | Path, timeout: float = 300, **settings: Any) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with its output captured."""
    process = Process(*arguments, **settings)
    out, err = process.communicate(timeout)
    assert process.returncode is not None
    return subprocess.CompletedProcess(process.arguments, process.returncode, out, err)


def _interpret(
    arguments: list[str], outputs: list[Path], environment: dict[str, str], cwd: Path, largest_file: int | None
) -> None:
    import numpy as np
    import torch

    assert IMPORTED[-1] in sys.modules, "the server says nothing of what it cannot import"
    os.setsid()
    multiprocessing.set_start_method(None, force=True)  # its own processes start as those of any other
    for number, output in enumerate(outputs, start=1):
        os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND), number)
    os.environ.update(environment)
    if "OMP_NUM_THREADS" in environment:
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))  # read when torch was imported
    os.chdir(cwd)
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    # What nobody seeds must differ from process to process.
    torch.seed()
    np.random.seed()  # noqa: NPY002
    match arguments:
        case ["-m", module, *words]:
            sys.argv = [module, *words]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code, *words]:
            sys.argv = ["-c", *words]
            exec(code, {"__name__": "__main__"})
        case [path, *_]:
            sys.argv = arguments
            sys.path.insert(0, str(Path(path).parent))
            runpy.run_path(path, run_name="__main__")
