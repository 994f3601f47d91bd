"""Training parts of a network: resumed after a kill, on several processes, with the other parts unchanged."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from command_line import Here
from proxemic.recipes.reader import read_recipe
from proxemic.training.components import build_networks
from stopping import killed_and_resumed, run
from together import assert_same, proxemic_together

LAST = [
    "--evaluation.select_on",
    "last",
    "--model.train",
    "last:2",
    "--training.warmup_epochs",
    "1",
    "--batches.micro_batches",
    "2",
]

VIT = ["--model.backbone", "vit_tiny_patch16_224", "--images.size", "32"]
RANDOM = ["--model.backbone_args", "{depth: 2, drop_path_rate: 0.5}", "--model.gradient_checkpointing", "true"]


@pytest.fixture(scope="module")
def recipe(recipe: Path) -> Path:
    recipe.write_text(recipe.read_text().replace("epochs: 5", "epochs: 2"))
    return recipe


def whole_and_killed(recipe: Path, flags: list[str], folder: Path) -> list[str]:
    """Check that a run killed after a step and resumed gives the same bytes; return the lines for the user."""
    run(recipe, folder / "whole", *flags)
    said = killed_and_resumed(recipe, folder / "killed", *flags)
    assert_same(folder / "killed", folder / "whole")
    return said


def test_the_last_blocks_are_trained_and_the_others_stay(recipe: Path, tmp_path: Path) -> None:
    said = " ".join(whole_and_killed(recipe, LAST, tmp_path))
    assert "of the 4 blocks of convnet, the last 2 are trained" in said
    together = proxemic_together(2, "train", "--recipe", recipe, "--out", tmp_path / "together", *LAST)
    assert [result.returncode for result in together] == [0, 0], together
    read = read_recipe(recipe).recipe
    before = build_networks(read, read.load())[0].state_dict()
    for name in ("whole", "together"):
        after = load_file(tmp_path / name / "model.safetensors")
        same = {name for name, value in before.items() if value.equal(after[name])}
        frozen = {name for name in before if name.startswith(("backbone.stages.0.", "backbone.stages.1."))}
        assert same == frozen, name


def test_adapters_are_trained_and_the_saved_model_is_plain(here: Here, recipe: Path, tmp_path: Path) -> None:
    lora = ["--model.lora.rank", "2", "--model.lora.dropout", "0.5", "--optim.lr", "0.01"]
    said = " ".join(whole_and_killed(recipe, [*VIT, *RANDOM, *lora], tmp_path))
    assert "model.lora has rank 2: adapters in 8 linear layers of vit_tiny_patch16_224 are trained" in said
    evaluated = here("evaluate", tmp_path / "killed", "--json")
    assert evaluated.returncode == 0, evaluated.stderr
    further = here(
        *("train", "--recipe", recipe, "--out", tmp_path / "further", *VIT, *RANDOM, *lora),
        *("--training.start_from", tmp_path / "whole", "--training.epochs", "1"),
    )
    assert further.returncode == 0, further.stderr
    assert "its network and its loss, as the images are the same" in further.stdout
