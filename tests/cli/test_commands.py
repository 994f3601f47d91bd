"""The commands on good input, as a user runs them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image

from command_line import ENVIRONMENT, Here, assert_refused, proxemic
from images import write_folder, write_recipe
from proxemic.losses import ProxyAnchorLoss
from proxemic.recipes import find_recipe, list_recipes
from proxemic.recipes.reader import read_recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("commands") / "images")


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    recipe = write_recipe(folder.parent / "tiny.yaml", folder)
    result = proxemic("train", "--recipe", recipe, "--out", folder.parent / "run", "--training.epochs", "2")
    assert result.returncode == 0, result.stderr
    return folder.parent / "run"


def loaded_modules(code: str) -> set[str]:
    program = f"{code}\nimport sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(result.stdout.splitlines()[-1].split())


def test_losses_load_nothing_that_a_bare_install_lacks() -> None:
    extra = {"lightning", "timm", "torchvision", "matplotlib", "PIL", "jsonargparse", "rich", "yaml", "platformdirs",
             "pytorch_metric_learning"}  # fmt: skip
    modules = loaded_modules("import proxemic.losses")
    assert "torch" in modules
    assert modules & extra == set()


def test_help_loads_nothing_heavy() -> None:
    # That is what makes it answer at once.
    code = "from proxemic.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    assert loaded_modules(code) & {"torch", "lightning", "numpy", "jsonargparse", "rich"} == set()


def test_a_missing_extra_is_one_sentence(tmp_path: Path) -> None:
    # As on a bare install: lightning cannot be imported.
    (tmp_path / "lightning.py").write_text("raise ModuleNotFoundError('No module named lightning', name='lightning')")
    result = subprocess.run(
        [sys.executable, "-m", "proxemic.cli", "train", "--recipe", "glyphs"],
        capture_output=True, text=True, env={**ENVIRONMENT, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert_refused(result, ["lightning is not installed", "pip install 'proxemic[train]'"])


@pytest.mark.parametrize(
    ("module", "missing"),
    [("data", "torchvision"), ("training", "lightning"), ("recipes.reader", "jsonargparse"), ("cli.show", "rich")],
)
def test_a_missing_extra_is_one_sentence_for_python_too(module: str, missing: str) -> None:
    program = f"import sys; sys.modules['{missing}'] = None; import proxemic.{module}"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    last = result.stderr.splitlines()[-1]
    assert last == f"ModuleNotFoundError: {missing} is not installed: install it with pip install 'proxemic[train]'."


def test_pair_losses_without_their_extra_are_one_sentence(tmp_path: Path) -> None:
    stub = "raise ModuleNotFoundError(\"No module named 'pytorch_metric_learning'\", name='pytorch_metric_learning')"
    (tmp_path / "pytorch_metric_learning.py").write_text(stub)
    result = subprocess.run(
        [sys.executable, "-m", "proxemic.cli", "train", "--recipe", "glyphs-small/multi-similarity"],
        capture_output=True, text=True, env={**ENVIRONMENT, "PYTHONPATH": str(tmp_path)}, cwd=tmp_path,
    )  # fmt: skip
    assert_refused(result, ["pytorch_metric_learning is not installed", "pip install 'proxemic[pairs]'"])
    program = (
        "import torch; from proxemic.losses import PairwiseLoss, ProxyAnchorLoss; ProxyAnchorLoss(5, 6)\n"
        "PairwiseLoss(5, 6, loss=torch.nn.Identity())"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, env={**ENVIRONMENT, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert result.stderr.splitlines()[-1].endswith("install it with pip install 'proxemic[pairs]'.")


def test_every_recipe_is_listed_read_and_shown_in_full(here: Here) -> None:
    result = here("recipes", "list")
    assert [line.split()[0] for line in result.stdout.splitlines()] == list_recipes()
    assert {"glyphs", "glyphs-small", "omniglot/all-pair-mpa", "own"} <= set(list_recipes())
    for name in list_recipes():
        first = read_recipe(find_recipe(name))
        assert "resize:" in first.yaml


def test_a_shown_recipe_is_a_recipe(tmp_path: Path, here: Here) -> None:
    result = here("recipes", "show", "glyphs", "--loss", "ProxyAnchorLoss", "--loss.alpha", "16")
    shown = tmp_path / "shown.yaml"
    shown.write_text(result.stdout)
    read = read_recipe(shown)
    assert read.yaml == result.stdout
    assert read.recipe.images.resize is None
    loss = read.recipe.loss(5, 3)
    assert isinstance(loss, ProxyAnchorLoss)
    assert loss.scoring.scale == 16


def test_evaluate_repeats_the_run_s_own_test(run: Path, tmp_path: Path) -> None:
    table = proxemic("evaluate", run)
    assert table.returncode == 0, table.stderr
    assert "recall@1" in table.stdout
    out = tmp_path / "metrics.json"
    result = proxemic("evaluate", run, "--json", "--out", out)
    found = json.loads(result.stdout)
    assert found == json.loads(out.read_text())
    assert found["test"] == json.loads((run / "metrics.json").read_text())["test"]


def test_evaluate_takes_other_metrics_and_splits(run: Path, here: Here) -> None:
    result = here(
        "evaluate", run, "--json", "--split", "train", "--evaluation.recall_at", "[1,3]",
        "--evaluation.precision_at", "[3]", "--evaluation.ndcg_at", "[]", "--evaluation.distance", "euclidean",
    )  # fmt: skip
    found = json.loads(result.stdout)
    assert set(found["train"]) == {"recall@1", "recall@3", "precision@3", "map@r", "r_precision"}


@pytest.mark.parametrize("which", ["run", "file"])
def test_evaluate_judges_another_folder_whole(run: Path, which: str, tmp_path: Path, here: Here) -> None:
    other = write_folder(tmp_path / "other", classes=3, images=4)
    model = run if which == "run" else run / "model.safetensors"
    found = json.loads(here("evaluate", model, "--data.root", other, "--json").stdout)
    assert (found["classes"], found["images"], found["queries"]) == (3, 12, 12)
    assert 0 <= found["all"]["recall@1"] <= 1


def test_evaluate_searches_the_gallery_of_a_table(run: Path, folder: Path, tmp_path: Path, here: Here) -> None:
    lines = ["path,label,is_query,is_gallery"]
    for name in ("class 00", "class 01"):
        for number in range(4):
            flags = [("true", "true"), ("true", "false"), ("false", "true"), ("false", "true")][number]
            lines.append(f"{folder / name / f'{number}.png'},{name},{','.join(flags)}")
    table = tmp_path / "table.csv"
    table.write_text("\n".join(lines))
    found = json.loads(here("evaluate", run, "--data.root", table, "--json").stdout)
    assert (found["images"], found["queries"]) == (8, 4)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["nowhere"], ["nowhere does not exist"]),
        (["{folder}"], ["holds no run"]),
        (["{run}/model.safetensors"], ["--data.root is missing"]),
        (["{run}", "--data.root", "nowhere"], ["nowhere does not exist"]),
        (["{run}/recipe.yaml", "--data.root", "{folder}"], ["recipe.yaml"]),
        (["{run}", "--evaluation.recal_at", "[1]"], ["did you mean", "evaluation.recall_at"]),
        (["{run}", "--evaluation.recall_at", "[0]"], ["recall_at", "1 or more"]),
    ],
)
def test_evaluate_refuses(flags: list[str], words: list[str], run: Path, folder: Path, here: Here) -> None:
    assert_refused(here("evaluate", *(flag.format(run=run, folder=folder) for flag in flags)), words)


def test_no_validation_trains_on_all_and_marks_the_results(folder: Path, tmp_path: Path, here: Here) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", folder)
    result = here("train", "--recipe", recipe, "--no-validation", "--out", tmp_path / "run", "--training.epochs", "1")
    assert result.returncode == 0, result.stderr
    assert "training: 8 classes" in result.stdout
    assert "WARNING" in result.stdout
    assert "CHOSEN ON THE TEST CLASSES" in result.stdout
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["selected_on"] == "test"


def test_datasets_check(folder: Path, tmp_path: Path, here: Here) -> None:
    result = here("datasets", "check", folder)
    assert result.returncode == 0
    assert "72 images of 12 classes" in result.stdout
    report = json.loads(here("datasets", "check", folder, "--json").stdout)
    assert report["images"] == 72
    assert_refused(here("datasets", "check", tmp_path / "nowhere"), ["does not exist"])


def test_pictures_are_drawn(run: Path) -> None:
    for name in ("curves.png", "gallery.png"):
        with Image.open(run / name) as picture:
            assert min(picture.size) > 300


def test_evaluate_refuses_a_folder_that_has_changed(folder: Path, tmp_path: Path, here: Here) -> None:
    images = tmp_path / "images"
    shutil.copytree(folder, images)
    recipe, run = write_recipe(tmp_path / "tiny.yaml", images), tmp_path / "run"
    assert here("train", "--recipe", recipe, "--out", run, "--training.epochs", "1").returncode == 0
    shutil.copytree(images / "class 00", images / "another class")
    # Split anew, classes of the training would be in the test.
    assert_refused(here("evaluate", run), ["images are not those", "--data.root"])
    assert here("evaluate", run, "--split", "all").returncode == 0


def test_another_loss_takes_its_own_defaults(here: Here) -> None:
    shown = yaml.safe_load(here("recipes", "show", "glyphs", "--loss", "ProxyAnchorLoss").stdout)
    assert shown["loss"]["init_args"]["proxies_per_class"] == 1
    flags = ["--loss", "ProxyAnchorLoss", "--loss.proxies_per_class", "3"]
    shown = yaml.safe_load(here("recipes", "show", "glyphs", *flags).stdout)
    assert shown["loss"]["init_args"]["proxies_per_class"] == 3
    shown = yaml.safe_load(here("recipes", "show", "glyphs", "--loss.alpha", "8").stdout)
    assert shown["loss"]["init_args"]["proxies_per_class"] == 2


def test_a_command_that_does_not_exist(here: Here) -> None:
    assert_refused(here("trian"), ["trian"])
    assert_refused(here("recipes", "list", "--all"), ["--all"])
