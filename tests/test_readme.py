"""The README's commands and code for own images, run as they stand there."""

import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from command_line import proxemic, warm_proxemic
from images import write_folder

README = (Path(__file__).parent.parent / "README.md").read_text()
SECTION = README.partition("## Your own images")[2].partition("\n## ")[0]


def test_the_way_through_own_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "photos", classes=16, images=6, size=72)
    write_folder(tmp_path / "other-photos", classes=3, images=3, size=72)
    commands = re.findall(r"^proxemic (.*?)(?:  #.*)?$", SECTION.partition("Omniglot")[0], re.MULTILINE)
    assert [words.split()[0] for words in commands] == ["datasets", "train", "evaluate", "evaluate"]
    for words in commands:
        quick = ["--training.epochs", "1"] if words.startswith("train") else []
        command = proxemic if words.startswith("datasets") else warm_proxemic
        result = command(*shlex.split(words), *quick, cwd=tmp_path)
        assert result.returncode == 0, result.stderr

    (code,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    with Image.open(tmp_path / "other-photos" / "class 00" / "0.png") as image:
        names = {"image": image}
        exec(code, names)
    assert names["embedding"].shape == (1, 128)  # type: ignore[attr-defined]


def test_every_file_and_recipe_that_is_named_exists() -> None:
    root = Path(__file__).parent.parent
    for target in re.findall(r"\]\(([\w./]+)\)", README):
        assert (root / target).exists(), target
    for name in re.findall(r"--recipe ([\w/-]+)(?!\S*\.yaml)", README):
        if name != "mine":
            assert (root / "src" / "proxemic" / "recipes" / f"{name}.yaml").exists(), name
