"""The complete model of a reality check trains for as many epochs as its folds needed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proxemic.studies.reality_check.cross_validation import CrossValidation


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (4, "--optim.lr 0.1 --second_phase null --training.epochs 5"),
        (7, "--optim.lr 0.1 --second_phase.optim.lr 0.2 --second_phase.epochs 5 --training.epochs 10"),
    ],
)
def test_without_a_second_phase_its_values_are_left_out(epoch: int, expected: str) -> None:
    base = {"second_phase": {"epochs": 3}, "training": {"epochs": 8}}
    validation: Any = SimpleNamespace(base=base, out=Path("out"), first_epochs=5)
    flags = ["--optim.lr", "0.1", "--second_phase.optim.lr", "0.2"]
    assert " ".join(CrossValidation._complete(validation, [{"epoch": epoch}], flags, Path("f")).flags) == expected
