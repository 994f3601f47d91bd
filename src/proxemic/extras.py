"""Explain how to install missing optional dependencies."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def optional_dependency(name: str) -> Iterator[None]:
    """If an import in the block fails, raise an error that says how to install ``proxemic[name]``."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("proxemic") or "pip install" in str(error):
            raise
        missing = error.name.partition(".")[0]
        said = f"{missing} is not installed: install it with {how_to_install(name)}."
        raise ModuleNotFoundError(said, name=missing) from error


def how_to_install(name: str) -> str:
    """Return the command that installs an extra, from the checkout if the package runs from one."""
    checkout = Path(__file__).parents[2]
    return f"pip install '{checkout if (checkout / 'pyproject.toml').is_file() else 'proxemic'}[{name}]'"
