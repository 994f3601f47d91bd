"""Losses, samplers, backbones and optimisers named in recipes and flags, and read again from the full text."""

import inspect
import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import torch
import yaml
from pytorch_metric_learning import distances, losses, miners
from torch import nn

import proxemic.losses
from proxemic.data import ArrayPixels, ClassBalancedBatches, ImageSet
from proxemic.errors import UserError
from proxemic.losses import CosFaceLoss, MaxPooling, MeanProxyNorm, PairwiseLoss, ProxyLoss
from proxemic.losses.user_defined import UserLoss, make_loss
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.training.data import TrainingData

RECIPE = "glyphs-small/multi-similarity"


def build(name: str, *flags: str) -> PairwiseLoss:
    loss = read_recipe(find_recipe(name), flags).recipe.loss(5, 6)
    assert isinstance(loss, PairwiseLoss)
    return loss


def test_by_recipe() -> None:
    loss = build(RECIPE)
    assert isinstance(loss.loss, losses.MultiSimilarityLoss)
    given = yaml.safe_load(find_recipe(RECIPE).read_text())["loss"]["init_args"]["loss"]["init_args"]
    assert {name: getattr(loss.loss, name) for name in ("alpha", "beta", "base")} == given
    assert isinstance(loss.miner, miners.MultiSimilarityMiner)
    assert isinstance(build("glyphs-small/contrastive").loss, losses.ContrastiveLoss)


@pytest.mark.parametrize("name", ["glyphs-small", RECIPE])
def test_by_flags(name: str) -> None:
    flags = ["--loss", "PairwiseLoss", "--loss.loss", "pytorch_metric_learning.losses.ContrastiveLoss"]
    flags += ["--loss.loss.neg_margin", "0.7", "--loss.miner=pytorch_metric_learning.miners.PairMarginMiner"]
    distance = "pytorch_metric_learning.distances.CosineSimilarity"
    flags += ["--loss.loss.distance", distance]
    loss = build(name, *flags)
    assert isinstance(loss.loss, losses.ContrastiveLoss)
    assert loss.loss.neg_margin == 0.7
    assert isinstance(loss.loss.distance, distances.CosineSimilarity)
    assert isinstance(loss.miner, miners.PairMarginMiner)
    flags[-1] = f'{{"class_path": "{distance}", "init_args": {{"power": 2}}}}'
    inside = build(name, *flags).loss.distance
    assert isinstance(inside, distances.CosineSimilarity)
    assert inside.power == 2
    assert build(name, *flags, "--loss.miner", "null").miner is None
    assert build(name, *flags, "--loss.memory_size", "32").memory_size == 32


def test_what_was_chosen_for_another_class_inside_is_left_behind(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    content = yaml.safe_load(find_recipe(RECIPE).read_text())
    triplet = {"class_path": "pytorch_metric_learning.losses.TripletMarginLoss", "init_args": {"margin": 7.0}}
    content["loss"]["init_args"]["loss"] = triplet
    recipe.write_text(yaml.safe_dump(content))
    flags = ["--loss.loss", "pytorch_metric_learning.losses.MarginLoss"]
    loss = build(str(recipe), *flags).loss
    assert isinstance(loss, losses.MarginLoss)
    assert loss.margin == losses.MarginLoss().margin
    assert isinstance(build(str(recipe), "--loss.memory_size", "9").miner, type(None))  # the memory has it


class LearnedScale(losses.BaseMetricLossFunction):
    """A loss with a parameter that is drawn when the recipe is read."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(2))

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        value = embeddings.square().sum() * self.scale.sum()
        return {"loss": {"losses": value, "indices": None, "reduction_type": "already_reduced"}}


def test_parameters_follow_from_the_recipe_s_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "LearnedScale", LearnedScale, raising=False)
    monkeypatch.setattr(LearnedScale, "__module__", "pytorch_metric_learning.losses")
    flags = ["--loss.loss", "pytorch_metric_learning.losses.LearnedScale", "--loss.miner", "null"]

    def scale(seed: int) -> torch.Tensor:
        return build(RECIPE, *flags, "--seed", str(seed)).get_parameter("loss.scale")

    assert torch.equal(scale(1), scale(1))
    assert not torch.equal(scale(1), scale(2))
    make = read_recipe(find_recipe(RECIPE), flags).recipe.loss
    assert next(make(5, 6).parameters()) is not next(make(5, 6).parameters())


def test_a_class_inside_the_pair_loss_that_refuses_its_arguments_is_named() -> None:
    distance = '{"class_path": "pytorch_metric_learning.distances.LpDistance", "init_args": {"is_inverted": true}}'
    with pytest.raises(UserError, match=r"^loss\.loss\.distance is pytorch.*LpDistance, which cannot be made"):
        build(RECIPE, "--loss.loss.distance", distance)


PROXY_LOSSES = [
    name
    for name in proxemic.losses.__all__
    if inspect.isclass(loss := getattr(proxemic.losses, name))
    and issubclass(loss, ProxyLoss)
    and not inspect.isabstract(loss)
]


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_every_proxy_loss_by_name_and_its_recipe_read_again(name: str, tmp_path: Path) -> None:
    flags = ["--loss", name, "--loss.proxies_per_class=2", "--loss.pooling=MaxPooling"]
    if name == "WarpedSoftmaxLoss":
        flags += ["--loss.alpha=28.4", "--loss.k1=0.93", "--loss.k2=1.15"]
    read = read_recipe(find_recipe("glyphs-small"), flags)
    again = tmp_path / "recipe.yaml"
    again.write_text(read.yaml)
    for recipe in (read.recipe, read_recipe(again).recipe):
        torch.manual_seed(0)
        loss = recipe.loss(5, 6)
        assert isinstance(loss, ProxyLoss)
        assert type(loss) is getattr(proxemic.losses, name)
        assert loss.proxies.shape == (5, 2, 6)
        assert loss.scoring.pooling == MaxPooling()
        torch.manual_seed(0)
        keywords = {"alpha": 28.4, "k1": 0.93, "k2": 1.15} if name == "WarpedSoftmaxLoss" else {}
        expected = getattr(proxemic.losses, name)(5, 6, proxies_per_class=2, **keywords)
        assert torch.equal(loss.proxies, expected.proxies)  # also the way the proxies start is written and read


def test_regularizers_and_initialisation_by_flag() -> None:
    flags = ["--loss", "ArcFaceLoss", "--loss.init=proxemic.losses.initialization.kaiming_normal"]
    flags += ["--loss.regularizers", '[{"class_path": "proxemic.losses.MeanProxyNorm", "init_args": {"weight": 0.5}}]']
    loss = read_recipe(find_recipe("glyphs-small"), flags).recipe.loss(5, 6)
    assert isinstance(loss, ProxyLoss)
    (regularizer,) = loss.regularizers
    assert isinstance(regularizer, MeanProxyNorm)
    assert regularizer.weight == 0.5


def test_functions_of_the_warping_papers_table_3_by_flag() -> None:
    flags = ["--loss", "WarpedSoftmaxLoss", "--loss.f1=torch.sqrt", "--loss.f2=torch.square"]
    loss = read_recipe(find_recipe("glyphs-small"), flags).recipe.loss(5, 6)
    assert loss(torch.randn(3, 6), torch.tensor([0, 1, 4])).isfinite()


class Own(nn.Module):
    def __init__(self, embedding_size: int, *, scale: float = 1.0) -> None:
        super().__init__()
        self.embedding_size, self.scale = embedding_size, scale


def test_modules_as_losses_take_what_they_have_parameters_for(tmp_path: Path) -> None:
    flags = ["--loss", "pytorch_metric_learning.losses.SupConLoss", "--loss.temperature", "0.3"]
    flags += ["--loss.distance", '{"class_path": "pytorch_metric_learning.distances.DotProductSimilarity"}']
    again = tmp_path / "recipe.yaml"
    again.write_text(read_recipe(find_recipe("glyphs-small"), flags).yaml)
    theirs = made(again)
    assert isinstance(theirs, losses.SupConLoss)
    assert theirs.temperature == 0.3
    assert isinstance(theirs.distance, distances.DotProductSimilarity)
    assert made(again, "--loss", "pytorch_metric_learning.losses.ProxyAnchorLoss").proxies.shape == (5, 6)
    ours = made(find_recipe("glyphs-small"), "--loss", f"{__name__}.Own", "--loss.scale=2")
    assert (type(ours), ours.embedding_size, ours.scale) == (Own, 6, 2.0)
    # PML has a class of this name, too.
    for flags in (["--loss", "CosFaceLoss"], ["--loss=CosFaceLoss"], ["--loss.class_path", "CosFaceLoss"]):
        assert isinstance(make_loss(read_recipe(again, flags).recipe.loss, 5, 6), CosFaceLoss)


class Loosely(nn.Module):
    """A loss whose arguments are typed only by their defaults, or by more than a type."""

    def __init__(
        self,
        embedding_size: int,
        scale=1.0,
        squared=False,
        *,
        margin: Annotated[float, "radians"] = 0.5,
        weights: dict[str, int] | None = None,
        anything: Any = None,
    ) -> None:
        super().__init__()
        self.arguments = scale, squared, margin, weights
        self.anything = anything


def test_types_that_hints_or_defaults_tell() -> None:
    flags = ["--loss", f"{__name__}.Loosely", "--loss.scale=2", "--loss.squared=true", "--loss.margin=0.25"]
    assert made(find_recipe("glyphs-small"), *flags, "--loss.weights={a: 3}").arguments == (2.0, True, 0.25, {"a": 3})
    for flag, sentence in (
        ("--loss.scale=big", "loss.scale is big, but must be a number"),
        ("--loss.squared=3", "loss.squared is 3, but must be true or false"),
        ("--loss.margin=big", "loss.margin is big, but must be a number"),
        ("--loss.weights={a: big}", "loss.weights.a is big, but must be a whole number"),
    ):
        with pytest.raises(UserError, match=sentence):
            read_recipe(find_recipe("glyphs-small"), [*flags, flag])


def test_the_full_text_keeps_what_no_type_restores(tmp_path: Path) -> None:
    """A resumed run takes its arguments from that text."""
    given = {0: 1.5, 2: [1, float("inf")], "true": None}
    flags = ["--loss", f"{__name__}.Loosely", "--loss.anything", yaml.safe_dump(given, default_flow_style=True)]
    first, again = find_recipe("glyphs-small"), tmp_path / "recipe.yaml"
    assert made(first, *flags).anything == given
    again.write_text(read_recipe(first, flags).yaml)
    assert made(again).anything == given


def test_a_second_phase_with_another_loss_is_read_again(tmp_path: Path) -> None:
    flags = ["--second_phase", "{epochs: 1, loss: CosFaceLoss}", "--second_phase.loss.margin=0.25"]
    text = read_recipe(find_recipe("glyphs-small"), flags).yaml
    assert yaml.safe_load(text)["second_phase"]["loss"]["class_path"] == "proxemic.losses.CosFaceLoss"
    again = tmp_path / "recipe.yaml"
    again.write_text(text)
    read = read_recipe(again)
    assert read.yaml == text
    assert read.recipe.second_phase is not None
    second = make_loss(read.recipe.second_phase.loss, 5, 6)
    assert isinstance(second, CosFaceLoss)
    assert second.margin == 0.25


def made(recipe: Path, *flags: str) -> Any:
    """Return the user's module inside the loss."""
    loss = make_loss(read_recipe(recipe, flags).recipe.loss, 5, 6)
    assert isinstance(loss, UserLoss)
    return loss.loss


def test_batches_of_a_class_take_what_they_have_parameters_for() -> None:
    flags = ["--batches.sampler", "proxemic.data.ClassBalancedBatches", "--batches.sampler.classes_per_batch", "3"]
    flags += ["--batches.sampler.images_per_class=2", "--seed=3"]
    pixels = ArrayPixels(np.zeros((24, 32, 32), np.uint8))
    images = ImageSet.from_names(pixels, [f"class {number % 4}" for number in range(24)])
    data = TrainingData(images, read_recipe(find_recipe("glyphs-small"), flags).recipe, world=2)
    assert isinstance(order := data.batches.batches, ClassBalancedBatches)
    assert [len(batch) for batch in order] == [6, 6, 6, 6]
    assert order.seed == 3
    assert not data.even  # as nobody knows
    with pytest.raises(ValueError, match=r"images_per_class and batches\.sampler are both given"):
        read_recipe(find_recipe("glyphs-small"), ["--batches.images_per_class=2", "--batches.sampler=RandomBatches"])


def test_what_a_backbone_s_arguments_name_is_not_made(tmp_path: Path) -> None:
    recipe = tmp_path / "hostile.yaml"
    argument = {"class_path": "pathlib.Path.touch", "init_args": {"self": "hostile"}}
    content = yaml.safe_load(find_recipe("glyphs-small").read_text())
    content["model"] = {"backbone": "test_vit", "backbone_args": {"depth": argument}}
    recipe.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match="backbone_args"):
        read_recipe(recipe)
    for path in ("os.getcwd", "torch.optim.SGD"):
        with pytest.raises(UserError, match=r"cannot be used there: give a class derived from nn\.Module"):
            read_recipe(find_recipe("glyphs-small"), ["--model.backbone", path])
    tagged = read_recipe(find_recipe("glyphs-small"), ["--model.backbone", "resnet18.a1_in1k", "--images.size=48"])
    assert (tagged.recipe.model.custom_backbone, tagged.recipe.model.image_size) == (None, 48)


def test_an_optimiser_that_a_flag_names_has_its_own_defaults() -> None:
    # AdamW, which the recipe has, decays weights by 0.01; SGD by 0.
    flags = ["--optim.optimizer", "torch.optim.SGD", "--optim.optimizer.momentum", "0.9"]
    flags += ["--optim.schedule", "torch.optim.lr_scheduler.MultiStepLR", "--optim.schedule.milestones", "[3, 5]"]
    content = yaml.safe_load(read_recipe(find_recipe("glyphs-small"), flags).yaml)["optim"]
    assert content["optimizer"]["init_args"]["weight_decay"] == 0
    assert content["optimizer"]["init_args"]["momentum"] == 0.9
    assert content["schedule"]["init_args"] == {"milestones": [3, 5], "gamma": 0.1, "last_epoch": -1}


def test_a_second_phase_may_name_the_class_whose_arguments_the_extended_recipe_changes(tmp_path: Path) -> None:
    change = {"class_path": "proxemic.losses.WarpedSoftmaxLoss", "init_args": {"k1": 0.7}}
    values = {"extends": "cars-pretrained/warped-softmax-warp-off-first", "second_phase": {"loss": change}}
    file = tmp_path / "recipe.yaml"
    file.write_text(json.dumps(values))
    second = yaml.safe_load(read_recipe(file).yaml)["second_phase"]["loss"]
    assert [second[name] for name in ("f1", "k1", "k2")] == [None, 0.7, 1.2]
