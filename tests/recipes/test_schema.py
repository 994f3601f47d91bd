"""The shipped JSON Schema is up to date, and accepts all recipes but no misspelt keys."""

import json
import re
from importlib.metadata import version

import jsonschema
import pytest

from command_line import Here
from proxemic.recipes import FOLDER, SCHEMA, find_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.recipes.schema import recipe_schema
from proxemic.recipes.yaml_files import parse_yaml, read_yaml

SHIPPED = json.loads(SCHEMA.read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SHIPPED)


def test_it_is_up_to_date() -> None:
    found = dict(re.findall(r"([\w-]+) (\d\S*?)(?:, |$)", SHIPPED["$comment"]))
    if any(version(name) != made_with for name, made_with in found.items()):
        pytest.skip("other versions of these packages have other classes")
    assert json.loads(json.dumps(recipe_schema())) == SHIPPED, "run python -m proxemic.recipes.schema"


def test_all_recipes_are_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SHIPPED)
    for path in FOLDER.rglob("*.yaml"):
        assert not [*VALIDATOR.iter_errors(read_yaml(path))], path
    for name in ("cub/warped-softmax", "glyphs-small/multi-similarity", "own-pretrained", "faces/magface"):  # in full
        assert not [*VALIDATOR.iter_errors(parse_yaml(read_recipe(find_recipe(name)).yaml))], name


@pytest.mark.parametrize(
    "text",
    [
        "optm: {lr: 1}",
        "optim: {lrr: 1}",
        "optim: {lr: fast}",
        "optim: {optimizer: {class_path: torch.optim.SGD, init_args: {momentun: 1}}}",
        "training: {epochs: true}",
        "training: {start_proxies: means}",
        "model: {in_channels: 3}",
        "loss: {margn: 0.2}",
        "loss: {class_path: ArcFaceLoss, init_args: {margn: 0.2}}",
        "loss: {class_path: ArcFaceLoss, margin: 0.2}",
        "loss: {class_path: ArcFaceLoss, init_args: {pooling: {class_path: MaxPooling, init_args: {gama: 2}}}}",
        "second_phase: {loss: {margn: 0.2}}",
        "augment: {scale: [1]}",
        "extends: []",
    ],
)
def test_mistakes_are_found(text: str) -> None:
    assert [*VALIDATOR.iter_errors(parse_yaml(text))]


@pytest.mark.parametrize(
    "text",
    [
        "extends: [cub/mpa, mine.yaml]",
        "loss: mine.Loss",
        "loss: {class_path: mine.Loss, init_args: {anything: 3}}",
        "loss: {margin: 0.2, pooling: MaxPooling}",
        "loss: {class_path: PairwiseLoss, init_args: {loss: pytorch_metric_learning.losses.ContrastiveLoss}}",
        "training: {callbacks: [proxemic.training.DistanceToProxy], until_plateau: null}",
    ],
)
def test_what_may_be_written_is_valid(text: str) -> None:
    assert not [*VALIDATOR.iter_errors(parse_yaml(text))]


def test_every_key_of_a_section_is_described() -> None:
    undescribed = [
        f"{name}.{key}"
        for name, section in SHIPPED["$defs"].items()
        if "." not in name and "properties" in section
        for key, value in section["properties"].items()
        if not value.get("description")
    ]
    assert not undescribed
    epochs = SHIPPED["$defs"]["TrainingConfig"]["properties"]["epochs"]
    assert epochs["description"] == "Passes over the training images in both phases together, at least 1."
    assert epochs["default"] == 10


def test_a_recipe_that_is_shown_names_it(here: Here) -> None:
    first = here("recipes", "show", "glyphs-small").stdout.splitlines()[0]
    assert first == f"# yaml-language-server: $schema={SCHEMA.as_uri()}"
