"""Find idioms in the source and the documentation that are not plain English; `make lint` calls it."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUFFIXES = {".css", ".csv", ".html", ".js", ".json", ".md", ".py", ".yaml"}
# Refused idioms and their replacements.
IDIOMS = {
    r"as it came": "pretrained, before training",
    r"from nothing": "from scratch, untrained",
    r"what is known of": "metadata",
    r"what came of": "result of",
    r"cannot be told(?! apart)": "inconclusive, unknown",
    r"in place of": "instead of",
    r"(?:is|are) of(?! type\b)": "has, have, belongs to, belong to",
    r"(?<!there )are no(?! (?:better|larger|longer|more|nearer|smaller)\b)": "are not",
}
ANY = re.compile(rf"\b(?:{'|'.join(IDIOMS)})\b", re.IGNORECASE)
# A sentence goes on over the ends of lines, comments and the parts of a string.
LINE_END = re.compile(r"""["']?[ \t]*\n[ \t]*(?:\#+|//|\*|>|[rf]*["'])?[ \t]*""")


def find_idioms(text: str) -> list[str]:
    """Return each idiom with the words around it.

    >>> find_idioms('"pictures are no "' + chr(10) + '"vectors; the two are no longer equal"')
    ['…"pictures are no  vectors; the two are no longer equal"…']
    """
    flat = LINE_END.sub(" ", text)
    return [f"…{flat[max(0, m.start() - 40) : m.end() + 40]}…" for m in ANY.finditer(flat)]


def main() -> int:
    """Print the idioms; return 1 if there is any."""
    files = [path for part in ("src", "docs") for path in (ROOT / part).rglob("*") if path.suffix in SUFFIXES]
    found = [
        f"{path.relative_to(ROOT)}: {idiom}"
        for path in (*ROOT.glob("*.md"), *files)
        if path.name != "CHANGELOG.md"
        for idiom in find_idioms(path.read_text("utf-8"))
    ]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
