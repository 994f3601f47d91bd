"""How the command line reports errors of any command."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from command_line import ENVIRONMENT, Here, assert_refused, command
from proxemic.cli import main


def test_output_may_go_to_any_stream() -> None:
    with redirect_stdout(StringIO()) as output:
        assert main(["recipes", "list"]) == 0
    assert "glyphs-small/proxy-anchor" in output.getvalue()


@pytest.mark.parametrize("words", [("recipes", "list"), ("--print-completion", "bash")])
def test_a_reader_that_has_had_enough_is_no_error(words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command(*words), stdout=writing, stderr=subprocess.PIPE, env=environment, timeout=300)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("error", [RuntimeError("of a library"), ModuleNotFoundError("No module named 'json'")])
def test_a_defect_has_a_traceback(error: Exception, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("proxemic.cli.recipes.list", fail)
    with pytest.raises(type(error), match=str(error)):
        here("recipes", "list")


def test_what_the_user_can_mend_is_a_sentence(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("Symlink loop from 'photos'")

    monkeypatch.setattr("proxemic.cli.recipes.list", fail)
    assert_refused(here("recipes", "list"), ["Symlink loop from 'photos'"])
    with pytest.raises(RuntimeError, match="Symlink loop"):
        here("--traceback", "recipes", "list")


@pytest.mark.parametrize(
    "words",
    [
        ["gallery", "delete", "", "--yes"],
        ["gallery", "create", "new", ""],
        ["datasets", "check", ""],
        ["evaluate", "model", "--query", "", "--gallery", "photos"],
        ["report", ""],
        ["embed", "photos", "--out="],
        ["train", "--recipe", "glyphs-small", "--out", ""],
        ["search", "shop", "", "--html="],
        ["serve", ""],
    ],
    ids=" ".join,
)
def test_an_empty_path_is_not_the_current_folder(words: list[str], here: Here, shelf: Path) -> None:
    before = sorted(shelf.rglob("*"))
    inside = shelf / "shop" if words[:2] == ["gallery", "delete"] else shelf
    assert_refused(here(*words, cwd=inside), ["empty", "current folder"])
    assert sorted(shelf.rglob("*")) == before


WITHOUT_TORCH = """
import contextlib, io, json, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in ("lightning", "numpy", "pyarrow", "sklearn", "scipy", "timm", "torch", "torchvision"):
            sys.exit(f"{name} is imported")

sys.meta_path.insert(0, Finder())
from proxemic.cli import main

for words in json.loads(sys.argv[1]):
    with io.StringIO() as text, contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            code = main(words.split())
        except SystemExit as end:
            code = end.code or 0
        first = text.getvalue().partition("\\n")[0]
    print(json.dumps([code, first]))
"""


def without_torch(commands: Iterable[str], folder: Path) -> list[tuple[int | str, str]]:
    """The exit code of each command, or the first library that it wants, and the first line that it prints."""
    words = [sys.executable, "-c", WITHOUT_TORCH, json.dumps([*commands])]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, check=True)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_what_needs_no_torch_does_not_import_it(tmp_path: Path) -> None:
    codes = {
        "--version": 0,
        "--help": 0,
        "train --help": 0,
        "recipes list": 0,
        "train --recipe owm": 2,
        "train --recipe own --resume run": 2,
        "tune --recipe owm": 2,
        "evaluate nowhere --data.root photos": 2,
        "compare own --seeds many": 2,
    }
    assert [code for code, _ in without_torch(codes, tmp_path)] == [*codes.values()]


def test_what_a_command_does_is_said_before_it_imports_torch(tmp_path: Path) -> None:
    lines = {
        "train --recipe own --data.root photos --out run": "Training own",
        "train --resume run": "Resuming run",
        "demo --out run": "Training glyphs",
        "evaluate . --data.root photos": "Evaluating .",
        "verify .": "Verifying .",
        "compare own --training.epochs 3": "Comparing own",
        "tune --recipe own": "Tuning own",
        "reality-check own": "Checking own",
        "analyze gap": "Analysing: gap",
    }
    (tmp_path / "model.safetensors").touch()
    for (code, first), line in zip(without_torch(lines, tmp_path), lines.values(), strict=True):
        assert first == line
        assert str(code).endswith("is imported"), line


def test_a_shell_completes_commands_and_flags(here: Here) -> None:
    code = """
source /dev/stdin; COMP_WORDS=(proxemic "$@"); COMP_CWORD=$#
_shtab_proxemic; printf '%s\\n' "${COMPREPLY[@]}"
"""
    script = here("--print-completion", "bash").stdout
    for words, offered in ((["reco"], "recognize"), (["gallery", "del"], "delete"), (["train", "--reci"], "--recipe")):
        done = subprocess.run(["bash", "-c", code, "bash", *words], input=script, capture_output=True, text=True)
        assert done.stdout.split() == [offered], done.stderr
