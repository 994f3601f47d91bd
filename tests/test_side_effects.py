"""What reads, measures or describes draws no random numbers of its caller and records no gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from proxemic import metrics
from proxemic.losses import AdaFaceLoss
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.retrieval.improving.improvement import trained_head, whitened_head

ROWS, LABELS = torch.linspace(-1, 1, 24 * 5).sin().reshape(24, 5), torch.arange(24) % 4

DRAW_NOTHING: dict[str, Callable[[], object]] = {
    "a recipe whose loss of pairs has proxies": lambda: (
        read_recipe(
            find_recipe("glyphs-small/multi-similarity"),
            [
                "--loss.loss={class_path: pytorch_metric_learning.losses.ProxyAnchorLoss, init_args: "
                "{num_classes: 4, embedding_size: 8}}",
                "--loss.miner=null",
            ],
        ).recipe
    ),
    "a head that is trained": lambda: trained_head(whitened_head(ROWS), ROWS, LABELS),
}
RECORD_NOTHING: dict[str, Callable[[Tensor], Tensor]] = {
    "expanded queries": lambda rows: metrics.expand_queries(rows[:4], rows),
    "qualities of faces": AdaFaceLoss(4, 5).quality,
}


@pytest.mark.parametrize("call", DRAW_NOTHING.values(), ids=DRAW_NOTHING)
def test_no_random_numbers_of_the_caller_are_drawn(call: Callable[[], object]) -> None:
    state = torch.get_rng_state()
    call()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.cpu
@pytest.mark.parametrize("call", RECORD_NOTHING.values(), ids=RECORD_NOTHING)
def test_no_gradients_are_recorded(call: Callable[[Tensor], Tensor]) -> None:
    assert not call(ROWS.clone().requires_grad_()).requires_grad
