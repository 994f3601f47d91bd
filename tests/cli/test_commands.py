"""The commands on good input, as a user runs them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image

import warm
from command_line import Here, assert_refused
from images import write_recipe
from proxemic import extras
from proxemic.extras import how_to_install
from proxemic.losses import ProxyAnchorLoss
from proxemic.recipes import list_recipes
from proxemic.recipes.reader import read_recipe


def without(package: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run code as on an install that lacks a package: it is not found, and nothing of ours is imported yet."""
    lacking = f"""
import sys
for name in [each for each in sys.modules if each.split(".")[0] in ("proxemic", {package!r})]:
    del sys.modules[name]
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Lacking())
"""
    return warm.run("-c", lacking + code)


def test_the_package_can_be_run() -> None:
    """``python -m proxemic`` is the command, exit code and all."""
    for words, code in (["--version"], 0), (["nothing"], 2):
        done = subprocess.run([sys.executable, "-m", "proxemic", *words], capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert (done.stdout or done.stderr).startswith("proxemic")


@pytest.mark.parametrize(
    ("code", "missing", "extra"),
    [
        ("from proxemic.data import *; Augmentation(grey=1.0).training(Preprocessing())", "torchvision", "train"),
        ("from proxemic.metrics import RetrievalCallback", "lightning", "lightning"),
        ("from proxemic.metrics import RetrievalMetric", "torchmetrics", "lightning"),
        ("import proxemic.recipes.reader", "yaml", "train"),
        ("from proxemic.tables import Table; Table(['鳥'], []).text()", "rich", "train"),
    ],
)
def test_a_missing_extra_is_one_sentence_for_python_too(code: str, missing: str, extra: str) -> None:
    result = without(missing, code)
    last = result.stderr.splitlines()[-1]
    assert last == f"ModuleNotFoundError: {missing} is not installed: install it with {how_to_install(extra)}."


def test_a_missing_extra_is_one_sentence() -> None:
    words = ["train", "--recipe", "glyphs"]
    result = without("timm", f"from proxemic.cli import main; sys.exit(main({words}))")
    assert_refused(result, ["timm is not installed", how_to_install("train")])


def test_pair_losses_without_their_extra_are_one_sentence() -> None:
    words = ["train", "--recipe", "glyphs-small/multi-similarity"]
    result = without("pytorch_metric_learning", f"from proxemic.cli import main; sys.exit(main({words}))")
    assert_refused(result, ["pytorch_metric_learning is not installed", how_to_install("pairs")])
    program = (
        "import torch; from proxemic.losses import PairwiseLoss, ProxyAnchorLoss; ProxyAnchorLoss(5, 6)\n"
        "PairwiseLoss(5, 6, loss=torch.nn.Identity())"
    )
    result = without("pytorch_metric_learning", program)
    assert result.stderr.splitlines()[-1].endswith(f"install it with {how_to_install('pairs')}.")


def test_what_is_said_to_install_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = Path(__file__).parents[2]
    assert how_to_install("train") == f"pip install '{checkout}[train]'"
    monkeypatch.setattr(extras, "__file__", "/usr/lib/python3/site-packages/proxemic/extras.py")
    assert how_to_install("train") == "pip install 'proxemic[train]'"


def test_every_recipe_is_listed(here: Here) -> None:
    result = here("recipes", "list", "**")
    assert [line.split()[0] for line in result.stdout.splitlines()] == list_recipes()
    starters, _, counts = here("recipes", "list").stdout.partition("\n\n")
    assert {line.split()[0] for line in starters.splitlines()} <= {*list_recipes()}
    assert len(starters.splitlines()) == 10
    assert f"{len(list_recipes())} recipes in all" in counts
    anchors = here("recipes", "list", "toy", "cub/*/h?st").stdout.splitlines()
    assert [line.split()[0].partition("/")[0] for line in anchors] == ["cub", *["toy"] * 4]
    assert_refused(here("recipes", "list", "nowhere/*"), ["No recipe is called nowhere/*"])
    assert {"glyphs", "glyphs-small", "omniglot/mpa-ap", "own"} <= set(list_recipes())


def test_a_shown_recipe_is_a_recipe(tmp_path: Path, here: Here) -> None:
    result = here("recipes", "show", "glyphs", "--loss", "ProxyAnchorLoss", "--loss.alpha", "16")
    shown = tmp_path / "shown.yaml"
    shown.write_text(result.stdout)
    read = read_recipe(shown)
    assert read.yaml == result.stdout.partition("\n")[2]  # after a comment
    assert read.recipe.images.resize is None
    loss = read.recipe.loss(5, 3)
    assert isinstance(loss, ProxyAnchorLoss)
    assert loss.scoring.scale == 16


def test_no_validation_trains_on_all_marks_the_results_and_draws_pictures(
    folder: Path, tmp_path: Path, here: Here
) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", folder)
    words = ["--recipe", recipe, "--no-validation", "--out", tmp_path / "run", "--training.epochs", "1"]
    result = here("train", *words, pictures=True)
    assert result.returncode == 0, result.stderr
    assert "training: 8 classes" in result.stdout
    assert "WARNING" in result.stdout
    assert "SELECTED ON THE TEST CLASSES" in result.stdout
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert (metrics["selected_on"], metrics["split"]) == ("test", "open-set")
    for name in ("curves.png", "gallery.png"):
        with Image.open(tmp_path / "run" / name) as picture:
            assert min(picture.size) > 300


def test_another_loss_takes_its_own_defaults(here: Here) -> None:
    shown = yaml.safe_load(here("recipes", "show", "glyphs/mpa-ap", "--loss", "ProxyAnchorLoss").stdout)
    assert shown["loss"]["init_args"]["proxies_per_class"] == 1
    flags = ["--loss", "ProxyAnchorLoss", "--loss.proxies_per_class", "3"]
    shown = yaml.safe_load(here("recipes", "show", "glyphs/mpa-ap", *flags).stdout)
    assert shown["loss"]["init_args"]["proxies_per_class"] == 3
    shown = yaml.safe_load(here("recipes", "show", "glyphs/mpa-ap", "--loss.alpha", "8").stdout)
    assert shown["loss"]["init_args"]["proxies_per_class"] == 2
