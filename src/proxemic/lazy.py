"""Import the names of a package, and torch, when they are first used.

Importing torch takes seconds, and a search of images whose vectors are kept does not need it. Modules that such a
search imports take `torch` and `Tensor` from here instead.
"""

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from proxemic.extras import optional_dependency

if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor
else:

    class _Torch:
        def __getattr__(self, name: str) -> Any:
            return getattr(import_module("torch"), name)

    torch, Tensor = _Torch(), Any  # jaxtyping checks shape and type of whatever has them


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """Return whether a value is a tensor, without importing torch: before it is imported, there are no tensors."""
    loaded = sys.modules.get("torch")
    return loaded is not None and isinstance(value, loaded.Tensor)


def lazy_names(package: str, extra: str = "train") -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package, which import the names in its ``if TYPE_CHECKING:`` block.

    Type checkers read the same block, so that each name is declared once. If a package is missing, the message names
    the ``extra`` to install.
    """

    @cache
    def modules() -> dict[str, tuple[str, str]]:
        """Map each name to its module and its name there; sub-packages are in the package itself."""
        tree = ast.parse(Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8"))
        (block,) = (node for node in tree.body if isinstance(node, ast.If))
        imports = (node for node in block.body if isinstance(node, ast.ImportFrom))
        return {alias.asname or alias.name: (str(node.module), alias.name) for node in imports for alias in node.names}

    def get(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version  # slow to import

            return version(package)
        if name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = modules()[name]
        with optional_dependency(extra):
            return import_module(f"{package}.{name}") if module == package else getattr(import_module(module), original)

    return get, lambda: sorted({*vars(sys.modules[package]), *modules()})
