"""Every recipe of the package: its summary, its published values, and two steps of it on a miniature of its data."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from torch import nn

from data.benchmarks.miniature import write_cars, write_cub, write_fashion_mnist, write_in_shop, write_sop
from data.record_writer import draw_people, write_faces
from images import write_folder
from proxemic.data import (
    CUB200,
    Cars196,
    Digits,
    FaceFolders,
    FashionMNIST,
    GlyphLetters,
    Glyphs,
    ImageSource,
    InShop,
    Omniglot,
    OwnImages,
    OwnVectors,
    RecordFaces,
    StanfordOnlineProducts,
)
from proxemic.losses import PairwiseLoss
from proxemic.models import build_model
from proxemic.models.backbones import bn_inception, iresnet
from proxemic.recipes import find_recipe, list_recipes, recipe_summary
from proxemic.recipes.reader import read_recipe
from proxemic.recipes.writing import content_of
from proxemic.runs.evaluate import evaluate_embeddings
from proxemic.training import Callback, RunDirectory, TrainingState
from proxemic.training.advice import advice
from proxemic.training.components import build_components
from proxemic.training.loop import Training
from proxemic.training.recipe import Recipe
from proxemic.training.record import Session
from recipes.published_values import PUBLISHED
from vectors import some_vectors, write_table

READ = {name: read_recipe(find_recipe(name)) for name in list_recipes()}
CONTENT = {name: content_of(read.described, Recipe) for name, read in READ.items()}


def test_summaries_are_a_line_each_and_differ() -> None:
    summaries = {name: recipe_summary(name) for name in list_recipes()}
    for name, summary in summaries.items():
        assert find_recipe(name).read_text(encoding="utf-8").startswith(f"# {summary}\n"), name
        assert 20 < len(summary) <= 125, name
        assert summary.endswith("."), name
    assert len(set(summaries.values())) == len(summaries)


def test_values_are_the_published_ones() -> None:
    for name, expected in PUBLISHED.items():
        found = {key: value(CONTENT[name], key) for key in expected if key not in ("falls", "mean proxy")}
        if "falls" in expected:
            found["falls"] = falls(READ[name].recipe, *expected["falls"])
        if "mean proxy" in expected:
            (regularizer,) = value(CONTENT[name], "loss.regularizers")
            found["mean proxy"] = value(regularizer, "weight")
        assert found == {
            key: pytest.approx(number) if isinstance(number, float) else number for key, number in expected.items()
        }, name


def test_only_marked_recipes_need_advice() -> None:
    for name, read in READ.items():
        assert len([*advice(read.recipe)]) == (read.described.evaluation.select_on == "test"), name


def value(content: Any, key: str) -> Any:
    """Return the value of a dotted key in a recipe's full text; for a class, its name."""
    for name in key.split("."):
        content = content.get("init_args", content)[name]
    return (
        content["class_path"].rpartition(".")[2] if isinstance(content, dict) and "class_path" in content else content
    )


def falls(recipe: Recipe, factor: float, at: list[int]) -> tuple[float, list[int]]:
    """Return the epochs, counted from 1, at which all rates fall by the factor."""
    optimizer, schedule = recipe.optim.build(nn.Linear(1, 1), nn.ParameterList([nn.Parameter(torch.zeros(1))]))
    found: list[int] = []
    rates = [group["lr"] for group in optimizer.param_groups]
    for epoch in range(2, recipe.training.epochs + 1):
        optimizer.step()
        if schedule is not None:
            schedule.step()
        now = [group["lr"] for group in optimizer.param_groups]
        if now != rates:
            assert now == pytest.approx([rate * factor for rate in rates])
            found.append(epoch)
        rates = now
    return factor, found


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[type[ImageSource], dict[str, Any]]:
    """The settings that turn each source into a miniature."""
    root = tmp_path_factory.mktemp("miniatures")
    for alphabet, part in (("Greek", "1"), ("Tagalog", "2")):
        for character in range(1, 13):
            folder = root / "omniglot" / f"images_background_small{part}" / alphabet / f"character{character:02}"
            folder.mkdir(parents=True)
            for writer in (1, 2):
                picture = Image.new("1", (105, 105), 1)
                picture.paste(0, (10, 10, 10 + 5 * character, 30 + 9 * writer))
                picture.save(folder / f"0001_{writer:02}.png")
    sources: dict[type[ImageSource], Path] = {
        CUB200: write_cub(root / "cub", classes=16),
        Cars196: write_cars(root / "cars", classes=16),
        StanfordOnlineProducts: write_sop(root / "sop", classes=16),
        InShop: write_in_shop(root / "in-shop", classes=16),
        FashionMNIST: write_fashion_mnist(root / "fashion-mnist"),
    }
    miniatures: dict[type[ImageSource], dict[str, Any]] = {
        source: {"root": folder, "check_counts": False} for source, folder in sources.items()
    }
    vectors, labels = some_vectors()
    own = write_folder(root / "own", images=4)
    return miniatures | {
        Omniglot: {"root": root / "omniglot"},
        OwnImages: {"root": own},
        OwnVectors: {"root": write_table(root / "vectors.parquet", vectors, label=labels)},
        Glyphs: {"train_classes": 20, "test_classes": 8},
        GlyphLetters: {"train_classes": 20, "test_classes": 8},
        Digits: {},
        RecordFaces: {"root": write_faces(root / "faces", draw_people(12, 4))},
        FaceFolders: {"root": own, "validation_fraction": 0.25},
    }


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace large networks by ones with an eighth of the channels and without repeated blocks."""
    create: Any = timm.create_model

    def narrow_network(name: str, **arguments: Any) -> nn.Module:
        if name.startswith("resnet50"):
            arguments |= {"base_width": 8, "layers": (1, 1, 1, 1)}
        return create({"tf_efficientnet_lite0": "test_efficientnet"}.get(name, name), **arguments)

    monkeypatch.setattr(timm, "create_model", narrow_network)
    blocks = {name: type(block)(*(width // 8 for width in block)) for name, block in bn_inception._BLOCKS.items()}
    monkeypatch.setattr(bn_inception, "_BLOCKS", blocks)
    for name in iresnet.IRESNETS:
        monkeypatch.setitem(iresnet.IRESNETS, name, (1, 1, 1, 1))
    monkeypatch.setattr(iresnet, "_WIDTHS", tuple(width // 8 for width in iresnet._WIDTHS))


def shrunk(recipe: Recipe, place: dict[str, Any]) -> Recipe:
    """Return the recipe for a miniature, with small images and batches, and all its phases within two epochs."""
    each = recipe.batches.images_per_class
    each = None if each is None else min(each, 4)
    resize = {int: 36, tuple: (36, 36)}.get(type(recipe.images.resized))
    second = recipe.second_phase
    size = 112 if recipe.model.backbone_name.startswith("iresnet") else 32  # an IResNet takes no other
    return replace(
        recipe,
        data=replace(recipe.data, **place),  # type: ignore[type-var]
        images=recipe.images if recipe.model.takes_vectors else replace(recipe.images, size=size, resize=resize),
        batches=replace(recipe.batches, size=8 if each is None else 3 * each, images_per_class=each, workers=0),
        model=replace(recipe.model, pretrained=False),
        training=replace(recipe.training, epochs=2, warmup_epochs=min(recipe.training.warmup_epochs, 1), loggers=[]),
        second_phase=None if second is None else replace(second, epochs=1),
    )


def that_differ() -> list[str]:
    """Return recipes that together have every value of every key except data's."""

    def values(content: Any, key: str = "") -> Iterator[tuple[str, str]]:
        if isinstance(content, dict):
            for name, item in content.items():
                yield from values(item, f"{key}.{name}")
        elif isinstance(content, list):
            yield from (pair for item in content for pair in values(item, f"{key}[]"))
        else:
            is_number = type(content) in (int, float) and content not in (0, 1)
            yield key, "a number" if is_number else str(content)

    apart = dict.fromkeys(("data", "augment", "evaluation", "published"))
    left = {name: {*values(content | apart)} for name, content in CONTENT.items()}
    chosen = []
    while any(left.values()):
        chosen.append(max(left, key=lambda name: len(left[name])))
        left = {name: pairs - left[chosen[-1]] for name, pairs in left.items()}
    return chosen


class Watch(Callback):
    """Records the loss of each step, and which parameters it changes by their gradients."""

    def __init__(self, parts: dict[str, list[nn.Parameter]]) -> None:
        self.parts = parts
        self.losses: list[float] = []
        self.moved: list[set[str]] = []
        self.before: dict[str, list[torch.Tensor]] = {}

    def on_backward_end(self, training: TrainingState) -> None:
        # Weight decay alone would move what has no gradient.
        pushed = {name for name, part in self.parts.items() if any(p.grad is not None and p.grad.any() for p in part)}
        self.before = {name: [p.detach().clone() for p in self.parts[name]] for name in pushed}

    def on_step_end(self, training: TrainingState, loss: torch.Tensor) -> None:
        self.losses.append(float(loss))
        self.moved.append(
            {name for name, old in self.before.items() if _differ(old, (p.detach() for p in self.parts[name]))}
        )


def _differ(old: Iterable[torch.Tensor], new: Iterable[torch.Tensor]) -> bool:
    return any(not torch.equal(one, other) for one, other in zip(old, new, strict=True))


def test_networks_take_images_of_the_recipes_sizes(narrow: None) -> None:
    recipes = [read.recipe for read in READ.values() if not read.described.model.takes_vectors]
    for recipe in {(recipe.model.backbone, recipe.images.size): recipe for recipe in recipes}.values():
        images = torch.randn(1, recipe.images.channels, recipe.images.size, recipe.images.size)
        with torch.no_grad():
            embeddings = build_model(replace(recipe.model, pretrained=False)).eval()(images)
        assert embeddings.shape == (1, recipe.model.embedding_size)


def test_results_hold_the_metric_that_chooses_the_epoch(places: dict[type[ImageSource], dict[str, Any]]) -> None:
    recipes = [read.recipe for read in READ.values()]
    for recipe in {(type(recipe.data), str(recipe.evaluation)): recipe for recipe in recipes}.values():
        splits = replace(recipe.data, **places[type(recipe.data)]).load()  # type: ignore[type-var]
        images = splits.train if splits.test is None else splits.test
        results = evaluate_embeddings(torch.randn(len(images), 4), images, recipe.evaluation)
        assert recipe.evaluation.metric in dict(results)


@pytest.mark.parametrize("name", that_differ())
def test_two_steps(name: str, places: dict[type[ImageSource], dict[str, Any]], narrow: None, tmp_path: Path) -> None:
    recipe = READ[name].recipe
    recipe = shrunk(recipe, places[type(recipe.data)])
    session = Session(recipe, RunDirectory(tmp_path))
    training = Training(session, build_components(session, recipe.load()), None)
    model, loss = training.model, training.loss
    parts = {
        "backbone": list(model.backbone.parameters()),
        "head": list(model.head.parameters()),
        "loss": list(loss.parameters()),
    }
    watch = Watch(parts)
    training.callbacks.append(watch)
    training.begin()
    for epoch in (0, 1):
        training.epoch, training.batch = epoch, 0
        training.begin_epoch()
        training.train_batch(*next(iter(training.loader)))
    second = recipe.second_phase
    assert training.phase == (second is not None)
    assert torch.tensor(watch.losses).isfinite().all()
    there = {part for part, parameters in parts.items() if parameters}
    assert ("loss" in there) == (not isinstance(loss, PairwiseLoss) or name.endswith("/margin"))
    warm = {"backbone"} if recipe.training.warmup_epochs else set()
    assert watch.moved == [there - warm, there]
    if second is not None:
        rates = {group["name"]: group.get("initial_lr", group["lr"]) for group in training.optimizer.param_groups}
        assert rates["backbone" if "backbone" in there else "head"] == second.optim.lr
