"""How the metrics of a run are printed."""

import pytest

from proxemic.cli.show import print_metrics

METRICS = {
    "test": {"recall@1": 0.9}, "test_classes": 40, "test_queries": 400, "test_queries_left_out": 0, "epoch": 3,
    "selected_on": "validation",
}  # fmt: skip


def test_what_there_is_not_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    print_metrics(METRICS)
    bare = capsys.readouterr().out
    verdict, title, *_ = bare.strip().splitlines()
    assert verdict == "On 40 classes never seen in training, the nearest image is right for 90.0 % of 400 queries."
    assert title == "Test: 40 unseen classes, 400 queries, epoch 3"
    print_metrics(METRICS | {"precision": "32-true"})
    assert capsys.readouterr().out == bare
    assert "90.00" in bare
    assert not any(word in bare for word in ("before training", "gain", "chance", "left out", "Few classes"))


def test_what_should_be_known_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    print_metrics(
        METRICS
        | {"test_classes": 4, "test_queries_left_out": 2, "untrained": {"recall@1": 0.2}, "precision": "bf16-mixed"}
    )
    said = capsys.readouterr().out
    assert "; before training 20.0 %." in said
    assert "before training, new head" in said
    assert "+70.00" in said
    assert "epoch 3, computed in bf16-mixed\n" in said
    assert "WARNING: Few classes: 4." in said
    assert "2 queries have no other image of their class and are left out." in said
