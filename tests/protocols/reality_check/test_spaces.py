"""The spaces of a reality check: the second phase's own, which begins with what the first search found."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxemic.errors import UserError
from proxemic.protocols.reality_check.spaces import CheckSpaces, PhaseSpace
from proxemic.protocols.tuning.spaces import Range, load_space, recipe_value
from proxemic.recipes import find_recipe, list_recipes
from proxemic.recipes.flags import apply_overrides, read_flags
from proxemic.recipes.reader import read_recipe
from proxemic.recipes.second_phase import merge

CHECKED = [name for name in list_recipes() if "/reality-check/" in name]


def read(recipe: Path, flags: Sequence[str] = ()) -> dict[str, Any]:
    return yaml.safe_load(_read(recipe, tuple(flags)))


@cache
def _read(recipe: Path, flags: tuple[str, ...]) -> str:
    return read_recipe(recipe, flags).yaml


def spaces_of(base: dict[str, Any], flags: tuple[str, ...] = (), space: str | None = None) -> CheckSpaces:
    return CheckSpaces.of(base, dict(read_flags(flags)), None if space is None else load_space(space), "mine.yaml")


def after(recipe: Path, space: PhaseSpace) -> dict[str, Any]:
    """The recipe with its own values, as the first search may find them; of rates that it does not set, others."""
    own = {key: value for key, value in space.initial.items() if value is not None}
    return read(recipe, space.flags({**space.middle(), **own}))


def test_both_searches_begin_with_the_recipe_and_the_second_in_tighter_bounds() -> None:
    """Where the recipe's values can be sampled; the second phase's space holds its published rates."""
    for name in CHECKED:
        base = read(find_recipe(name))
        spaces = spaces_of(base)
        assert apply_overrides(base, {**spaces.first.fixed, **spaces.first.initial}) == base, name
        known = {key: value for key, value in spaces.first.initial.items() if value is not None}
        found = apply_overrides(base, {**spaces.first.fixed, **spaces.first.middle(), **known})
        second = spaces.second(found)
        rates = {key: each for key, each in second.dimensions.items() if key.startswith("second_phase.optim.")}
        assert all(second.initial[key] in each for key, each in rates.items() if not key.endswith("graph_lr")), name
        initial = {key: second.initial[key] for key in rates if "graph" not in key}
        assert apply_overrides(base, {**second.fixed, **initial}) == base, name
        assert second.dimensions
        for key, each in second.dimensions.items():
            wider = spaces.first.dimensions[key.removeprefix("second_phase.")]
            assert isinstance(each, Range)
            assert isinstance(wider, Range)
            if ".optim." in key:  # rates fall
                assert each.high == pytest.approx(recipe_value(found, key.removeprefix("second_phase."))), (name, key)
            else:
                assert each.high - each.low < wider.high - wider.low, (name, key)


def test_what_the_first_search_found_is_where_the_second_begins() -> None:
    recipe = find_recipe("cub/reality-check/warped-softmax")
    spaces = spaces_of(read(recipe))
    values = {**spaces.first.initial, "loss.alpha": 14.2, "loss.temperature": 9.0, "optim.lr": 3e-6}
    second = spaces.second(read(recipe, spaces.first.flags(values)))
    ranges = {key: (each.low, each.high) for key, each in second.dimensions.items() if isinstance(each, Range)}
    assert ranges["second_phase.loss.alpha"] == pytest.approx((1.42, 14.2))  # lower than in the first
    assert ranges["second_phase.loss.temperature"] == pytest.approx((0.9, 9.0))
    assert ranges["second_phase.optim.lr"] == pytest.approx((3e-8, 3e-6))
    assert "second_phase.loss.delta_scale" not in ranges  # not changed, say the authors
    found = read(recipe, spaces.flags(values | {"second_phase.loss.alpha": 7.5}))
    assert (found["loss"]["init_args"]["alpha"], found["second_phase"]["loss"]["alpha"]) == (14.2, 7.5)


def test_what_flags_hold_is_searched_in_neither_phase() -> None:
    recipe = find_recipe("cub/reality-check/proxy-anchor")
    for flag, searched in (("--loss.alpha", False), ("--second_phase.loss.alpha", True)):
        flags = (flag, "30")
        spaces = spaces_of(read(recipe, flags), flags)
        assert ("loss.alpha" in spaces.first.dimensions) == searched
        assert "second_phase.loss.alpha" not in spaces.second(after(recipe, spaces.first)).dimensions


@pytest.mark.parametrize("name", ["glyphs-small/warped-softmax", "omniglot/warped-softmax"])
def test_both_forms_of_the_warp_are_searched(name: str) -> None:
    """The paper's has it in both phases, its authors' advice in the second alone."""
    for form, space in (("", None), ("-warp-off-first", "WarpedSoftmaxLoss")):
        recipe = find_recipe(name + form)
        spaces = spaces_of(read(recipe), space=space)
        first = spaces.first.flags(spaces.first.middle())
        found = read(recipe, first)
        assert (found["loss"]["init_args"]["alpha"] is None) == (space is not None)
        second = spaces.second(found)
        changed = read(recipe, (*first, *second.flags(second.middle())))
        arguments = merge(changed["loss"], changed["second_phase"]["loss"])["init_args"]
        assert (arguments["f1"], arguments["alpha"]) == (None, second.middle()["second_phase.loss.alpha"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([{"search": {"training.epochs": {"low": 1, "high": 9, "int": True}}}], "mine.yaml sets training.epochs, but"),
        (
            [{"search": {"optim.lr": {"factor": 2}}}, {"start_from": "best", "search": {"optim.lr": {"factor": 2}}}],
            "mine.yaml has a stage with start_from: best, but the recipe has no second phase",
        ),
    ],
)
def test_spaces_that_do_not_fit_a_check_are_refused(content: list[Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        CheckSpaces.of(read(find_recipe("glyphs-small/softmax")), (), content, "mine.yaml")
