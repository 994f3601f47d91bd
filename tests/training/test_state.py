"""What is checked during a training, and which weights an error names."""

from pathlib import Path

import pytest
import torch

from proxemic.errors import TrainingDiverged
from proxemic.recipes.reader import read_recipe
from proxemic.runs.processes import Processes
from proxemic.training import RunDirectory, TrainingState
from proxemic.training.components import build_components
from proxemic.training.record import Session


@pytest.fixture
def state(recipe: Path) -> TrainingState:
    read, run = read_recipe(recipe, ["--model.backbone", "resnet18"]).recipe, RunDirectory(Path())
    parts = build_components(Session(read, run), read.load())
    return TrainingState(read, run, Processes(), parts.model, parts.phases, parts.data)


@pytest.mark.parametrize("name", ["backbone.network.bn1.running_var", "backbone.network.conv1.weight", "proxies"])
def test_weights_that_are_not_finite_are_named(state: TrainingState, name: str) -> None:
    state.check_weights()
    module, part = (state.loss, "loss") if name == "proxies" else (state.model, "model")
    module.state_dict()[name][-1] = torch.inf
    with pytest.raises(TrainingDiverged, match=rf"weights {part}\.{name} are no longer finite at step 0; .*lr is 0.00"):
        state.check_weights()


def test_embeddings_that_are_not_finite_name_the_weights_where_these_are_the_cause(state: TrainingState) -> None:
    state.epoch = 2
    state.check_embeddings(torch.ones(2, 4), "training")
    wrong = torch.tensor([[torch.nan]])
    with pytest.raises(TrainingDiverged, match=r"embeddings of training images .* in epoch 3; .*lr is 0.002"):
        state.check_embeddings(wrong, "training")
    with torch.no_grad():
        state.model.head.get_parameter("1.weight").fill_(torch.nan)
    with pytest.raises(TrainingDiverged, match=r"The weights model.head.1.weight are no longer finite"):
        state.check_embeddings(wrong, "training")
