"""The descriptions of arguments in the docstrings of classes."""

import inspect
import re
from collections.abc import Mapping
from functools import cache

_ARGUMENT = re.compile(r"^    \**(\w+)[^:\n]*:((?:.*\n?)(?:     +.*\n?|\n)*)", re.MULTILINE)


@cache
def argument_docs(kind: type) -> Mapping[str, str]:
    """Return what the Google-style docstrings of a class and its bases say of each argument, on one line.

    >>> from proxemic.losses import ArcFaceLoss
    >>> argument_docs(ArcFaceLoss)["scale"]
    'σ > 0.'
    """
    docs: dict[str, str] = {}
    for base in reversed(inspect.getmro(kind)):
        for docstring in (base.__doc__, base.__init__.__doc__):
            _, _, rest = inspect.cleandoc(docstring or "").partition("Args:\n")
            section = re.split(r"\n(?=\S)", rest)[0]
            docs |= {name: " ".join(text.split()) for name, text in _ARGUMENT.findall(section)}
    return docs
