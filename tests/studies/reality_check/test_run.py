"""`reality_check` as a function, without a training; its results are in tests/cli/test_reality_check.py."""

import json
from pathlib import Path

import pytest
import yaml

from images import write_folder, write_recipe
from proxemic.errors import UserError
from proxemic.recipes import load, to_yaml
from proxemic.studies.jobs import Job, Workers
from proxemic.studies.reality_check import reality_check


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that were begun, which the disk is too full for."""
    begun = list[Job]()

    def run(_: Workers, jobs: list[Job], **__: object) -> None:
        begun.extend(jobs)
        raise UserError("The disk is full.")

    monkeypatch.setattr(Workers, "run", run)
    return begun


def test_recipes_need_no_file(tmp_path: Path, begun: list[Job]) -> None:
    recipe = load(write_recipe(tmp_path / "tiny.yaml", write_folder(tmp_path / "images")))
    out = tmp_path / "out"
    with pytest.raises(UserError, match="The disk is full"):
        reality_check([recipe], out=out, trials=1, folds=2, embedding_size=8)
    assert json.loads((out / "reality-check.json").read_text())["recipes"] == ["AllPairMultiProxyAnchorLoss"]
    folder = out / "AllPairMultiProxyAnchorLoss"
    assert yaml.safe_load((folder / "recipes" / "base.yaml").read_text()) == yaml.safe_load(to_yaml(recipe))
    with pytest.raises(UserError, match="The disk is full"):
        reality_check(resume=out)  # without the recipe
    assert [job.out for job in begun] == [folder / "trials" / "0" / f"fold-{fold}" for fold in (0, 1)] * 2
    with pytest.raises(ValueError, match="their names must differ"):
        reality_check([recipe, recipe], out=tmp_path / "twice")
    with pytest.raises(UserError, match="resume takes all settings"):
        reality_check([recipe], resume=out)
    other = load(tmp_path / "tiny.yaml", optim={"lr": 0.5})
    with pytest.raises(UserError, match=r"with another spaces, recipe than AllPair\w+/recipes/base\.yaml"):
        reality_check([other], out=out, trials=1, folds=2, embedding_size=8)


def test_a_space_of_one_s_own_is_kept(tmp_path: Path, begun: list[Job]) -> None:
    recipe, space = write_recipe(tmp_path / "tiny.yaml", write_folder(tmp_path / "images")), tmp_path / "space.yaml"
    options = {"out": tmp_path / "out", "trials": 1, "folds": 2, "embedding_size": 8, "spaces": [str(space)]}
    with pytest.raises(UserError, match="not a readable YAML file"):
        reality_check([recipe], **options)
    assert not (tmp_path / "out").exists()
    space.write_text("optim.lr: {factor: 10}\n")
    with pytest.raises(UserError, match="The disk is full"):
        reality_check([recipe], **options)
    space.rename(tmp_path / "moved.yaml")
    with pytest.raises(UserError, match="The disk is full"):
        reality_check(resume=tmp_path / "out")
    assert len(begun) == 4
    assert {job.flags[0] for job in begun} == {"--optim.lr"}
    space.write_text("optim.lr: {factor: 2}\n")
    with pytest.raises(UserError, match="holds a reality check with another spaces"):
        reality_check([recipe], **options)


def test_spaces_that_do_not_fit_a_check_are_refused(tmp_path: Path) -> None:
    recipe, space = write_recipe(tmp_path / "tiny.yaml", write_folder(tmp_path / "images")), tmp_path / "space.yaml"
    options = {"out": tmp_path / "out", "trials": 1, "folds": 2, "embedding_size": 8, "spaces": [str(space)]}
    for key, words in (
        ("training.epochs: {low: 1, high: 9, int: true}", "has training.epochs, but the phases of a reality check"),
        ("second_phase.optim.lr: {factor: [0.1, 1]}", r"tiny\.yaml: The search space .* does not fit the recipe"),
    ):
        space.write_text(f"{key}\n")
        with pytest.raises(UserError, match=words):
            reality_check([recipe], **options)
    assert not (tmp_path / "out").exists()
