"""The README's commands and code for own images, run as they stand there."""

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
from proxemic.data.embeddings import LabelledEmbeddings, RowLabels, write_embeddings
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.runs.embed import embed_images, load_embedder
from vectors import write_table

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SECTION = README.partition("## Your own images")[2].partition("\n## ")[0]


def test_the_way_through_own_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "photos", classes=16, images=3, size=40)
    write_folder(tmp_path / "other-photos", classes=3, images=3, size=40)
    rows = RowLabels(torch.arange(96) // 6, tuple(f"{label:02}" for label in range(16)))
    write_embeddings(tmp_path / "vectors.parquet", LabelledEmbeddings(torch.randn(96, 20), rows))
    first, second = torch.triu_indices(96, 96, 1)[:, ::20]
    write_table(
        tmp_path / "pairs.parquet",
        first=first.tolist(),
        second=second.tolist(),
        same=(first // 6 == second // 6).tolist(),
    )
    lines = SECTION.partition("Omniglot")[0].replace("\\\n", " ")
    commands = re.findall(r"^proxemic (.*?)(?:  #.*)?$", lines, re.MULTILINE)
    names = [words.split()[0] for words in commands]
    assert names == ["datasets", "train", "evaluate", "evaluate", "train", "verify", "train"]
    for words in commands:
        quick = ["--training.epochs", "1"] if words.startswith("train") else []
        if "own-pretrained" in words:
            quick += ["--images.size", "32", "--augment.size", "32", "--evaluation.start", "false"]
        result = warm_proxemic(*shlex.split(words), *quick, cwd=tmp_path)
        assert result.returncode == 0, result.stderr

    (code,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
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
    section = README.partition("## From Python")[2]
    (code,) = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    assert code.count('training={"epochs": 20}') == 1
    exec(code.replace('training={"epochs": 20}', 'training={"epochs": 1}, images={"size": 32}'), {})
    assert "recall@1" in capsys.readouterr().out
    assert list((tmp_path / "runs" / "photos").glob("map*.png"))


def write_photographs(root: Path) -> list[Path]:
    """Turned, transparent and of 16 bits; what a file holds is told by its content, not by its name."""
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
    for target in re.findall(r"\]\(([\w./]+)\)", README):
        assert (ROOT / target).exists(), target
    for name in re.findall(r"--recipe ([\w/-]+)(?!\S*\.yaml)", README):
        if name != "mine":
            assert (ROOT / "src" / "proxemic" / "recipes" / f"{name}.yaml").exists(), name


@pytest.mark.parametrize("page", ["README.md", "docs/own-images.md"])
def test_flags_that_are_named_can_be_given(page: str) -> None:
    named = re.findall(r"`(--(?:loss|model|optim|training|data)[. ][^`]+)`", (ROOT / page).read_text())
    flags = [words for words in map(str.split, named) if not words[0].startswith("--data.")]  # of one source alone
    assert ["--loss", "ArcFaceLoss", "--loss.margin", "DynamicMargin"] in flags
    for words in flags:
        assert read_recipe(find_recipe("own-pretrained"), words).yaml, words


def test_nothing_is_installed_by_a_name_that_was_never_released() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.py")):
        assert not re.search(r"pip\s+install\s+(?:#\s+)?'?proxemic", page.read_text()), page


def test_the_way_through_search(shelf: Path, tmp_path: Path) -> None:
    shutil.copytree(shelf / "photos", tmp_path / "photos")
    shutil.copytree(shelf / "model", tmp_path / "runs" / "photos")
    shutil.copy(shelf / "photos" / "class 01" / "1.png", tmp_path / "query.jpg")
    section = README.partition("## Search your pictures")[2].partition("\n## ")[0]
    commands = re.findall(r"^proxemic (.*?)(?:  #.*)?$", section, re.MULTILINE)
    assert [words.split()[0] for words in commands] == ["gallery", "search", "embed"]
    for words in commands:
        result = warm_proxemic(*shlex.split(words), cwd=tmp_path)
        assert result.returncode == 0, result.stderr
