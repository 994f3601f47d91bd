"""List the public names of proxemic, which are in the ``__all__`` of its packages."""

import ast
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


@dataclass
class Package:
    """The exports of a package.

    Attributes:
        described: Names that are described on its page, with the full name by which they are found there.
        elsewhere: Those that a package above it, or a page of their own, describes, with their full name there.
    """

    described: dict[str, str] = field(default_factory=dict)
    elsewhere: dict[str, str] = field(default_factory=dict)


@cache
def public_names() -> dict[str, Package]:
    """Return all packages with exports by name, parents first."""
    packages: dict[str, Package] = {}
    first: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("__init__.py"), key=lambda path: (len(path.parts), path)):
        name = ".".join(path.parent.relative_to(SOURCE).parts)
        for public in _exported(name):
            package = packages.setdefault(name, Package())
            origin = _origin(name, public)
            # By its short name, griffe would find the module of that name instead of the function.
            hidden = origin.endswith(f".{public}.{public}") or (path.parent / f"{public}.py").is_file()
            full = origin if hidden else f"{name}.{public}"
            if _is_package(origin):
                package.elsewhere[public] = origin
            elif origin in first:
                package.elsewhere[public] = first[origin]
            else:
                package.described[public] = first[origin] = full
    return dict(sorted(packages.items()))


def _exported(package: str) -> list[str]:
    for node in _tree(package).body:
        match node:
            case (
                ast.Assign(targets=[ast.Name("__all__")], value=value)
                | ast.AnnAssign(target=ast.Name("__all__"), value=ast.expr() as value)
            ):
                return ast.literal_eval(value)
    return []


def _origin(package: str, name: str) -> str:
    """Return the full name of an object where it is defined."""
    if _is_package(f"{package}.{name}") and not _imported_from(package, name):
        return f"{package}.{name}"
    module = _imported_from(package, name)
    if module is None or not _is_package(module):
        return f"{module or package}.{name}"
    return _origin(module, name)


def _imported_from(package: str, name: str) -> str | None:
    for node in ast.walk(_tree(package)):
        if isinstance(node, ast.ImportFrom) and any((item.asname or item.name) == name for item in node.names):
            return node.module if node.module != package else None
    return None


def _is_package(name: str) -> bool:
    return (SOURCE / name.replace(".", "/") / "__init__.py").is_file()


@cache
def _tree(package: str) -> ast.Module:
    return ast.parse((SOURCE / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8"))
