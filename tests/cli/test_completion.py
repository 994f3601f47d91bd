"""``proxemic --print-completion``, in a real shell where there is one."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from command_line import Here
from proxemic.cli import build_parser, completion

# Metavars that take neither a file nor the name of a recipe.
OTHERS = {
    *("ADDRESS", "A,B", "B", "C", "COLUMN", "COLUMN=VALUE", "D", "DEVICE", "FUNCTIONS", "HOST", "K", "KEY", "LIST"),
    *("KEY[,KEY...]=LIST", "METRIC", "N", "N|LIST", "NAME", "NAME=NUMBER", "NAMES", "PATTERN", "R", "RATES", "S"),
    *("SIZE", "STUDY", "TEXT", "TOKEN", "URL", "W", "X"),
}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "proxemic.bash"
    path.write_text(completion.completion(build_parser(whole=True), "bash"))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my photos").mkdir()
    (tmp_path / "my photos" / "cat one.png").touch()
    (tmp_path / "mine.yaml").touch()
    return tmp_path


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["reco"], {"recognize"}),
        (["gallery", "del"], {"delete"}),
        (["train", "--reci"], {"--recipe"}),
        (["train", "--training.class_b"], {"--training.class_balance"}),
        (["search", "shop", "q.png", "--format", "j"], {"json"}),
        (
            ["recipes", "show", "cars/proxy-nca"],
            {"cars/proxy-nca", "cars/proxy-nca-plus-plus", "cars/proxy-nca-plus-plus-512"},
        ),
        (["train", "--recipe", "m"], {"mine.yaml", "my photos"}),
        (["compare", "own", "mi"], {"mine.yaml"}),
        (["search", "my"], {"my photos"}),
        (["search", "shop", "my photos/c"], {"my photos/cat one.png"}),
        (["train", "--out", "m"], {"my photos"}),
    ],
)
def test_what_bash_offers(script: Path, folder: Path, words: list[str], offered: set[str]) -> None:
    code = """
source "$1"; shift
COMP_WORDS=(proxemic "$@"); COMP_CWORD=$#
$(complete -p proxemic | sed -E 's/.*-F ([^ ]+) .*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""
    done = subprocess.run(["bash", "-c", code, "bash", script, *words], cwd=folder, capture_output=True, text=True)
    assert {*done.stdout.splitlines()} == offered, done.stderr


def test_the_other_shells(here: Here) -> None:
    assert re.search(r"_alternative 'recipes:recipe:\([^)]*\bcars/arcface ", here("--print-completion", "zsh").stdout)
    assert re.search(r"n/--recipe/\([^)]*\bcars/arcface ", here("--print-completion", "tcsh").stdout)
    assert "'fish'" in here("--print-completion", "fish").stderr
    for name, check in (("bash", ["-n"]), ("zsh", ["-n"]), ("tcsh", ["-n"])):
        if (shell := shutil.which(name)) is not None:
            text = completion.completion(build_parser(whole=True), name)
            assert subprocess.run([shell, *check], input=text, capture_output=True, text=True).stderr == ""


def test_every_argument_is_known_to_take_files_or_none() -> None:
    """A new command whose argument has another name says here what it takes."""
    known = {*completion._RECIPES, *completion._FOLDERS, *completion._FILES, *OTHERS}
    named = {action.metavar for action in completion.arguments_of(build_parser(whole=True)) if action.choices is None}
    assert {name for name in named if isinstance(name, str)} <= known
