"""Fine-tuning: the weights taken from a run for other classes, and the message about them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from images import write_folder, write_recipe
from proxemic.data import ImageSet, Splits
from proxemic.errors import UserError
from proxemic.losses import CosFaceLoss, HISTLoss, PairwiseLoss
from proxemic.models import EmbeddingModel, build_model
from proxemic.recipes.reader import ReadRecipe, read_recipe
from proxemic.runs.directory import split_fingerprint
from proxemic.training import RunDirectory, train
from proxemic.training.beginning import load_loss, start_from


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("starting")
    read = read_recipe(write_recipe(folder / "tiny.yaml", write_folder(folder / "images")), ["--training.epochs", "1"])
    train(read.recipe, folder / "run", report=[].append)
    write_names(folder / "run", read.recipe.load())
    return folder / "run"


def write_names(run: Path, splits: Splits) -> None:
    parts = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    names = {name: part and list(part.class_names) for name, part in parts.items()}
    (run / "classes.json").write_text(json.dumps({"root": None, **names}))


def trained_on(run: Path) -> list[str]:
    return json.loads((run / "classes.json").read_text())["train"]


def networks(read: ReadRecipe, splits: Splits) -> tuple[EmbeddingModel, torch.nn.Module]:
    loss = read.recipe.loss(splits.train.num_classes, read.recipe.model.embedding_size)
    return build_model(read.recipe.model), loss


def renamed(images: ImageSet, names: tuple[str, ...]) -> ImageSet:
    return replace(images, class_names=names)


def test_classes_of_the_same_names_keep_their_proxies(earlier: Path) -> None:
    read = read_recipe(earlier / "recipe.yaml")
    splits = read.recipe.load()
    theirs = trained_on(earlier)
    # The same labels, of which two are named as two classes of the run, in other places.
    names = ("a", theirs[4], "b", "c", theirs[0])
    splits = Splits(renamed(splits.train, names), splits.validation, splits.test)
    model, loss = networks(read, splits)
    fresh = loss.get_parameter("proxies").detach().clone()
    said = start_from(RunDirectory(earlier), model, loss, splits)
    assert said.endswith("2 of 5 classes keep their proxies, by name, and 3 get new ones.")
    trained = load_file(earlier / "loss.safetensors")["proxies"]
    found = loss.get_parameter("proxies")
    assert torch.equal(found[[1, 4]], trained[[4, 0]])
    assert torch.equal(found[[0, 2, 3]], fresh[[0, 2, 3]])
    expected = load_file(earlier / "model.safetensors")
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_a_loss_of_another_kind_or_shape_is_new(earlier: Path) -> None:
    read = read_recipe(earlier / "recipe.yaml")
    splits = read.recipe.load()
    model, _ = networks(read, splits)
    pml = pytest.importorskip("pytorch_metric_learning.losses")
    for loss in (CosFaceLoss(5, 16), HISTLoss(5, 16), PairwiseLoss(5, 16, loss=pml.TripletMarginLoss())):
        fresh = {name: value.clone() for name, value in loss.state_dict().items()}
        said = start_from(RunDirectory(earlier), model, loss, splits)
        assert said.endswith("its network; the loss is new, as that of the run has another kind or shape.")
        assert all(torch.equal(value, fresh[name]) for name, value in loss.state_dict().items())


def test_a_run_is_fine_tuned_on_other_images(earlier: Path, tmp_path: Path) -> None:
    read = read_recipe(
        write_recipe(tmp_path / "tiny.yaml", write_folder(tmp_path / "images", classes=14)),
        ["--training.epochs", "1", "--training.start_from", str(earlier), "--optim.lr", "1e-12"],
    )
    said: list[str] = []
    result = train(read.recipe, tmp_path / "run", report=said.append).metrics
    shared = len({*trained_on(earlier)} & {*read.recipe.load().train.class_names})
    assert any(f"{shared} of 6 classes keep their proxies" in line for line in said), said
    classes = RunDirectory(tmp_path / "run").read_classes()
    assert classes is not None
    assert set(classes.earlier) == {*trained_on(earlier)}
    seen = {*(classes.test or ())} & {*trained_on(earlier)}  # unseen by this run, but not by its network
    assert result.get("test_classes_trained_on", 0) == len(seen) > 0
    tuned, begun = (load_file(run / "model.safetensors") for run in (tmp_path / "run", earlier))
    torch.testing.assert_close(tuned["head.1.weight"], begun["head.1.weight"], rtol=0, atol=1e-6)


def test_without_the_names_of_classes_other_images_are_refused(earlier: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(earlier, run)
    read = read_recipe(run / "recipe.yaml")
    splits = read.recipe.load()
    model, loss = networks(read, splits)
    other = Splits(renamed(splits.train, tuple("abcde")), None, None)
    for content, words in (
        (None, "does not say which classes .* by --model.weights .*model.safetensors"),
        ("{", "classes.json cannot be read"),
        ('{"root": null, "train": 1}', r"classes.json is damaged \(train is '1'"),
    ):
        if content is None:
            (run / "classes.json").unlink()
        else:
            (run / "classes.json").write_text(content)
        with pytest.raises(UserError, match=words):
            start_from(RunDirectory(run), model, loss, other)
        assert "its network and its loss" in start_from(RunDirectory(run), model, loss, splits)
    assert json.loads((run / "environment.json").read_text())["images"] == split_fingerprint(splits)


def test_a_run_without_weights_or_with_others_is_refused(earlier: Path, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(earlier, run.path)
    read = read_recipe(run.recipe)
    splits = read.recipe.load()
    model, loss = networks(read, splits)
    load_loss(run, loss)
    with pytest.raises(UserError, match=f"The weights of {run.path} do not fit this recipe's loss"):
        load_loss(run, CosFaceLoss(5, 8))
    run.loss.write_bytes(b"cut")
    with pytest.raises(UserError, match=r"loss.safetensors is not readable as safetensors"):
        load_loss(run, loss)
    run.loss.unlink()
    with pytest.raises(UserError, match="has no selected weights yet: let it finish an epoch"):
        start_from(run, model, loss, splits)


def test_a_network_that_does_not_fit_is_refused(earlier: Path) -> None:
    read = read_recipe(earlier / "recipe.yaml", ["--model.width", "4"])
    splits = read.recipe.load()
    with pytest.raises(UserError, match=r"does not fit this recipe's model .* --model\.weights"):
        start_from(RunDirectory(earlier), *networks(read, splits), splits)
