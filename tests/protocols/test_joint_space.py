"""The space of a protocol that varies everything at once: both phases follow."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from proxemic.protocols.joint_space import JointSpace
from proxemic.recipes import find_recipe, list_recipes
from proxemic.recipes.reader import read_recipe
from proxemic.recipes.second_phase import merge

CHECKED = [name for name in list_recipes() if "/reality-check/" in name]


def read(recipe: Path, flags: tuple[str, ...] = ()) -> dict[str, Any]:
    return yaml.safe_load(read_recipe(recipe, flags).yaml)


@pytest.mark.parametrize("name", CHECKED)
def test_the_first_trial_is_the_recipe_itself(name: str) -> None:
    """Of both phases: the values that it has, given as flags, change nothing."""
    recipe = find_recipe(name)
    base = read(recipe)
    space = JointSpace.of(base, ())
    assert read(recipe, space.flags(space.first())) == base


def test_logarithms_keep_their_ratio_and_slopes_their_difference() -> None:
    recipe = find_recipe("cub/reality-check/warped-softmax")
    space = JointSpace.of(read(recipe), ())
    values = {"loss.temperature": 9.05, "loss.alpha": 14.2, "loss.k1": 0.5, "loss.k2": 2.49, "optim.lr": 1e-5}
    found = read(recipe, space.flags(space.first() | values))
    (first, second), own = (found["loss"]["init_args"], found["second_phase"]["loss"]), read(recipe)
    assert (first["temperature"], second["temperature"]) == pytest.approx((9.05, 2.0))  # 4.525 and 1
    assert (first["alpha"], second["alpha"]) == pytest.approx((14.2, 12.34))  # 28.4 and 24.68
    assert (first["k1"], second["k1"]) == pytest.approx((0.5, 0.52))  # 0.93 and 0.95
    assert (first["k2"], second["k2"]) == pytest.approx((2.49, 2.5))  # 1.15 and 1.20; 2.5 is the range's end
    ratio = own["second_phase"]["optim"]["lr"] / own["optim"]["lr"]
    assert found["second_phase"]["optim"]["lr"] == pytest.approx(1e-5 * ratio)


@pytest.mark.parametrize("name", ["glyphs-small/warped-softmax", "omniglot/warped-softmax"])
def test_a_tuned_warp_can_be_varied_in_one_piece(name: str) -> None:
    """Its first phase has the warp switched off; here it is on in both."""
    recipe = find_recipe(name)
    space = JointSpace.of(read(recipe), ())
    found = read(recipe, space.flags(space.middle()))
    second = merge(found["loss"], found["second_phase"]["loss"])
    for loss in (found["loss"], second):
        assert loss["init_args"]["f1"] is None
        assert loss["init_args"]["alpha"] == space.middle()["loss.alpha"]
