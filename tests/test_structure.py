"""The structure of the repository: who imports whom, what packages say they are for, and whether tests mirror src."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxemic.cli import COMMANDS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "proxemic"
TESTS = ROOT / "tests"

# Modules beside the rooms, which every room may import and which import only each other.
COMMON = {
    "addresses", "allocator", "arguments", "arrays", "conditions", "errors", "extras", "files", "image_formats",
    "locks", "plots", "precision", "safe_path", "tables", "threads", "typed_json",
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
    "runs": {"data", "distributed", "metrics", "models"},
    "training": {"analysis", "data", "distributed", "losses", "metrics", "models", "optim", "published", "runs"},
    "recipes": {"data", "losses", "runs", "training"},
    "studies": {"data", "losses", "metrics", "models", "published", "recipes", "runs", "training"},
    "pages": set(),
    "retrieval": {"analysis", "data", "metrics", "models", "pages", "recipes", "runs"},
    "serve": {"data", "pages", "retrieval"},
    "report": {"analysis", "data", "metrics", "models", "pages", "studies", "recipes", "retrieval", "runs"},
    "analyze": {"analysis", "data", "losses", "metrics", "studies", "recipes", "training"},
}
# Arrows back up, within functions only, where users give the name of a recipe.
BACK_UP = {"training/train.py": {"recipes"}}
# The command line and the package itself may import every room, and the functions that `proxemic` offers.
ABOVE_ALL = {"cli", "__init__", "__main__"}
FUNCTIONS = {"compare", "evaluate", "plan", "reality_check", "tune", "verify"}

# What these rooms import of other people's when they are imported themselves; anything else only within functions.
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

# Test files that test no single module or package, and what they test in its place.
WITHOUT_SOURCE = {
    "cli/test_commands.py": "all commands on good input",
    "cli/test_dataset_faults.py": "every data set, damaged, through the command line",
    "cli/test_evaluate_runs.py": "proxemic evaluate on runs",
    "cli/test_own_images.py": "all commands on a folder of images",
    "cli/test_own_vectors.py": "all commands on a file of vectors",
    "cli/test_train_refuses.py": "proxemic train on bad input",
    "data/test_determinism.py": "everything of data that a seed decides",
    "distributed/test_equality.py": "every loss on several processes",
    "distributed/test_steps.py": "training steps on several processes",
    "distributed/test_unlike.py": "processes that differ",
    "losses/scores/test_compiled.py": "every loss under torch.compile",
    "losses/test_weights.py": "every loss: values and weights per sample",
    "recipes/test_every_recipe.py": "the recipes themselves",
    "recipes/test_extends.py": "recipes that extend others",
    "recipes/test_messages.py": "all messages about recipes and flags",
    "recipes/test_published_rows.py": "the recipes themselves, against the papers",
    "recipes/test_untrusted.py": "reading of hostile recipes",
    "serve/test_page.py": "src/proxemic/serve/page.html and page.js",
    "serve/test_stores.py": "the whole server over databases",
    "test_browser.py": "what the tests of pages stand on",
    "test_benchmarks.py": "benchmarks/",
    "test_distributions.py": "what make dist makes",
    "test_docs.py": "docs/",
    "test_experiments.py": "docs/experiments",
    "test_extending.py": "docs/extending.md",
    "test_found_damage.py": "damaged state files and numbers beyond reason, in every command",
    "test_found_flags.py": "flags and words that users mistype, in every command",
    "test_found_output.py": "what every command prints, and its tables",
    "test_found_serving.py": "servers and exports that end at the wrong moment",
    "test_found_tables.py": "all readers of tables alike",
    "test_init.py": "proxemic/__init__.py",
    "test_imports.py": "importing each package",
    "test_migrating.py": "docs/migrating",
    "test_licences.py": "docs/licences.md",
    "test_papers.py": "the equations in docs/papers.md",
    "test_readme.py": "README.md",
    "test_site.py": "mkdocs.yml and docs/site/",
    "test_centres.py": "docs/experiments/centres.py",
    "test_claims.py": "docs/experiments/claims.py",
    "test_structure.py": "the whole repository",
    "test_surface.py": "what users can reach",
    "test_tutorials.py": "docs/tutorials and docs/make_notebooks.py",
    "training/test_extending.py": "runs that are extended by more epochs",
    "training/test_head_start.py": "heads and proxies that begin at the training images",
    "training/test_kills.py": "a training that is killed at any moment",
    "training/test_fine_tuning.py": "model.train, model.lora and others, in runs",
    "training/test_plateau.py": "phases that end at a plateau",
    "training/test_warm_start.py": "runs that begin with the weights of another",
    "training/test_waiting.py": "every loss, optimisers and training: what waits for a GPU",
}


def imports(path: Path) -> Iterator[tuple[str, bool]]:
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

    yield from walk(ast.parse(path.read_text()), True)


def room_of(path: Path) -> str:
    """The package or module directly under proxemic that holds a file."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


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
    without = set()
    commands = {name.replace("-", "_") for name in COMMANDS}
    for path in TESTS.rglob("test_*.py"):
        mirrored = SOURCE / path.relative_to(TESTS).parent / path.stem.removeprefix("test_")
        modules = [mirrored.with_name(f"{prefix}{mirrored.name}.py") for prefix in ("", "_")]
        of_its_package = mirrored.name == mirrored.parent.name and mirrored.parent.is_dir()
        of_a_command = path.parent.name == "cli" and mirrored.name in commands
        if not (of_its_package or of_a_command or mirrored.is_dir() or any(module.is_file() for module in modules)):
            without.add(str(path.relative_to(TESTS)))
    assert not without - WITHOUT_SOURCE.keys(), "name these after their module or package, or say above what they test"
    assert not WITHOUT_SOURCE.keys() - without, "these are gone, or have a module of their name"


def test_pictures_are_opened_in_known_formats_only() -> None:
    """Pillow would open any format, and start other programs for some."""
    for path in SOURCE.rglob("*.py"):
        for call in re.findall(r"Image\.open\((?:[^()]|\([^()]*\))*\)", path.read_text(encoding="utf-8")):
            assert "formats=" in call, f"{path}: {call}"
