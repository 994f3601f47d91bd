"""What the tests of losses share."""

from collections.abc import Iterator

import pytest
from jaxtyping import config


@pytest.fixture(autouse=True)
def _there(on_device: None) -> None:
    """On the device that --device names."""


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Types are not checked, as in a user's process: the losses themselves refuse what is wrong."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
