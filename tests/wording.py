"""Find idioms that are not plain English, and on pages words that are not the field's; `make lint` calls it."""

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
# Words of our own on pages, and the field's.
WORDS = {
    r"pictures?": "image; photo in guides for photos; figure",
    r"joined batch": "global batch",
    r"own prox(?:y|ies)(?! (?:alone|of))": "target proxy",
    r"values? (?:of|per) samples?": "per-sample loss",
    r"choos(?:es?|ing) (?:the|an) epoch|chosen epoch|epoch was chosen": "select the epoch, model selection, validation",
    r"(?:was|were) searched with|searched values|can search [KγT]|search(?:es)? of hyper-parameters": "tune",
    r"beside": "next to, compared with",
    r"numbers of (?:an|each|the) embeddings?|first (?:\d+|n) numbers": "dimensions",
    r"as a part of (?:its|their|the)": "fraction",
    r"learned": "learnt",
    r"address(?:es)? (?:of a file|that fsspec)|behind an address|at addresses": "URL",
    r"siblings?|plays? the unknown|verdict|doubts?": "similar classes; is used as unknown; summary; suspected label",
    r"streams over|steps? the rows": "works in chunks of; updates only the sampled proxies",
}
# Of src, the folders whose docstrings, comments and messages are checked, too.
CLEAN = ("cli", "data", "pages", "recipes", "runs", "studies")
# Phrases of prose there: the words above, but for those that code has as names.
NAMES = ("pictures?", "beside", "siblings?|plays? the unknown|verdict|doubts?")
PHRASES = {
    **{word: field for word, field in WORDS.items() if word not in NAMES},
    r"(?:an?|each|no|of|the) pictures?": "image; photo in commands for photos; plot",
    r"beside (?:an?|its?|ours|the)": "next to, compared with",
    r"(?:at|behind) (?:an )?address(?:es)?": "URL",
    r"as a part of|share of": "fraction",
    r"epoch chosen": "epoch selected",
    r"trials? of a search|search(?:es)? for hyper-parameters|searched (?:dimensions|keys|values)": "study, tune",
}
ANY = re.compile(rf"\b(?:{'|'.join(IDIOMS)})\b", re.IGNORECASE)
ANY_WORD = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
ANY_PHRASE = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE)
# Code, link targets and comments of pages, which keep the names that commands and functions have.
NOT_PROSE = re.compile(r"^ *(`{3,}).*?^ *\1|`[^`\n]+`|\]\([^)\n]*\)|<!--.*?-->", re.DOTALL | re.MULTILINE)
# Written by scripts of docs/experiments, or quoted from papers.
REPORTS = ("benchmarks.md", "claims.md", "errata.md", "papers.md", "experiments", "results", "results.md")
# A sentence goes on over the ends of lines, comments and the parts of a string.
LINE_END = re.compile(r"""["']?[ \t]*\n[ \t]*(?:\#+|//|\*|>|[rf]*["'])?[ \t]*""")


def find_idioms(text: str) -> list[str]:
    """Return each idiom with the words around it.

    >>> find_idioms('"pictures are no "' + chr(10) + '"vectors; the two are no longer equal"')
    ['…"pictures are no  vectors; the two are no longer equal"…']
    """
    flat = LINE_END.sub(" ", text)
    return [f"…{flat[max(0, m.start() - 40) : m.end() + 40]}…" for m in ANY.finditer(flat)]


def find_words(page: str, words: re.Pattern[str] = ANY_WORD) -> list[str]:
    """Return each word of our own in the prose of a page or a source file, with the words around it.

    >>> find_words("A picture beside `pictures`")
    ['…A picture beside  …', '…A picture beside  …']
    """
    flat = LINE_END.sub(" ", NOT_PROSE.sub(" ", page))
    return [f"…{flat[max(0, m.start() - 40) : m.end() + 40]}…" for m in words.finditer(flat)]


def main() -> int:
    """Print what is found; return 1 if there is any."""
    files = [path for part in ("src", "docs") for path in (ROOT / part).rglob("*") if path.suffix in SUFFIXES]
    found = [
        f"{path.relative_to(ROOT)}: {idiom}"
        for path in (*ROOT.glob("*.md"), *files)
        if path.name != "CHANGELOG.md"
        for idiom in find_idioms(path.read_text("utf-8"))
    ]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    found += [
        f"{path.relative_to(ROOT)}: {word}"
        for path in pages
        if path.name != "CHANGELOG.md" and not {*path.relative_to(ROOT).parts} & {*REPORTS}
        for word in find_words(path.read_text("utf-8"))
    ]
    sources = [path for path in files if path.suffix != ".json" and {*path.relative_to(ROOT).parts[2:3]} & {*CLEAN}]
    found += [
        f"{path.relative_to(ROOT)}: {phrase}"
        for path in sources
        for phrase in find_words(path.read_text("utf-8"), ANY_PHRASE)
    ]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
