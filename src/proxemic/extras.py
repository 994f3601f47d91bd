"""What to say when an optional dependency is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["extra"]


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Imports in this block belong to ``proxemic[name]``: a missing one says what to install.

    >>> with extra("train"):
    ...     import a_package_that_is_not_there
    Traceback (most recent call last):
        ...
    ModuleNotFoundError: a_package_that_is_not_there is not installed: install it with pip install 'proxemic[train]'.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("proxemic"):
            raise
        missing = error.name.partition(".")[0]
        message = f"{missing} is not installed: install it with pip install 'proxemic[{name}]'."
        raise ModuleNotFoundError(message, name=missing) from error
