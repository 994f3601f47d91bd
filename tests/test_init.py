"""The package's own face."""

import importlib.metadata

import pytest

import proxemic


def test_names_are_imported_when_they_are_used() -> None:
    assert proxemic.__version__ == importlib.metadata.version("proxemic")
    assert proxemic.losses.ArcFaceLoss.__name__ == "ArcFaceLoss"
    assert callable(proxemic.train)
    assert {"train", "losses"} <= set(dir(proxemic))
    with pytest.raises(AttributeError, match="no attribute 'los'"):
        _ = proxemic.los  # type: ignore[attr-defined]
