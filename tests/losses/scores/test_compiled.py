"""The compiler: every loss without a break of its graph, whole or chunk by chunk, and what is said where it fails."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from losses.test_losses import CASES
from proxemic.losses.scores.compiled import Compiled

pytestmark = pytest.mark.cpu


def test_every_loss_compiles_whole_and_by_chunks() -> None:
    tests = Path(__file__).parents[2]
    command = [sys.executable, Path(__file__).with_name("compiling.py")]
    env = os.environ | {"PYTHONPATH": f"{tests}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    env["TORCHINDUCTOR_VEC_ISA_OK"] = "1"  # else the compiler builds programs, for seconds, that try the processor
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    last = f"{len(CASES) + 12} checks, 0 faults"
    assert result.stdout.splitlines()[-1:] == [last], result.stdout + result.stderr


def test_a_function_runs_uncompiled_after_one_warning_where_the_compiler_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=fail))
    doubled = Compiled(lambda x: 2 * x)
    with pytest.warns(UserWarning, match=r"^The loss runs uncompiled, as torch.compile failed \(.*no compiler") as said:
        assert [doubled(torch.ones(())).item() for _ in range(2)] == [2, 2]
    assert len(said) == 1
