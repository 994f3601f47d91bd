"""``proxemic recipes explain``."""

import pytest

from command_line import Here, assert_refused
from proxemic.recipes import explain


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("optim.lr", ["Learning rate of the backbone, above 0.", "A number."]),
        ("lr", ["optim.lr\n"]),
        ("loss", ["derived from ProxyLoss", "ArcFaceLoss"]),
        (
            "loss.margin",
            [
                "of ArcFaceLoss\n",
                "in radians",
                "or a class derived from MarginRule",
                "MultiProxyAnchorLoss, ProxyAnchorLoss\n",
            ],
        ),
        ("loss.regularizers.weight", ["of MeanProxyNorm\n", "Factor ≥ 0"]),
        ("optim.optimizer.momentum", ["SGD\n", "0 by default"]),
        ("second_phase.loss.alpha", ["of WarpedSoftmaxLoss\n"]),
        ("neg_margin", ["loss.loss.neg_margin of ContrastiveLoss"]),
        ("training.until_plateau", ["A section with the keys patience, min_improvement"]),
        ("published.table", ["A text."]),
        ("extends", ["A text or a list, each a text."]),
        ("optim.optimizer.betas", ["A list of 2, each"]),
        ("evaluation.recall_at", ["A list, each a whole number; [1, 2, 4, 8] by default."]),
    ],
)
def test_a_key(key: str, words: list[str]) -> None:
    text = explain(key)
    assert all(word in text for word in words), text
    assert all(len(line) <= 120 for line in text.splitlines() if line.startswith(" "))


def test_a_misspelt_key_suggests_the_nearest(here: Here) -> None:
    assert "Epochs without an improvement" in here("recipes", "explain", "patience").stdout
    assert_refused(here("recipes", "explain", "optim.lrr"), ["optim.lrr", "did you mean optim.lr?"])
    assert_refused(here("recipes", "explain", "epoch"), ["There is no key epoch", "did you mean epochs?"])
    assert_refused(here("recipes", "explain", "nothing_like_it"), ["nothing_like_it", "give a key as optim.lr"])
