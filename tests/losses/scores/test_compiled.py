"""torch.compile compiles every loss without a graph break."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from losses.test_losses import CASES


@pytest.mark.cpu
def test_every_loss_compiles_whole() -> None:
    tests = Path(__file__).parents[2]
    command = [sys.executable, Path(__file__).with_name("compiling.py")]
    env = os.environ | {"PYTHONPATH": f"{tests}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    last = f"{len(CASES) + 9} checks, 0 faults"
    assert result.stdout.splitlines()[-1:] == [last], result.stdout + result.stderr
