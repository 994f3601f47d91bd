"""Metrics of the user's own."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from proxemic.errors import UserError
from proxemic.training import EvaluationConfig
from proxemic.training.own_metrics import check_own_metrics, compute_own_metrics


class Gives(nn.Module):
    def __init__(self, values: Any) -> None:
        super().__init__()
        self.values = values

    def forward(self, embeddings: Tensor, labels: Tensor) -> Any:
        return self.values


class Draws(nn.Module):
    def forward(self, embeddings: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"drawn": torch.rand(())}


def test_what_a_metric_draws_is_always_the_same_and_disturbs_nothing() -> None:
    config = EvaluationConfig(own_metrics=[Draws()])
    torch.manual_seed(1)
    found = compute_own_metrics(config, torch.eye(2), torch.tensor([0, 0]))
    after = torch.rand(1)
    torch.manual_seed(2)
    assert compute_own_metrics(config, torch.eye(2), torch.tensor([0, 0])) == found
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (0.5, "Gives, which gives float, but must give a mapping"),
        ({"a": "good"}, "Gives, whose a is 'good', but must be a number"),
        ({"map@r": 0.5}, "names a value 'map@r', but must give each a name that no other metric has"),
        ({"loss": 0.5}, "names a value 'loss'"),
    ],
)
def test_what_cannot_join_the_metrics_is_refused(values: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_own_metrics(EvaluationConfig(own_metrics=[Gives(values)]))


def test_the_metric_that_chooses_the_epoch_is_one_of_them() -> None:
    own: Any = [Gives({"a": 1}), lambda *_: {"b": torch.tensor([0.5])}]
    check_own_metrics(EvaluationConfig(own_metrics=own, metric="b"))
    with pytest.raises(UserError, match=r"evaluation.metric is 'c', but these are computed: map@r, .*, a, b\."):
        check_own_metrics(EvaluationConfig(own_metrics=own, metric="c"))
    with pytest.raises(UserError, match="names a value 'a'"):
        check_own_metrics(EvaluationConfig(own_metrics=[*own, own[0]]))
