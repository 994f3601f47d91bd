"""Mistyped commands and the suggestions; texts that look like numbers."""

import re
from pathlib import Path

import pytest
import yaml

from command_line import Here, assert_refused
from images import write_folder


@pytest.fixture(scope="module")
def loose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures that lie in no folder of a class."""
    root = tmp_path_factory.mktemp("loose") / "photos"
    for number, picture in enumerate(sorted(write_folder(root.parent / "images", 4, 2, 16).glob("*/*.png"))):
        root.mkdir(exist_ok=True)
        picture.rename(root / f"{number}.png")
    return root


@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        ("train --recipe own --epochs 3", "--training.epochs"),
        ("train --recipe own --lr 3", "--optim.lr"),
        ("train --recipe own --optimizer 3", "--optim.optimizer"),
        ("train --recipe own --backbone 3", "--model.backbone"),
        ("train --recipe own --embedding_size 3", "--model.embedding_size"),
        ("train --recipe own --embedding-size 3", "--model.embedding_size"),
        ("train --recipe own --nmi 3", "--evaluation.nmi"),
        ("tune --recipe own --lr 3", "--optim.lr"),
        ("compare own --lr 3", "--optim.lr"),
        ("train own-pretrained", "--recipe own-pretrained"),
        ("train own", "--recipe own"),
        ("train cub/mpa", "--recipe cub/mpa"),
    ],
)
def test_what_was_meant_is_suggested(words: str, suggested: str, here: Here) -> None:
    assert_refused(here(*words.split()), [suggested, *re.findall(r"--(?!recipe)\S+", words)])


def test_a_folder_needs_a_recipe_and_its_flag(folder: Path, here: Here) -> None:
    assert_refused(here("train", folder), [f"--recipe own-pretrained --data.root {folder}"])
    assert_refused(here("train", "--data.root", folder), ["--recipe own-pretrained"])


def test_a_misspelt_command_suggests_the_right_one(here: Here) -> None:
    for typed, meant in {"trian": "train", "evalaute": "evaluate", "serch": "search", "galery": "gallery"}.items():
        result = here(typed)
        assert_refused(result, [typed, meant])
        assert "did you mean" in result.stderr.lower()
        assert "reality-check" not in result.stderr


def test_without_a_command_help_is_printed(here: Here) -> None:
    result = here()
    assert "usage: proxemic" in result.stdout
    assert "evaluate" in result.stdout
    assert not result.stderr


@pytest.mark.parametrize("fraction", ["0.01", "0.9"])
def test_too_few_classes_name_both_flags(fraction: str, tiny: Path, tmp_path: Path, here: Here) -> None:
    result = here("train", "--recipe", tiny, "--out", tmp_path / "run", "--data.test_fraction", fraction)
    assert_refused(result, ["--data.test_fraction", "--data.hold_out images"])


@pytest.mark.parametrize("flags", [["--optim.lr", "fast"], ["--data.test_fraction", "0.9"], ["--nonsense", "1"]])
def test_the_folder_of_a_run_is_named_once_it_exists(flags: list[str], tiny: Path, tmp_path: Path, here: Here) -> None:
    out = tmp_path / "run"
    result = here("train", "--recipe", tiny, "--out", out, *flags)
    assert result.returncode == 2
    assert not out.exists()
    assert str(out) not in result.stdout


@pytest.mark.parametrize(
    "words",
    [["datasets", "check"], ["train", "--recipe", "own", "--out", "run", "--data.root"]],
    ids=["check", "train"],
)
def test_loose_pictures_have_no_class_folders(words: list[str], loose: Path, tmp_path: Path, here: Here) -> None:
    result = here(*words, loose, cwd=tmp_path)
    assert_refused(result, ["class"])
    assert "has no images" not in result.stderr
    assert re.search(r"\b8\b", result.stderr)  # how many lie there


def root_of(text: str) -> object:
    return yaml.safe_load(text)["data"]["init_args"]["root"]


@pytest.mark.parametrize("name", ["12e5", "1e3", "1.5e10", "null", "~", "#x", "yes"])
def test_texts_of_flags_stay_texts(name: str, tmp_path: Path, here: Here) -> None:
    shown = here("recipes", "show", "own", "--data.root", name)
    assert shown.returncode == 0, shown.stderr
    assert root_of(shown.stdout) == name
    (tmp_path / "shown.yaml").write_text(shown.stdout)
    again = here("recipes", "show", tmp_path / "shown.yaml")
    assert again.stdout == shown.stdout


def test_a_run_on_a_folder_that_looks_like_a_number_can_be_evaluated(tiny: Path, tmp_path: Path, here: Here) -> None:
    write_folder(tmp_path / "12e5", classes=9, images=2, size=32)
    flags = ["--data.root", "12e5", "--training.epochs", "1", "--training.loggers", "[]"]
    trained = here("train", "--recipe", tiny, "--out", "run", *flags, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert Path(str(root_of((tmp_path / "run" / "recipe.yaml").read_text()))).name == "12e5"
    evaluated = here("evaluate", "run", cwd=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
