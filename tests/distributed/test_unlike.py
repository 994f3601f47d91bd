"""Processes that differ in seed, group, number of samples or disk."""

from pathlib import Path
from typing import Any

import pytest

from processes import run_processes

pytest.importorskip("pytorch_metric_learning")


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_processes(Path(__file__).parent / "three_processes.py", tmp_path_factory.mktemp("unlike"), world=3)


def test_unequal_losses_are_equal_once_distributed(unlike: list[dict[str, Any]]) -> None:
    """The third process has an empty batch without gradient; the others must not wait for it forever."""
    first, *others = (found["seeded apart"] for found in unlike)
    assert first.keys() == {"NormalizedSoftmaxLoss", "HISTLoss", "PairwiseLoss"}
    for other in others:
        assert other == first


def test_a_group_of_some_processes(unlike: list[dict[str, Any]]) -> None:
    for found in unlike[:2]:
        for ours, expected in found["two of three"].values():
            assert ours == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert "this process is not in the group" in unlike[2]["two of three"]["refused"]


def test_sharded_and_sampled_proxies_are_stepped_by_rows(unlike: list[dict[str, Any]]) -> None:
    for found in unlike:
        assert found["sampled steps"] == [11, 11]  # of 30 classes, as many as the batch has images, and ⌈0.1 · 22⌉


def test_shards_are_there_once_all_are_written_and_never_overwritten(unlike: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(item["checkpoints"] for item in unlike):
        assert found["there"]  # as soon as it is said to be
        assert "exists already" in found["saved"]
        assert ("none is missing" in found.get("loaded", "")) == (rank == 1)
        assert found["left"] == ["one"]
