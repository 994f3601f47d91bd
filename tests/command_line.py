"""The command line: as a user runs it, in a process that need not import, and in this one."""

import csv
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import warm
from proxemic.cli import main
from proxemic.errors import UserError
from proxemic.studies.jobs import Job, Workers, run_job

TERMINAL = {"COLUMNS": "120", "NO_COLOR": "1"}
ENVIRONMENT = {**os.environ, **TERMINAL}


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "proxemic", *map(str, words)]


def proxemic(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """In a new interpreter, as a user has it; most of its time goes into imports."""
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=300, env=ENVIRONMENT, **options)


def warm_proxemic(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that need not import: for results, limits and files."""
    return warm.run("-m", "proxemic", *words, environment=TERMINAL, **options)


def warm_start(*words: str | Path) -> warm.Process:
    """The same, to be interrupted while it runs."""
    return warm.Process("-m", "proxemic", *words, environment=TERMINAL)


FORKED_WORKERS = """
import multiprocessing, sys
from types import SimpleNamespace
from proxemic.cli import main
from proxemic.errors import UserError
from proxemic.studies.jobs import Job, Workers, run_job
from proxemic.studies import jobs

fork = SimpleNamespace(get_context=lambda _: multiprocessing.get_context("fork"))
jobs.multiprocessing = SimpleNamespace(**vars(multiprocessing) | vars(fork))
sys.exit(main())
"""


def start_with_workers(*words: str | Path, threads: int = 1) -> warm.Process:
    """The same, with worker processes forked from it: their imports would take most of a test."""
    environment = {**TERMINAL, "OMP_NUM_THREADS": str(threads)}
    return warm.Process("-c", FORKED_WORKERS, *words, environment=environment)


def run_here(workers: Workers, jobs: Sequence[Job], *, on_result: Any, on_failure: Any) -> None:
    """Replace `Workers.run` by a loop without processes, which take seconds to start."""
    for job in jobs:
        try:
            found = run_job(job, report=str)
        except UserError as error:
            on_failure(job, error)
        else:
            on_result(job, found)


FIRST_LINE = re.compile(r"[A-Z][a-z]+ing\b")
"""How the line begins that says at once, on standard error, what a command is about to do."""


class Here:
    """The same in this process, without pictures: another process takes seconds."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys, self.monkeypatch = capsys, monkeypatch

    def __call__(
        self, *words: str | Path, cwd: Path | None = None, pictures: bool = False
    ) -> subprocess.CompletedProcess[str]:
        import quick  # not with this file: what tests losses on a GPU has no Lightning

        self.capsys.readouterr()
        with self.monkeypatch.context() as patch:
            (quick.draw_pictures if pictures else quick.save_vectors_alone)(patch)
            if cwd is not None:
                patch.chdir(cwd)
            patch.setenv("COLUMNS", "120")
            try:
                code = main([str(word) for word in words])
            except SystemExit as end:
                code = int(end.code or 0)
        output = self.capsys.readouterr()
        return subprocess.CompletedProcess(list(map(str, words)), code, output.out, output.err)


def start(*words: str | Path) -> subprocess.Popen[str]:
    """The same, to be interrupted while it runs."""
    return subprocess.Popen(
        command(*words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )


def assert_refused(result: subprocess.CompletedProcess[str], words: Sequence[str]) -> None:
    """Exit code 2 and one sentence, with these words, on standard error, but for the first line; no traceback."""
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    if lines and FIRST_LINE.match(lines[0]):
        del lines[0]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("proxemic")
    for word in words:
        assert word in lines[0], lines[0]


def cells(output: str) -> list[list[str]]:
    """The cells of the rows of all tables that a command prints, without their headers."""
    return [[*map(str.strip, line.split("│")[1:-1])] for line in output.splitlines() if line.startswith("│")]


def csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
