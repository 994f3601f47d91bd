"""Modules whose ``repr`` shows their arguments."""

import inspect
from functools import partial
from typing import Any, ClassVar, NoReturn, Self

from torch import Tensor, nn


class Described(nn.Module):
    """A module whose ``repr`` shows every argument of its constructor, the defaults included."""

    _made_with: ClassVar[str] = ""

    def __new__(cls, *arguments: Any, **keywords: Any) -> Self:
        module = super().__new__(cls)
        try:
            bound = inspect.signature(cls.__init__).bind(module, *arguments, **keywords)
        except TypeError:  # the constructor will raise it; a copy or an unpickled object brings the text with it
            return module
        bound.apply_defaults()
        texts = [f"{name}={_shown(value)}" for name, value in [*bound.arguments.items()][1:]]
        vars(module)["_made_with"] = ", ".join(texts)
        return module

    def extra_repr(self) -> str:
        return self._made_with

    def __prepare_scriptable__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be scripted: script only the network, which is what you deploy, or compile "
            "the loss with torch.compile."
        )


def _shown(value: Any) -> str:
    if isinstance(value, Described):
        return f"{type(value).__name__}({value.extra_repr()})"
    if isinstance(value, nn.Module):  # PML's modules do not show their arguments but store them under the same names
        names = [name for name in inspect.signature(type(value)).parameters if hasattr(value, name)]
        return f"{type(value).__name__}({', '.join(f'{name}={_shown(getattr(value, name))}' for name in names)})"
    if isinstance(value, partial):
        return f"{_shown(value.func)}({', '.join(f'{name}={_shown(given)}' for name, given in value.keywords.items())})"
    if isinstance(value, Tensor):
        return _shown(value.tolist())
    if isinstance(value, list | tuple):
        if len(value) > 8 and all(isinstance(item, int | float) for item in value):
            return f"[{len(value)} values, {min(value):g} to {max(value):g}]"
        return f"[{', '.join(map(_shown, value))}]"
    return value.__qualname__ if inspect.isroutine(value) or inspect.isclass(value) else repr(value)
