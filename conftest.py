"""What every test and docstring example may use."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _examples(doctest_namespace: dict[str, object]) -> None:
    """Docstring examples name torch without importing it, as the code around them does."""
    doctest_namespace["torch"] = torch
