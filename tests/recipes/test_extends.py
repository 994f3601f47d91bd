"""Recipes that extend one or several others, of which later ones win."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from proxemic.recipes import find_recipe, load
from proxemic.recipes.reader import read_recipe


def content(path: Path, *flags: str) -> dict[str, Any]:
    return yaml.safe_load(read_recipe(path, flags).yaml)


def test_of_several_recipes_later_ones_win(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text("training: {epochs: 90, warmup_epochs: 2}\n")
    (tmp_path / "short.yaml").write_text("training: {epochs: 3}\nloss: {margin: 0.3}\n")
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: [glyphs-small/proxy-anchor, long.yaml, short.yaml]\nseed: 5\n")
    found = content(mine)
    assert (found["training"]["epochs"], found["training"]["warmup_epochs"], found["seed"]) == (3, 2, 5)
    assert found["loss"]["class_path"] == "proxemic.losses.ProxyAnchorLoss"
    assert found["loss"]["init_args"]["margin"] == 0.3
    assert found["published"] is None


@pytest.mark.parametrize("loss", ["ArcFaceLoss", "proxemic.losses.ArcFaceLoss", "{class_path: ArcFaceLoss}"])
@pytest.mark.parametrize("change", ["{margin: 0.2}", "{init_args: {margin: 0.2}}"])
def test_a_change_of_a_bare_name_keeps_the_class(loss: str, change: str, tmp_path: Path) -> None:
    first, mine = tmp_path / "first.yaml", tmp_path / "mine.yaml"
    first.write_text(f"extends: glyphs-small\nloss: {loss}\n")
    mine.write_text(f"extends: first.yaml\nloss: {change}\n")
    for found in (content(mine), content(first, "--loss", change), content(first, "--loss.margin", "0.2")):
        assert found["loss"]["class_path"] == "proxemic.losses.ArcFaceLoss"
        assert found["loss"]["init_args"]["margin"] == 0.2


def test_a_file_that_others_extend_over_and_over_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "0.yaml").write_text("extends: glyphs-small\n")
    for number in range(1, 9):
        (tmp_path / f"{number}.yaml").write_text(f"extends: [{', '.join([f'{number - 1}.yaml'] * 50)}]\n")
    assert content(tmp_path / "8.yaml") == content(find_recipe("glyphs-small"))


def test_numbers_as_yaml_1_2_has_them(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: glyphs-small\noptim: {lr: 1e-3, loss_lr: 2E-2}\n")
    recipe = read_recipe(mine).recipe
    assert (recipe.optim.lr, recipe.optim.loss_lr) == (0.001, 0.02)
    changes: dict[str, Any] = {"optim.lr": "5e-4"}
    assert load(mine, **changes).optim.lr == 0.0005
