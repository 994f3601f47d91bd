"""Which tests are slow: those that start processes or a browser."""

import types

import pytest

MODULES = {"browser", "multiprocessing", "processes", "servers", "servings", "subprocess", "together", "warm"}
COMMANDS = {"proxemic", "start", "start_with_workers", "warm_proxemic", "warm_start"}


def is_slow(test: pytest.Function) -> bool:
    """Return whether a test, or a fixture that it alone or its module uses, starts processes."""
    fixtures = [found[-1] for found in getattr(test, "_fixtureinfo").name2fixturedefs.values()]  # noqa: B009
    functions = [fixture.func for fixture in fixtures if fixture.scope != "session"]
    return "browse" in test.fixturenames or any(_starts(function, set()) for function in [test.function, *functions])


def _starts(function: object, seen: set[str]) -> bool:
    """Follow the names that a function uses, and those that the functions of its module use."""
    if not isinstance(function, types.FunctionType) or function.__name__ in seen:
        return False
    seen.add(function.__name__)
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", "")
        if module in MODULES or (module == "command_line" and name in COMMANDS):
            return True
        if getattr(value, "__globals__", None) is function.__globals__ and _starts(value, seen):
            return True
    return False
