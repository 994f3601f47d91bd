"""Margins of classes that depend on their numbers of images, and parts that do not fit together."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from images import write_folder, write_recipe
from proxemic.errors import UserError
from proxemic.losses import ArcFaceLoss, DynamicMargin
from proxemic.recipes.reader import read_recipe
from proxemic.runs.processes import Processes
from proxemic.studies.finished import FinishedRun
from proxemic.training import RunDirectory
from proxemic.training.components import build_components, held_out_images
from proxemic.training.distributed.shards import ProxyShards
from proxemic.training.record import Session
from stopping import Stopped, losses, run

SHORT = ["--evaluation.select_on", "last", "--evaluation.untrained", "false", "--training.epochs", "2"]
RULE = ["--loss", "ArcFaceLoss", "--loss.scale", "8", "--loss.margin", "DynamicMargin", "--loss.margin.a", "0.4"]
SECOND = ["--second_phase.epochs", "1", "--second_phase.loss.margin.a", "0.2"]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe for classes with 1 to 6 images."""
    folder = tmp_path_factory.mktemp("counts")
    images = write_folder(folder / "images", classes=8)
    for number, found in enumerate(sorted(images.iterdir())):
        for path in sorted(found.iterdir())[number % 5 + 2 :]:
            path.unlink()
    return write_recipe(folder / "tiny.yaml", images)


def test_margins_follow_from_the_training_images(recipe: Path, tmp_path: Path) -> None:
    flags = [*RULE, *SECOND, *SHORT]
    one = run(recipe, tmp_path / "one", *flags)
    counts = torch.bincount(read_recipe(recipe).recipe.load().train.labels)
    assert len(counts.unique()) > 1
    loss = FinishedRun(one).loss  # made without the images, of the second phase
    assert isinstance(loss, ArcFaceLoss)
    assert torch.equal(loss.margin, DynamicMargin(a=0.2)(counts))  # type: ignore[arg-type]

    two = tmp_path / "two"
    with pytest.raises(Stopped):
        run(recipe, two, *flags, stop_after=1)
    run(recipe, two, resume=True)
    assert losses(two) == losses(one)
    resumed = load_file(two / "loss.safetensors")
    assert all(torch.equal(value, resumed[name]) for name, value in loss.state_dict().items())

    # The weights of the run, and margins that are the recipe's own.
    three = run(recipe, tmp_path / "three", *RULE, *SHORT, "--training.start_from", one, "--training.epochs", "1")
    assert torch.equal(load_file(three / "loss.safetensors")["margin"], DynamicMargin(a=0.4)(counts))


def test_what_looks_at_all_proxies_is_refused_where_they_are_sharded(recipe: Path, tmp_path: Path) -> None:
    flags = ["--proxies", "sharded", "--training.callbacks", "[proxemic.training.Snapshots]"]
    sharded, out = read_recipe(recipe, flags).recipe, RunDirectory(tmp_path / "run")
    splits = sharded.load()
    with pytest.raises(
        UserError, match=r"Snapshots is among training.callbacks and looks at all proxies, but they are"
    ):
        build_components(Session(sharded, out, Processes(0, 2)), splits)
    assert isinstance(build_components(Session(sharded, out), splits).shards, ProxyShards)


@pytest.mark.parametrize(
    ("validation", "test", "words"),
    [(True, True, "gives validation classes of its own"), (False, False, "There are no test classes to select")],
)
def test_an_epoch_is_not_chosen_on_classes_that_are_not_there(
    recipe: Path, validation: bool, test: bool, words: str
) -> None:
    read = read_recipe(recipe, ["--evaluation.select_on", "test"]).recipe
    splits = read.load()
    splits = replace(splits, validation=splits.train if validation else None, test=splits.test if test else None)
    with pytest.raises(UserError, match=words):
        held_out_images(read, splits)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("DynamicMarin", "There is no loss.margin DynamicMarin: did you mean DynamicMargin?"),
        ("torch.Tensor", "torch.Tensor, which cannot be used there: give a class derived from MarginRule"),
        ("[0.1, x]", r"loss.margin is \[0.1, x\], but must be a number or a list, each a number"),
    ],
)
def test_a_margin_that_no_recipe_can_mean_is_refused(recipe: Path, value: str, words: str) -> None:
    with pytest.raises(UserError, match=words.replace("?", r"\?")):
        read_recipe(recipe, ["--loss", "CosFaceLoss", "--loss.margin", value])


def test_a_list_of_margins_is_one_a_class(recipe: Path) -> None:
    loss = read_recipe(recipe, ["--loss", "MultiProxyAnchorLoss", "--loss.margin", "[0.1, 0.3]"]).recipe.loss(2, 4)
    assert loss.get_buffer("_margin").tolist() == pytest.approx([0.1, 0.3])
