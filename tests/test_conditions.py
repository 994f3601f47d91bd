"""Conditions as users write them."""

import pytest

from proxemic.conditions import read_conditions
from proxemic.errors import UserError


def test_conditions() -> None:
    assert read_conditions(["label=a=b", "label=c", "shop="]) == {"label": ["a=b", "c"], "shop": [None, ""]}
    with pytest.raises(UserError, match="--where is '=x', but must be COLUMN=VALUE"):
        read_conditions(["=x"], "--where")
