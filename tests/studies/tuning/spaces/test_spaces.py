"""Search spaces, read and refused; those of the package fit their losses, the papers, and the recipes."""

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from images import write_folder, write_recipe
from proxemic import losses
from proxemic.errors import UserError
from proxemic.losses import MeanProxyNorm, ProxyLoss
from proxemic.recipes import find_recipe, list_recipes
from proxemic.recipes.flags import as_flags
from proxemic.recipes.reader import read_recipe
from proxemic.studies.tuning.run import plan_space
from proxemic.studies.tuning.spaces import (
    Choices,
    Factor,
    Range,
    default_space,
    list_spaces,
    load_space,
    pin,
    read_space,
    recipe_point,
    recipe_value,
    resolve_factors,
    trial_values,
)

WRONG: list[tuple[Any, str]] = [
    (0.1, r"optim\.lr is 0\.1, but must give low and high, or factor, or choices"),
    ({"low": 1}, "'high'"),
    ({"low": 2, "high": 1}, "low is 2 and high is 1: swap them"),
    ({"low": 0, "high": 1, "log": True}, "log needs a low above 0"),
    ({"low": 0, "high": "big"}, "high is 'big', but must be a number"),
    ({"low": 1, "hgih": 2}, "no key hgih for low; allowed are high, log"),
    ({"factor": 0}, "division"),
    ({"factor": [0, 2]}, "must be above 0"),
    ({"factor": [2, 1]}, "swap them"),
    ({"choices": []}, "choices is empty"),
    ({"low": 0.5, "high": 2, "int": True}, "is not whole"),
    ({"low": 1, "high": 2, "grid": [3]}, r"grid is \(3,\), but"),
    ({"low": 1, "high": 2, "points": 0}, "points is 0"),
    ({"low": 1, "high": 2, "step": 0}, "step is 0"),
]


def test_a_space_that_is_wrong() -> None:
    for content, words in WRONG:
        with pytest.raises(UserError, match=words) as refusal:
            read_space({"optim.lr": content}, "mine.yaml")
        assert str(refusal.value).startswith("mine.yaml, optim.lr")


def test_names_of_spaces(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'ProxyAncorLoss' \(did you mean ProxyAnchorLoss\?\)"):
        load_space("ProxyAncorLoss")
    with pytest.raises(UserError, match="not a readable YAML file"):
        load_space(str(tmp_path / "mine.yaml"))
    (tmp_path / "mine.yaml").write_text("- search: {}\n")
    with pytest.raises(UserError, match="is not a search space: map keys to ranges"):
        load_space(str(tmp_path / "mine.yaml"))
    with pytest.raises(UserError, match=r"no search space for the loss mine.ProxyAnchorLoss: give one with --space"):
        default_space({"loss": {"class_path": "mine.ProxyAnchorLoss"}})


def test_a_factor_is_relative_to_the_recipe() -> None:
    assert Factor(0.1, 10, log=True).around("optim.lr", 0.002) == Range(0.0002, 0.02, log=True)
    with pytest.raises(UserError, match="by a factor of the recipe's own value, which is None"):
        Factor(0.1, 10).around("optim.graph_lr", None)


def test_what_a_grid_takes() -> None:
    assert Range(1, 8, step=2, integer=True, points=3).values() == (1, 5, 8)
    assert Range(0.1, 0.9, grid=(0.1, 0.7)).values() == (0.1, 0.7)


def test_what_overrides_give_is_not_searched() -> None:
    content = load_space("WarpedSoftmaxLoss-two-phases")
    left, pinned = pin(content, ["loss.alpha", "second_phase.loss.k1"])
    assert pinned == ["loss.alpha", "second_phase.loss.alpha", "second_phase.loss.k1"]
    assert left.keys() == content.keys() - {*pinned}
    assert pin(content, ["loss", "seed"]) == (content, [])


def test_a_second_phase_is_searched_by_factors_of_the_same_trial_s_first_phase() -> None:
    recipe: dict[str, Any] = {"optim": {"lr": 0.1, "loss_lr": 2}, "loss": {"init_args": {"temperature": 4.0}}}
    second = {"optim": {"lr": 0.01}, "loss": {"init_args": {"temperature": 1.0}}}
    space = read_space(resolve_factors(load_space("EuclideanSoftmaxLoss-two-phases"), recipe, "space"), "space")
    point = recipe_point({**recipe, "second_phase": second}, space)
    assert point["second_phase.optim.lr"] == pytest.approx(0.1)
    assert point["second_phase.optim.loss_lr"] == 1, "a second phase holds only what changes"
    values = trial_values({**point, "optim.lr": 0.5}, space, recipe)
    assert values["second_phase.optim.lr"] == pytest.approx(0.05)
    assert values["second_phase.loss.temperature"] == pytest.approx(1.0)
    # Of a recipe with one phase there are no values of a second.
    assert recipe_point(recipe, space).keys() == {"optim.lr", "optim.loss_lr", "loss.temperature"}
    # A rate that flags hold is not searched, but its factors may be.
    held = {"second_phase.optim.lr": space["second_phase.optim.lr"]}
    assert trial_values({"second_phase.optim.lr": 0.5}, held, recipe) == {"second_phase.optim.lr": 0.05}
    with pytest.raises(UserError, match=r"varies second_phase\.optim\.lr by a factor of optim\.lr, which is None"):
        trial_values({"second_phase.optim.lr": 0.5}, held, {})


PROXY_LOSSES = sorted(
    name
    for name in losses.__all__
    if inspect.isclass(each := getattr(losses, name)) and issubclass(each, ProxyLoss) and not inspect.isabstract(each)
)
INSIDE = ["CenterRegularizer", "ContrastiveLoss", "MeanProxyNorm", "MultiSimilarityLoss", "MultiSimilarityMiner"]
TWO_PHASES = [
    "EuclideanSoftmaxLoss-two-phases",
    "WarpedSoftmaxLoss-two-phases",
    "WarpedSoftmaxLoss-warp-off-first",
]
WARPS = {
    "glyphs-small/warped-softmax": None,
    "glyphs-small/euclidean-softmax-two-phases": None,
    "omniglot/warped-softmax-warp-off-first": "WarpedSoftmaxLoss-warp-off-first",
}
"""Recipes of two phases with their spaces; None takes that of the loss."""

MPA = {
    "loss.proxies_per_class": [10, 2, 1, 4, 8, 12, 16],
    "loss.alpha": [32],
    "loss.margin": [0.1],
    "loss.gamma": [0.1],
    "loss.center_weight": [0.2],
}
PUBLISHED: dict[str, dict[str, list[Any]]] = {
    "NormalizedSoftmaxLoss": {"loss.scale": [1, 20]},
    "MeanProxyNorm": {"loss.regularizers.weight": [1.0, 0.01]},
    "CenterRegularizer": {"loss.regularizers.weight": [0.2]},
    "SphereFaceLoss": {"loss.margin": [4]},
    "CosFaceLoss": {"loss.margin": [0.35], "loss.scale": [64]},
    "ArcFaceLoss": {"loss.margin": [0.5], "loss.scale": [64]},
    "MagFaceLoss": {
        "loss.margin_range": ["[0.45, 0.8]"],
        "loss.norm_range": ["[10.0, 110.0]"],
        "loss.norm_weight": [35],
        "loss.scale": [64],
    },
    "AdaFaceLoss": {"loss.margin": [0.4], "loss.concentration": [0.333], "loss.scale": [64]},
    "CurricularFaceLoss": {"loss.margin": [0.5], "loss.scale": [64]},
    "ElasticFaceLoss": {
        "loss.margin": [0.5, 0.35],
        "loss.deviation": [0.05, 0.0175, 0.025],
        "loss.scale": [64],
    },
    "ProxyNCALoss": {"loss.scale": [1, 8, 14]},
    "ProxyNCAPlusPlusLoss": {"loss.temperature": [1 / 9]},
    "ProxyAnchorLoss": {"loss.alpha": [32], "loss.margin": [0.1]},
    "SoftTripleLoss": {
        "loss.proxies_per_class": [10, 2, 1, 4, 8, 12, 16],
        "loss.scale": [20],
        "loss.gamma": [0.1],
        "loss.margin": [0.01],
        "loss.center_weight": [0.2],
    },
    "MultiProxyAnchorLoss": MPA,
    "DataWiseMultiProxyAnchorLoss": MPA,
    "AllPairMultiProxyAnchorLoss": MPA,
    "EuclideanSoftmaxLoss": {"loss.temperature": [1, 4.525, 5, 3.7442, 3.15]},
    "WarpedSoftmaxLoss": {
        "loss.temperature": [4.525, 5, 3.7442, 3.15, 1],
        "loss.alpha": [28.40, 24.68, 30.15, 23.25, 13.02, 5.84, 15.75, 12.25],
        "loss.k1": [0.93, 0.95, 0.80, 0.50, 0.8563, 0.8024, 0.30, 0.20],
        "loss.k2": [1.15, 1.20, 1.55, 1.1181, 1.6175, 1.075, 1.03],
        "loss.delta_scale": [1.30, 1.50, 1.348],
    },
    "HISTLoss": {
        "loss.tau": [32, 16],
        "loss.alpha": [1.1, 0.9, 2],
        "loss.hidden": [512],
        "loss.graph_weight": [1],
        "optim.graph_lr": [6e-4, 1e-3],
    },
    "PairwiseLoss": {},
    "ContrastiveLoss": {"loss.loss.pos_margin": [0], "loss.loss.neg_margin": [1, 0.5]},
    "MultiSimilarityLoss": {"loss.loss.alpha": [2], "loss.loss.beta": [50], "loss.loss.base": [0.5, 1]},
    "MultiSimilarityMiner": {"loss.miner.epsilon": [0.1]},
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spaces")
    return write_recipe(folder / "tiny.yaml", write_folder(folder / "images", classes=1, images=1))


def space_of(name: str) -> dict[str, Range | Choices]:
    return read_space(load_space(name), name)


def test_every_loss_has_a_space_and_every_space_a_loss() -> None:
    assert len(PROXY_LOSSES) == 18
    assert list_spaces() == sorted([*PROXY_LOSSES, "PairwiseLoss", *INSIDE, *TWO_PHASES])
    assert sorted([*PUBLISHED, *TWO_PHASES]) == list_spaces()


def test_a_space_includes_the_published_values() -> None:
    for name, published in PUBLISHED.items():
        search = space_of(name)
        for key, values in published.items():
            for value in values:
                assert value in search[key], (name, key, value)


def ends(space: Mapping[str, Range | Choices]) -> list[dict[str, Any]]:
    """All lowest values, all highest ones, and every choice."""
    own = {key: item for key, item in space.items() if key.startswith("loss.")}
    values = [
        item.choices if isinstance(item, Choices) else (float(item.low), float(item.high)) for item in own.values()
    ]
    count = max(map(len, values), default=0)
    points = [
        {key: value[n * len(value) // count] for key, value in zip(own, values, strict=True)} for n in range(count)
    ]
    whole = [key for key, item in own.items() if isinstance(item, Range) and item.integer]
    return [{**point, **{key: int(point[key]) for key in whole}} for point in points]


def make(name: str, point: Mapping[str, Any]) -> nn.Module:
    # JSON, as a flag has it, for choices that are lists.
    given = {
        key.rpartition(".")[2]: tuple(json.loads(v)) if isinstance(v, str) and v[0] == "[" else v
        for key, v in point.items()
    }
    if name in INSIDE and hasattr(losses, name):
        return getattr(losses, name)(**given)
    if name in INSIDE:
        from pytorch_metric_learning import losses as pml
        from pytorch_metric_learning import miners

        return getattr(miners if name.endswith("Miner") else pml, name)(**given)
    return getattr(losses, name)(7, 4, **given)


def test_a_loss_can_be_made_at_both_ends_of_its_ranges() -> None:
    x, labels = torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2])
    for name in PUBLISHED.keys() - {"PairwiseLoss"}:
        points = ends(space_of(name))
        assert len(points) >= 2
        for point in points:
            module = make(name, point)
            assert not isinstance(module, ProxyLoss) or module(x, labels).isfinite(), (name, point)


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_a_recipe_takes_a_trial_of_its_space(name: str, recipe: Path) -> None:
    flags = ("--loss", name)
    content, pinned = plan_space(recipe, flags, None)
    assert content.keys() == load_space(name).keys()
    assert pinned == []
    point = {key: dimension.values()[-1] for key, dimension in read_space(content, name).items()}
    read = read_recipe(recipe, (*flags, *as_flags(point)))
    assert type(read.recipe.loss(5, 8)).__name__ == name
    found = yaml.safe_load(read.yaml)
    for key, value in point.items():
        assert recipe_value(found, key) == (json.loads(value) if isinstance(value, str) else value), key


@pytest.mark.parametrize("name", [*(name for name in list_recipes() if "/reality-check/" in name), *WARPS])
def test_a_recipe_of_two_phases_takes_its_own_values_and_trials(name: str) -> None:
    """Whether its loss has a space for two phases, or gets factors of the rates."""
    file, space = find_recipe(name), WARPS.get(name)
    base = yaml.safe_load(read_recipe(file).yaml)
    dimensions = read_space(plan_space(file, (), space)[0], name)
    second = [key for key in dimensions if key.startswith("second_phase.")]
    assert "second_phase.optim.lr" in second
    assert all(isinstance(dimensions[key], Factor) for key in second if ".optim." in key)
    own = trial_values(recipe_point(base, dimensions), dimensions, base)
    for key in second:
        if own.get(key) is not None and recipe_value(base, key) is not None:
            assert own[key] == pytest.approx(recipe_value(base, key), rel=1e-4), (name, key)


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("glyphs-small/contrastive", "loss.loss.neg_margin"),
        ("glyphs-small/multi-similarity", "loss.miner.epsilon"),
    ],
)
def test_losses_on_pairs_have_the_space_of_what_is_inside(name: str, inside: str) -> None:
    recipe = find_recipe(name)
    space = default_space(yaml.safe_load(read_recipe(recipe).yaml))
    assert {"optim.lr", inside} <= space.keys()
    assert "optim.loss_lr" not in space
    assert plan_space(recipe, (), None)[0].keys() == space.keys()
    pairs = {"class_path": "proxemic.losses.PairwiseLoss", "init_args": {"loss": "mine.Loss"}}
    assert default_space({"loss": pairs}) == load_space("PairwiseLoss")


def test_the_mean_proxy_norm_is_searched_where_the_recipe_has_it(recipe: Path) -> None:
    term = json.dumps([{"class_path": "proxemic.losses.MeanProxyNorm", "init_args": {"weight": 0.5}}])
    flags = ("--loss", "NormalizedSoftmaxLoss", f"--loss.regularizers={term}")
    content = yaml.safe_load(read_recipe(recipe, flags).yaml)
    space = default_space(content)
    assert {"optim.lr", "loss.scale", "loss.regularizers.weight"} <= space.keys()
    assert "loss.regularizers.weight" not in load_space("NormalizedSoftmaxLoss")
    assert recipe_value(content, "loss.regularizers.weight") == 0.5
    loss = read_recipe(recipe, (*flags, "--loss.regularizers.weight=0.25")).recipe.loss(5, 8)
    assert isinstance(loss, ProxyLoss)
    (regularizer,) = loss.regularizers
    assert isinstance(regularizer, MeanProxyNorm)
    assert regularizer.weight == 0.25
