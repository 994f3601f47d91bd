"""Each flag of a command in the documentation is one of this command, or a key of its recipe."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import surface
from proxemic.recipes.reader import Recipe

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECIPE = ("train", "demo", "evaluate", "compare", "tune", "reality-check", "recipes show")
"""Commands whose further flags are the values of a recipe."""
EVERYWHERE = {"--help", "--traceback", "--version"}
_SECTIONS = {field.name for field in fields(Recipe)}


def documented(text: str) -> list[tuple[str, list[str]]]:
    """Find the commands of a page: their words, and the flags in the rest of the line or of the inline code."""
    text = re.sub(r"\\\n\s*", " ", text)
    found = re.findall(r"(?:^|`|&& |\$ |-m )proxemic ([a-z][^`\n#|&]*)", text, re.MULTILINE)
    return [(line, re.findall(r"(?<!\S)--[A-Za-z][\w.-]*", line)) for line in found]


def unknown(line: str, flags: list[str], known: dict[str, set[str]]) -> list[str]:
    """Return the flags that the command of the line does not have."""
    words = re.findall(r"[a-z-]+", line.partition(" --")[0])[:2]
    command = max((name for name in (" ".join(words), words[0]) if name in known), key=len, default=None)
    if command is None:  # prose, or a name that is not a command
        return flags
    own = known[command] | EVERYWHERE
    if command in RECIPE:
        own |= {flag for flag in flags if flag[2:].partition(".")[0] in _SECTIONS}
    return [flag for flag in flags if flag not in own]


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    flags: dict[str, set[str]] = {}
    for name, about in surface.commands().items():
        texts = {part for key in about for part in key.split(", ") if part.startswith("--")}
        flags[name.removeprefix("proxemic").strip()] = texts
    return flags


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_flags_of_a_page_are_those_of_their_commands(page: Path, known: dict[str, set[str]]) -> None:
    commands = documented(page.read_text(encoding="utf-8"))
    assert {line: wrong for line, flags in commands if (wrong := unknown(line, flags, known))} == {}


def test_a_flag_of_another_command_is_found(known: dict[str, set[str]]) -> None:
    text = (
        "`proxemic verify --recipe …` and\n```\nproxemic embed a \\\n    --model x --rerank\nproxemic search a --k 5\n"
    )
    wrong = [unknown(line, flags, known) for line, flags in documented(text)]
    assert wrong == [["--recipe"], ["--rerank"], ["--k"]]
    assert sum(len(documented(page.read_text(encoding="utf-8"))) for page in PAGES) > 200
