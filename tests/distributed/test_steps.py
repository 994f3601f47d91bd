"""A step of two processes: its collectives, and equality of the copies."""

from pathlib import Path
from typing import Any

import pytest

from processes import run_processes

pytest.importorskip("pytorch_metric_learning")
BATCH, DIM = 7, 7
GATHERED = [["all_gather_into_tensor", [8]], ["all_gather_into_tensor", [8, DIM]]]  # padded to 4 each: labels, rows
SIZES = ["all_gather_into_tensor", [2]]
SCATTERED = ["reduce_scatter_tensor", [8, DIM]]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_processes(Path(__file__).parent / "two_processes.py", tmp_path_factory.mktemp("steps"))


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("data-wise", [SIZES, *GATHERED, ["all_reduce", [BATCH]], ["all_reduce", [2 * BATCH + 1]]], [SCATTERED]),
        ("class-wise", [SIZES, *GATHERED, ["all_reduce", [BATCH + 2]]], [SCATTERED]),
        ("even", [*GATHERED, ["all_reduce", [8 + 2]]], [SCATTERED]),
        (
            "replicated",
            [SIZES, *GATHERED, ["all_reduce", [BATCH]], ["all_reduce", [2 * BATCH + 1]]],
            [SCATTERED, ["all_gather_into_tensor", [10, 2, DIM]]],  # nine classes, five a process
        ),
        (
            "regularised",
            [SIZES, *GATHERED, ["all_reduce", [DIM]], ["all_reduce", [BATCH]], ["all_reduce", [2 * BATCH + 1]]],
            [SCATTERED],
        ),
        (
            "sampled",  # eight of nine classes: seven of the batch, and one
            [SIZES, *GATHERED, ["broadcast", [8]], ["all_reduce", [BATCH + 2]]],
            [SCATTERED, ["all_gather_into_tensor", [8, 1, DIM]]],
        ),
        ("sampled, sharded", [SIZES, *GATHERED, ["all_reduce", [BATCH + 2]]], [SCATTERED]),
        ("pairs", [SIZES, *GATHERED], []),
        ("own", [SIZES, *GATHERED], []),
    ],
)
def test_a_step_gathers_once_scatters_once_and_reduces_a_few_floats_a_sample(
    steps: list[dict[str, Any]], name: str, forward: list[Any], backward: list[Any]
) -> None:
    for found in steps:
        sent = found["collectives"][name]
        assert sent[0] == forward
        assert sorted(sent[1]) == sorted(backward)  # autograd's order is its own


def test_sharded_and_sampled_is_the_weighted_definition_on_the_rows_drawn(steps: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(steps):
        for value, embeddings, proxies, drawn in found["sampled and sharded"].values():
            assert max(value, embeddings, proxies) <= 1e-5
            assert drawn == (12, 11)[rank]  # 7 + ⌈0.3 · 14⌉ of 21 classes, 7 + ⌈0.3 · 13⌉ of 20


def test_a_users_module_gets_the_joined_batch(steps: list[dict[str, Any]]) -> None:
    for found in steps:
        assert found["own"]["own"] == found["own"]["pairs"]
        assert any(found["own"]["own"][1:])


def test_two_streams_are_those_of_all_processes(steps: list[dict[str, Any]]) -> None:
    for found in steps:
        assert found["two streams"]["two"] == pytest.approx(found["two streams"]["one"], rel=1e-5, abs=1e-7)


def test_copies_of_sampled_proxies_stay_alike(steps: list[dict[str, Any]]) -> None:
    assert steps[0]["training"] == steps[1]["training"]


def test_shards_that_another_wrapper_has_overwritten_are_refused(steps: list[dict[str, Any]]) -> None:
    for found in (step["wrapped"] for step in steps):
        for name in ("forgotten", "forgotten, compiled"):
            assert "DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, [" in found[name]
            assert "\n" not in found[name]
        assert found["ignored"][0] == found["ignored"][1]
        assert found["constant"][0] == found["constant"][1]  # equal from the start
    first, second = (step["wrapped"]["ignored"] for step in steps)
    assert first[0] == second[0]
    assert first[2] != second[2]  # the gradients of other classes


def test_the_example_saves_and_loads_sharded_proxies_with_their_optimizer(steps: list[dict[str, Any]]) -> None:
    for found in steps:
        assert found["documented"]["loaded"] == found["documented"]["saved"]


def test_a_label_out_of_range_is_refused_before_any_collective(steps: list[dict[str, Any]]) -> None:
    first, second = (found["awkward"] for found in steps)
    assert "labels hold 9, but num_classes=9 allows 0 to 8" in second["label"]
    assert first["after it"] == second["after it"]  # with the very next batch: neither waits for the other


def test_a_batch_that_is_empty_everywhere_is_refused(steps: list[dict[str, Any]]) -> None:
    for found in steps:
        assert "empty on every process" in found["awkward"]["empty"]
