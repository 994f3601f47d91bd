"""The stages of a search: their trials, and the values of the recipe in each."""

from pathlib import Path

import pytest

from images import write_folder, write_recipe
from proxemic.errors import UserError
from proxemic.protocols.tuning.spaces import Stage, load_space, read_dimension, read_stages
from proxemic.protocols.tuning.stages import budgets, check_stages, stage_values

WARPED = read_stages(load_space("WarpedSoftmaxLoss"), "WarpedSoftmaxLoss")


def test_budgets_of_stages() -> None:
    stages = (Stage({}, {}, share=0.4), Stage({}, {}, share=0.6))
    assert [budgets(stages, trials) for trials in (50, 7, 2)] == [[20, 30], [3, 4], [1, 1]]
    assert budgets((Stage({}, {}), Stage({}, {}), Stage({}, {})), 4) == [1, 1, 2]
    assert budgets((Stage({}, {}, share=0.99), Stage({}, {})), 3) == [2, 1]
    with pytest.raises(ValueError, match="--trials is 1, but must be at least 2"):
        budgets(stages, 1)


def test_a_key_that_the_recipe_has_not(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", write_folder(tmp_path / "images", classes=1, images=1))
    stages = (Stage({"loss.alhpa": read_dimension({"low": 1, "high": 2}, "")}, {}),)
    with pytest.raises(UserError, match=r"search space mine.yaml, stage 1, does not fit .* did you mean --loss.alpha"):
        check_stages(recipe, (), stages, "mine.yaml")


def test_the_phases_of_a_recipe_become_the_stages() -> None:
    base = {"training": {"epochs": 50}, "second_phase": {"epochs": 30}}
    stages = WARPED
    first = stage_values(base, stages, 1, {})
    second = stage_values(base, stages, 2, {"loss.temperature": 3.0})
    assert (first["training.epochs"], second["training.epochs"]) == (20, 30)
    assert first["second_phase"] is second["second_phase"] is None
    assert second["loss.temperature"] == 3.0
    assert (first["loss.f1"], second["loss.f1"]) == ("torch.positive", None)


def test_the_second_stage_does_not_warm_up_again() -> None:
    base = {"training": {"epochs": 50, "warmup_epochs": 5}, "second_phase": None}
    stages = WARPED
    assert "training.warmup_epochs" not in stage_values(base, stages, 1, {})
    assert stage_values(base, stages, 2, {})["training.warmup_epochs"] == 0
