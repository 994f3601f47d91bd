"""Convert the docstrings of proxemic to Markdown, for mkdocstrings."""

import re
from typing import Any

from formulas import as_mathml
from griffe import Extension, Object

# A prompt, and all lines up to the next empty one: the example, and what it prints.
_EXAMPLE = re.compile(r"^( *)(>>> .*(?:\n\1\S.*|\n\1 +\S.*)*)", re.MULTILINE)


_FORMULA = re.compile(r"^( *)\$\$(.*?)\$\$", re.MULTILINE | re.DOTALL)


class Examples(Extension):
    """Put examples into fences, because Markdown quotes prompts, and convert formulas to MathML."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = _EXAMPLE.sub(r"\1```pycon\n\1\2\n\1```", obj.docstring.value)
            obj.docstring.value = _FORMULA.sub(lambda found: f"\n{found[1]}{as_mathml(found[2])}\n", text)
