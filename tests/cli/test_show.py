"""What is printed of a run's metrics."""

import pytest

from proxemic.cli.show import print_metrics

METRICS = {
    "test": {"recall@1": 0.9}, "test_classes": 40, "test_queries": 400, "test_queries_left_out": 0, "epoch": 3,
    "selected_on": "validation",
}  # fmt: skip


def test_what_there_is_not_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    print_metrics(METRICS)
    bare = capsys.readouterr().out
    assert bare.startswith("Test: 40 unseen classes, 400 queries, epoch 3\n")
    print_metrics(METRICS | {"precision": "32-true"})
    assert capsys.readouterr().out == bare
    assert "90.00" in bare
    assert not any(word in bare for word in ("untrained", "chance", "left out", "Few classes"))


def test_what_should_be_known_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    print_metrics(
        METRICS
        | {"test_classes": 4, "test_queries_left_out": 2, "untrained": {"recall@1": 0.2}, "precision": "bf16-mixed"}
    )
    said = capsys.readouterr().out
    assert "untrained" in said
    assert "epoch 3, computed in bf16-mixed\n" in said
    assert "Few classes: 4." in said
    assert "2 queries have no other image of their class and are left out." in said
