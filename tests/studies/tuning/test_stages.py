"""The values of the recipe in each stage of a search, and the trials that it gets."""

from pathlib import Path

import pytest

from images import write_folder, write_recipe
from proxemic.errors import UserError
from proxemic.studies.tuning.spaces import Stage, load_space, read_dimension, read_stages
from proxemic.studies.tuning.stages import check_stages, first_values, shares, stage_values

WARPED = read_stages(load_space("WarpedSoftmaxLoss"), "WarpedSoftmaxLoss")


def test_stages_share_the_trials() -> None:
    stages = (Stage({}, {}, share=0.4), Stage({}, {}, share=0.6))
    assert [shares(stages, trials) for trials in (50, 7, 2)] == [[20, 30], [3, 4], [1, 1]]
    assert shares((Stage({}, {}), Stage({}, {}), Stage({}, {})), 4) == [1, 1, 2]
    assert shares((Stage({}, {}, share=0.99), Stage({}, {})), 3) == [2, 1]


def test_values_of_another_recipe_by_stage() -> None:
    recipe = {
        "optim": {"lr": 0.1},
        "loss": {"init_args": {"temperature": 2.0, "k1": 0.9}},
        "second_phase": {"loss": {"init_args": {"k1": 0.3}}, "optim": {"lr": 0.01}},
    }
    assert first_values(recipe, WARPED) == [
        {"optim.lr": 0.1, "loss.temperature": 2.0},
        {"loss.k1": 0.3, "optim.lr": 0.01},
    ]
    assert first_values({"optim": {"lr": 0.1}}, WARPED)[1] == {}  # those of its only phase would be no continuation


def test_a_key_that_the_recipe_has_not(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", write_folder(tmp_path / "images", classes=1, images=1))
    stages = (Stage({"loss.alhpa": read_dimension({"low": 1, "high": 2}, "")}, {}),)
    with pytest.raises(UserError, match=r"search space mine.yaml, stage 1, does not fit .* did you mean --loss.alpha"):
        check_stages(recipe, (), stages, "mine.yaml")


def test_the_phases_of_a_recipe_become_the_stages() -> None:
    base = {"training": {"epochs": 50, "warmup_epochs": 5}, "second_phase": {"epochs": 30}}
    first, second = stage_values(base, WARPED, 1, {}), stage_values(base, WARPED, 2, {"loss.temperature": 3.0})
    assert (first["training.epochs"], second["training.epochs"]) == (20, 30)
    assert first["second_phase"] is second["second_phase"] is None
    assert second["loss.temperature"] == 3.0
    assert (first["loss.f1"], second["loss.f1"]) == ("torch.positive", None)
    assert "training.warmup_epochs" not in first
    assert second["training.warmup_epochs"] == 0
