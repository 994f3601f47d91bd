"""Shared fixtures of the tests of losses."""

from collections.abc import Iterator

import pytest
from jaxtyping import config


@pytest.fixture(autouse=True)
def _there(on_device: None) -> None:
    """Run on the device that --device names."""


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Turn off type checks, as in a user's process, so that the losses must reject wrong values themselves."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
