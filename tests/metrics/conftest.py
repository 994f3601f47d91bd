"""What the tests of metrics share."""

import pytest


@pytest.fixture(autouse=True)
def _there(on_device: None) -> None:
    """On the device that --device names."""
