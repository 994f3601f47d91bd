"""torch.compile compiles each kind of scores without a graph break."""

from pathlib import Path

import pytest

import warm

TESTS = Path(__file__).parents[2]


@pytest.mark.cpu
@pytest.mark.slow
def test_each_kind_of_scores_compiles_whole() -> None:
    result = warm.run(Path(__file__).with_name("compiling.py"), cwd=TESTS, timeout=600)
    assert result.stdout.splitlines()[-1:] == ["16 checks, 0 faults"], result.stdout + result.stderr
