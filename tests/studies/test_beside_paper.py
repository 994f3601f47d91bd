"""Reality check, robustness and verification beside the papers' figures; the comparison is in test_compare_against."""

import re
from typing import Any

import pytest
import yaml

from comparisons import interval
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.studies.corrupted import robustness_against_paper
from proxemic.studies.reality_check.directory import RealityCheck
from proxemic.studies.reality_check.tables import reality_against_paper
from proxemic.studies.verify import verification_against_paper


def content(name: str) -> dict[str, Any]:
    return yaml.safe_load(read_recipe(find_recipe(name)).yaml)


def shown(text: str) -> dict[str, tuple[str, str]]:
    """metric -> (ours, theirs)."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if re.search(r"\| \[\d\] \|$", line)]
    return {row[0]: (row[1], row[2]) for row in rows}


def test_four_models_together_beside_tables_vi_to_viii() -> None:
    recipe, other = "cub/reality-check/cosface", "cub/cosface"
    check = RealityCheck((recipe, other), flags=("--training.epochs", "9"), trials=3, repeats=2)
    recipes = {name: content(name) for name in check.recipes}
    kinds = {kind: {"map@r": 0.25, "recall@1": 0.5} for kind in ("separated", "concatenated", "complete")}
    more = {**kinds, "separated": {"map@r": 0.27, "recall@1": 0.5}}
    text = reality_against_paper(check, recipes, {recipe: {0: kinds, 1: more}, other: {}})
    found = shown(text)
    assert len(found) == 9
    mean, half = interval(25.0, 27.0)
    assert found["separated map@r"] == (f"{mean:.2f} ± {half:.2f}", "22.72 ± 0.12 (95% ci)")
    assert found["concatenated precision@1"] == ("50.00 ± 0.00", "67.07 ± 0.18 (95% ci)")
    assert found["complete r_precision"] == ("–", "37.69 ± 0.21 (95% ci)")
    assert "with the flags `--training.epochs 9`" in text
    assert "with the flags" not in reality_against_paper(
        RealityCheck((recipe,)), {recipe: recipes[recipe]}, {recipe: {}}
    )
    assert "seeds: ours 2, theirs 10" in text
    assert "embedding size" not in text  # 128 of the separated, four times as much of the others
    assert text.endswith("These name no row of the papers' tables: `cub/cosface`.\n")


def test_corrupted_pictures_beside_table_iv() -> None:
    recipes = {"run": content("cub/hist")}
    values = {"run": {"none": [0.7, 0.8], "cutout": [0.5, 0.5]}}
    text = robustness_against_paper(recipes, values, "recall@1", "severity 3")
    mean, half = interval(70.0, 80.0)
    found = shown(text)
    assert len(found) == 10
    assert found["recall@1 none"] == (f"{mean:.2f} ± {half:.2f}", "71.8")
    assert found["recall@1 cutout"] == ("50.00 ± 0.00", "64.5")
    assert found["recall@1 shear"] == ("–", "67.5")
    assert "Ours: severity 3" in text
    assert "Figures of a single model on clean images, table I: proxemic compare --against paper." in text
    assert {ours for ours, _ in shown(robustness_against_paper(recipes, values, "map@r", "")).values()} == {"–"}


@pytest.mark.parametrize(("name", "lfw"), [("faces/warped-softmax", "99.85"), ("faces/arcface", "99.82")])
def test_face_verification_beside_table_v(name: str, lfw: str) -> None:
    found = shown(verification_against_paper("runs/faces", content(name), {"lfw": 0.9876, "cfp_fp": 0.5}))
    assert found["lfw accuracy"] == ("98.76", lfw)
    assert found["cfp-fp accuracy"][0] == "50.00"
    assert found["agedb-30 accuracy"][0] == "–"
    assert len(found) == 5
