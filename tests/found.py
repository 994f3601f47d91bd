"""Marks tests of what users and attackers found and is not yet cured; the mark goes with the cure."""

import pytest


def not_yet(point: int, why: str) -> pytest.MarkDecorator:
    """Expect a failure until the point of the list is cured."""
    return pytest.mark.xfail(strict=True, reason=f"issue 47.{point}: {why}")
