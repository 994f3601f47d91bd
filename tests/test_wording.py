"""Wording: idioms that are not plain English appear nowhere in the source and the documentation."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUFFIXES = {".css", ".csv", ".html", ".js", ".json", ".md", ".py", ".yaml"}
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
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
    """Return each idiom with the words around it."""
    flat = LINE_END.sub(" ", text)
    return [f"…{flat[max(0, m.start() - 40) : m.end() + 40]}…" for m in ANY.finditer(flat)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Queries are\n    # of some class.", True),
        ('f"vectors are no "\n    f"pictures"', True),
        ("The network as it came.", True),
        ("There are no others; the two cannot be told apart, are no longer equal, and x is of type str.", False),
        ("What is off, and are nouns.", False),
    ],
)
def test_idioms_are_found_over_the_ends_of_lines(text: str, found: bool) -> None:
    assert bool(find_idioms(text)) is found


@pytest.mark.parametrize("part", ["src", "docs", "pages"])
def test_plain_english(part: str) -> None:
    """The keys of `IDIOMS` have plain equivalents, which are its values."""
    files = PAGES if part == "pages" else [path for path in (ROOT / part).rglob("*") if path.suffix in SUFFIXES]
    written = [path for path in files if not path.is_relative_to(ROOT / "docs" / "experiments" / "kept")]
    assert written
    found = [f"{path.relative_to(ROOT)}: {idiom}" for path in written for idiom in find_idioms(path.read_text("utf-8"))]
    assert not found, "\n".join(found)
