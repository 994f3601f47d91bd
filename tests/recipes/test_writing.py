"""A recipe written from its objects is read back unchanged."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pytorch_metric_learning import losses as pairs
from torch import nn

from proxemic.data import Glyphs
from proxemic.errors import UserError
from proxemic.losses import CosFaceLoss, PairwiseLoss, ProxyAnchorLoss, SoftTripleLoss
from proxemic.losses.user_defined import UserLoss, make_loss
from proxemic.models import ModelConfig
from proxemic.recipes import find_recipe, list_recipes, load, read_recipe, to_yaml
from proxemic.training import DistanceToProxy, Optimization, Recipe, SecondPhase, TrainingConfig

BUILT = Recipe(
    data=Glyphs(train_classes=20),
    model=ModelConfig(in_channels=1, image_size=32),
    loss=partial(ProxyAnchorLoss, alpha=16),
    optim=Optimization(partial(torch.optim.SGD, momentum=0.9), lr=0.1, loss_lr=1),
    images=load("glyphs-small").images,
    training=TrainingConfig(epochs=3, start_from=Path("runs/one"), callbacks=[DistanceToProxy()]),
)


def read_back(recipe: Recipe, folder: Path) -> tuple[str, Recipe]:
    path = folder / "recipe.yaml"
    path.write_text(to_yaml(recipe))
    again = read_recipe(path)
    assert again.yaml == path.read_text() == to_yaml(again.recipe)
    return again.yaml, again.recipe


def test_packaged_recipes_are_written_as_they_are_read() -> None:
    kinds = {(name.partition("/")[0], name.rpartition("/")[2][:4]): name for name in list_recipes()}
    for name in [*kinds.values()][::7]:
        read = read_recipe(find_recipe(name))
        assert to_yaml(read.recipe) == read.yaml, name


def test_a_recipe_that_is_built_in_python(tmp_path: Path) -> None:
    text, recipe = read_back(BUILT, tmp_path)
    content = yaml.safe_load(text)
    assert content["loss"]["class_path"] == "proxemic.losses.ProxyAnchorLoss"
    assert (content["loss"]["init_args"]["alpha"], content["loss"]["init_args"]["margin"]) == (16.0, 0.1)
    assert content["optim"]["optimizer"]["init_args"]["momentum"] == 0.9
    assert recipe.data == BUILT.data
    assert recipe.training.start_from == Path("runs/one")
    assert isinstance(recipe.loss(num_classes=3, embedding_size=2), ProxyAnchorLoss)
    # A class alone, and an object inside that a recipe file has described.
    margin: dict[str, Any] = {"loss.loss.neg_margin": 0.7}
    for loss in (CosFaceLoss, load("glyphs-small/contrastive", **margin).loss):
        text, _ = read_back(replace(BUILT, loss=loss), tmp_path)
    assert yaml.safe_load(text)["loss"]["init_args"]["loss"]["init_args"]["neg_margin"] == 0.7


def test_a_second_phase_takes_nothing_over_that_it_does_not_say(tmp_path: Path) -> None:
    first = partial(SoftTripleLoss, proxies_per_class=2, scale=10.0)
    second = SecondPhase(1, partial(SoftTripleLoss, proxies_per_class=2), replace(BUILT.optim, lr=0.5))
    text, recipe = read_back(replace(BUILT, loss=first, second_phase=second), tmp_path)
    assert {"epochs", "loss", "optim"} == set(yaml.safe_load(text)["second_phase"])
    assert recipe.second_phase is not None
    default = SoftTripleLoss(3, 2, proxies_per_class=2).scoring.scale
    assert recipe.second_phase.loss(num_classes=3, embedding_size=2).scoring.scale == default  # type: ignore[union-attr]


class Open(nn.Module):
    def __init__(self, embedding_size: int, **options: float) -> None:
        super().__init__()
        self.options = options


def test_further_keywords_of_a_class_are_kept(tmp_path: Path) -> None:
    text, recipe = read_back(replace(BUILT, loss=partial(Open, power=3.0)), tmp_path)
    assert yaml.safe_load(text)["loss"]["dict_kwargs"] == {"power": 3.0}
    loss = make_loss(recipe.loss, 3, 2)
    assert isinstance(loss, UserLoss)
    assert loss.loss.options == {"power": 3.0}
    (tmp_path / "other.yaml").write_text(
        "extends: recipe.yaml\n" + yaml.safe_dump({"loss": yaml.safe_load(text)["loss"]})
    )
    assert read_recipe(tmp_path / "other.yaml").yaml == text


class Changes(DistanceToProxy):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = 2 * factor


def test_what_cannot_be_written_is_one_sentence() -> None:
    class Inner(ProxyAnchorLoss):
        pass

    cases: dict[str, Any] = {
        "defined in another function": replace(BUILT, loss=Inner),
        "loss is <lambda>": replace(BUILT, loss=lambda: nn.Identity()),
        "functools.partial\\(ProxyAnchorLoss": replace(BUILT, loss=ProxyAnchorLoss(3, 2)),
        "ContrastiveLoss, which does not": replace(BUILT, loss=partial(PairwiseLoss, loss=pairs.ContrastiveLoss())),
        "with keyword arguments": replace(BUILT, loss=partial(ProxyAnchorLoss, 3)),
        "no key loss.alpa: did you mean loss.alpha": replace(BUILT, loss=partial(ProxyAnchorLoss, alpa=3)),  # type: ignore[arg-type]
        "Changes, which does not keep its argument": replace(BUILT, training=TrainingConfig(callbacks=[Changes(3.0)])),
    }
    for words, recipe in cases.items():
        with pytest.raises(UserError, match=words):
            to_yaml(recipe)


def test_load_takes_values_nested_and_dotted_as_text_and_as_objects() -> None:
    recipe = load(
        "glyphs-small",
        training={"epochs": 5},
        data=Glyphs(train_classes=12),
        loss=partial(ProxyAnchorLoss, alpha=16),
        augment={"scale": [0.5, 2.0]},
        **{"optim.lr": 0.25, "optim.schedule": None},
    )
    assert (recipe.training.epochs, recipe.optim.lr, recipe.optim.schedule) == (5, 0.25, None)
    assert (recipe.data, recipe.augment.scale) == (Glyphs(train_classes=12), (0.5, 2.0))
    assert recipe.loss.keywords["alpha"] == 16  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"^glyphs-small: There is no key optim\.lrr: did you mean optim\.lr\?$"):
        load("glyphs-small", optim={"lrr": 1})
