"""Import the object that a recipe names, without running untrusted code.

Importing a module runs it. The user has chosen the installed modules, but perhaps not a file in the current directory,
which may have come with a recipe from somewhere else. So only commands that train import from that directory.
"""

import difflib
import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from itertools import accumulate
from pathlib import Path

from proxemic.errors import UserError


def find_object(key: str, path: str, fits: Callable[[object], bool], *, own_code: bool) -> object:
    """Return the object with the import path given for a key of a recipe.

    ``own_code`` allows modules of the current directory, which is added to the path when a recipe names one. A
    `UserError` suggests the most similar name of an object for which ``fits`` is true.
    """
    module_name, _, name = path.rpartition(".")
    for part in accumulate(module_name.split("."), "{}.{}".format):
        if part not in sys.modules:
            _import(key, path, part, own_code)
    module = sys.modules[module_name]
    if name in vars(module) or hasattr(module, name):
        return getattr(module, name)
    late = [item for item in getattr(module, "__all__", ()) if item not in vars(module)]
    names = [*late, *(key for key, thing in vars(module).items() if not key.startswith("_") and fits(thing))]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    meant = f": did you mean {near[0]}?" if near else f", but {', '.join(names)}." if 0 < len(names) < 10 else "."
    raise UserError(f"{key} is {path}, but {module_name} has no {name}{meant}")


def may_name(path: str) -> bool:
    """Return whether a text may be imported; the standard library may not, as importing some modules has effects."""
    parts = path.split(".")
    is_path = len(parts) > 1 and all(part.isidentifier() for part in parts)
    return is_path and parts[0] not in sys.stdlib_module_names and "__main__" not in parts


def is_own(name: str) -> bool:
    """Return whether an imported module is the user's own, neither installed nor of the standard library."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if name.partition(".")[0] in (*sys.stdlib_module_names, "proxemic") or file is None:
        return False
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return not any(Path(file).is_relative_to(item) for item in installed)


def _import(key: str, path: str, name: str, own_code: bool) -> None:
    try:
        spec = importlib.util.find_spec(name)  # the packages around it are imported
    except (ImportError, ValueError):
        spec = None
    beside = PathFinder.find_spec(name, [str(Path.cwd())]) if spec is None and "." not in name else None
    if not own_code and (beside or (spec and "." not in name and _is_here(spec))):
        raise UserError(
            f"{key} is {path}, whose module is in the current directory; only commands that train import from there: "
            "if you trust it, set PYTHONPATH=. for this command."
        )
    if beside:
        sys.path.append(str(Path.cwd()))
        spec = beside
    if spec is None:
        parent = name.rpartition(".")[0]
        where = f"{parent} has no module {name.rpartition('.')[2]}" if parent else f"no module {name} is found"
        hint = "" if parent else ": install its package, run the command in its folder, or put that on PYTHONPATH"
        raise UserError(f"{key} is {path}, but {where}{hint}.")
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise UserError(f"{key} is {path}, but importing {name} fails: {_message(error)}") from error


def _is_here(spec: ModuleSpec) -> bool:
    """Return whether a module is found in the current directory, without PYTHONPATH naming it."""
    chosen = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    places = spec.submodule_search_locations or ([spec.origin] if spec.has_location else [])
    return not any(map(_is_current, chosen)) and any(_is_current(Path(place or "").parent) for place in places)


def _is_current(folder: str | Path) -> bool:
    return Path(folder).is_dir() and Path(folder).samefile(Path.cwd())


def _message(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        file, line, message = error.filename, error.lineno, error.msg
    else:
        file, line, *_ = traceback.extract_tb(error.__traceback__)[-1]
        message = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {message}' if message else ''} (line {line} of {file})."
