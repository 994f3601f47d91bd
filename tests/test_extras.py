"""Messages about missing modules."""

import pytest

from proxemic.extras import optional_dependency


def test_a_missing_module_of_ours_is_no_missing_extra() -> None:
    with (
        pytest.raises(ModuleNotFoundError, match=r"^No module named 'proxemic\.nothing'$"),
        optional_dependency("train"),
    ):
        import proxemic.nothing  # type: ignore[import-not-found] # noqa: F401
