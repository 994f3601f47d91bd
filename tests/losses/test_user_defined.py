"""Modules of users as losses."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from proxemic.losses import AdaFaceLoss, ArcFaceLoss, MagFaceLoss, ProxyAnchorLoss
from proxemic.losses.user_defined import UserLoss, loss_name, make_loss

pytestmark = pytest.mark.cpu


class Pull(nn.Module):
    """A module that records its inputs."""

    def __init__(self, gives: Any = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.gives = gives

    def forward(self, embeddings: Tensor, labels: Tensor) -> Any:
        self.seen = embeddings, labels
        return self.weight * embeddings.square().mean() if self.gives is None else self.gives


def test_the_module_has_float32_embeddings_and_int64_labels_and_all_are_trained() -> None:
    loss = UserLoss(3, 2, own := Pull())
    x = torch.randn(4, 2, dtype=torch.float16, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(x, torch.tensor([0, 1, 2, 0], dtype=torch.int32))
    value.backward()
    assert (value.dtype, value.shape) == (torch.float32, ())
    assert [item.dtype for item in own.seen] == [torch.float32, torch.int64]
    assert x.grad is not None
    assert own.weight.grad is not None
    again = UserLoss(3, 2, Pull())
    again.load_state_dict({"loss.weight": torch.tensor([5.0])})
    assert again.get_parameter("loss.weight").item() == 5


@pytest.mark.parametrize(
    ("gives", "came"), [((torch.zeros(1), 1), "tuple"), (torch.zeros(4), r"a tensor of shape \[4\]"), (0.0, "float")]
)
def test_anything_but_one_value_is_refused(gives: Any, came: str) -> None:
    with pytest.raises(ValueError, match=f"The loss Pull returns {came}, but must return a tensor with one value"):
        UserLoss(3, 2, Pull(gives))(torch.randn(4, 2), torch.tensor([0, 1, 2, 0]))


def test_losses_of_this_package_stay_themselves() -> None:
    assert isinstance(loss := make_loss(ProxyAnchorLoss, 3, 2), ProxyAnchorLoss)
    assert loss_name(loss) == "ProxyAnchorLoss"
    own = make_loss(lambda num_classes, embedding_size: nn.Linear(embedding_size, num_classes), 3, 2)
    assert loss_name(own) == "Linear"
    assert own.state_dict()["loss.weight"].shape == (3, 2)


def test_a_loss_of_lengths_refuses_a_model_that_normalises() -> None:
    for loss in (MagFaceLoss, AdaFaceLoss):
        with pytest.raises(ValueError, match=rf"the loss is {loss.__name__}, .* set model.normalize to false\.$"):
            make_loss(loss, 3, 2, normalized=True)
        make_loss(loss, 3, 2)
    make_loss(ArcFaceLoss, 3, 2, normalized=True)
