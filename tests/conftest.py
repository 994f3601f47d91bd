"""What every test has in common."""

import signal

import pytest
import torch
from hypothesis import settings

# A limit of time for an example measures the machine, and fails on a busy one. The same examples at every run: what
# fails is what was changed. Many others are tried by pytest --hypothesis-profile=explore.
settings.register_profile("any machine", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("any machine")

# Ctrl-C is tested also where a shell has started the tests in the background, which then ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    _seed()


def _seed() -> None:
    """What a test draws is not to depend on the tests before it, which differ with the number of workers."""
    torch.manual_seed(0)
