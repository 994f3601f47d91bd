"""The docstrings of proxemic as Markdown, for mkdocstrings."""

import re
from typing import Any

from griffe import Extension, Object

# A prompt, and all lines up to the next empty one: the example, and what it prints.
_EXAMPLE = re.compile(r"^( *)(>>> .*(?:\n\1\S.*|\n\1 +\S.*)*)", re.MULTILINE)


class Examples(Extension):
    """Puts examples into fences: a prompt at the beginning of a line is a quotation in Markdown."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(r"\1```pycon\n\1\2\n\1```", obj.docstring.value)
