"""The structure of the repository: who imports whom, what packages say they are for, and whether tests mirror src."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from proxemic.cli import COMMANDS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "proxemic"
TESTS = ROOT / "tests"

# Modules beside the rooms, which every room may import and which import only each other.
COMMON = {
    "addresses", "allocator", "arguments", "arrays", "arrow", "caches", "conditions", "errors", "extras",
    "files", "image_formats", "lazy", "locks", "outputs", "plots", "precision", "ranges", "safe_path",
    "spelling", "tables", "threads", "typed_json",
}  # fmt: skip
# Which rooms a room may import, within functions too.
ROOMS = {
    "distributed": set(),
    "optim": set(),
    "published": set(),
    "metrics": set(),
    "models": set(),
    "data": set(),
    "losses": {"distributed", "optim"},
    "analysis": {"losses", "metrics"},
    "metrics/lightning": {"data", "distributed", "metrics", "runs"},
    "runs": {"data", "distributed", "metrics", "models"},
    "training": {"analysis", "data", "distributed", "losses", "metrics", "models", "optim", "published", "runs"},
    "recipes": {"data", "losses", "runs", "training"},
    "studies": {"analysis", "data", "losses", "metrics", "models", "published", "recipes", "runs", "training"},
    "pages": set(),
    "retrieval": {"analysis", "data", "losses", "metrics", "models", "pages", "recipes", "runs"},
    "serve": {"data", "pages", "retrieval"},
    "report": {"analysis", "data", "metrics", "models", "pages", "studies", "recipes", "retrieval", "runs"},
    "analyze": {"analysis", "data", "losses", "metrics", "studies", "recipes", "training"},
}
# Arrows back up, within functions only, where users give the name of a recipe.
BACK_UP = {"training/train.py": {"recipes"}}
# The command line and the package itself may import every room, and the functions that `proxemic` offers.
ABOVE_ALL = {"cli", "__init__", "__main__"}
FUNCTIONS = {"compare", "evaluate", "reality_check", "tune", "verify"}

# The libraries that these rooms may import at module level; others only within functions.
LIBRARIES = {
    "cli": set(),
    "published": set(),
    "optim": {"torch"},
    "distributed": {"jaxtyping", "safetensors", "torch"},
    "losses": {"jaxtyping", "numpy", "torch"},
    "metrics": {"jaxtyping", "numpy", "torch"},
    "analysis": {"jaxtyping", "numpy", "torch"},
    "models": {"jaxtyping", "numpy", "safetensors", "torch"},
}
# Modules about an optional library, which are imported within functions only.
OPTIONAL = {"losses/pair_memory.py": "pytorch_metric_learning"}


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """The modules that a file imports at run time, and whether importing the file imports them."""

    def walk(node: ast.AST, at_import: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.Import(names=names):
                    yield from ((alias.name, at_import) for alias in names)
                case ast.ImportFrom(level=level, module=module, names=names):
                    assert level == 0, f"{path}:{child.lineno}: a relative import"
                    # `from proxemic import losses` names a room, `from proxemic.losses import ArcFaceLoss` has one.
                    yield from ((f"{module}.{alias.name}", at_import) for alias in names)
                case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                    pass
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                    yield from walk(child, False)
                case _:
                    yield from walk(child, at_import)

    return [*walk(ast.parse(path.read_text()), True)]


def room_of(path: Path) -> str:
    """The package or module directly under proxemic that holds a file, or a room within it."""
    parts = path.relative_to(SOURCE).parts
    inner = "/".join(parts[:2])
    return inner if inner in ROOMS else parts[0].removesuffix(".py")


def test_rooms_import_only_the_rooms_below_them() -> None:
    known = {room_of(path) for path in SOURCE.rglob("*.py")}
    assert known == ROOMS.keys() | COMMON | ABOVE_ALL
    against = []
    for path in SOURCE.rglob("*.py"):
        room = room_of(path)
        below = known | FUNCTIONS if room in ABOVE_ALL else ROOMS.get(room, set()) | COMMON | {room}
        back_up = BACK_UP.get(path.relative_to(SOURCE).as_posix(), set())
        for module, at_import in imports(path):
            allowed = {"__version__", *below, *(set() if at_import else back_up)}
            first, _, rest = module.partition(".")
            if first == "proxemic" and rest and rest.partition(".")[0] not in allowed:
                against.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not against


def test_rooms_import_no_libraries_that_they_should_do_without() -> None:
    against = []
    for path in SOURCE.rglob("*.py"):
        if (allowed := LIBRARIES.get(room_of(path))) is None:
            continue
        for module, at_import in imports(path):
            first = module.partition(".")[0]
            extra = OPTIONAL.get(path.relative_to(SOURCE).as_posix())
            if at_import and first not in {"proxemic", extra, *sys.stdlib_module_names, *allowed}:
                against.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not against


def test_the_arrows_have_no_circles() -> None:
    placed: set[str] = set()
    while ready := {room for room, below in ROOMS.items() if room not in placed and below <= placed}:
        placed |= ready
    assert placed == ROOMS.keys()


@pytest.mark.parametrize("part", ["docstring", "__all__"])
def test_every_package_says_what_it_is_for_and_what_it_offers(part: str) -> None:
    without = []
    for path in SOURCE.rglob("__init__.py"):
        tree = ast.parse(path.read_text())
        names = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        if not (ast.get_docstring(tree) if part == "docstring" else "__all__" in names):
            without.append(str(path.parent.relative_to(ROOT)))
    assert not without


def test_tests_mirror_the_source() -> None:
    """A test file has the name of a module, a package or a command, or its docstring says what it tests."""
    without = []
    commands = {name.replace("-", "_") for name in COMMANDS}
    for path in TESTS.rglob("test_*.py"):
        mirrored = SOURCE / path.relative_to(TESTS).parent / path.stem.removeprefix("test_")
        modules = [mirrored.with_name(f"{prefix}{mirrored.name}.py") for prefix in ("", "_")]
        of_its_package = mirrored.name == mirrored.parent.name and mirrored.parent.is_dir()
        of_a_command = path.parent.name == "cli" and mirrored.name in commands
        named = of_its_package or of_a_command or mirrored.is_dir() or any(module.is_file() for module in modules)
        if not named and not ast.get_docstring(ast.parse(path.read_text())):
            without.append(str(path.relative_to(TESTS)))
    assert not without


def test_pictures_are_opened_in_known_formats_only() -> None:
    """Pillow would open any format, and start other programs for some."""
    for path in SOURCE.rglob("*.py"):
        for call in re.findall(r"Image\.open\((?:[^()]|\([^()]*\))*\)", path.read_text(encoding="utf-8")):
            assert "formats=" in call, f"{path}: {call}"
