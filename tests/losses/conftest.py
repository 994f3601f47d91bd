"""Shared fixtures of the tests of losses."""

import pytest


@pytest.fixture(autouse=True)
def _there(on_device: None) -> None:
    """Run on the device that --device names."""
