"""The arithmetic of memory and traffic; tests/test_benchmarks.py compares it with a real step."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxemic.training.memory import OPTIMIZERS, Needs, Setting, alternatives, plan

MILLION = Setting(1_000_000, 512, 1, 1024, 8)


def test_a_million_classes_on_eight_processes_by_hand() -> None:
    proxies = 1_000_000 * 512 * 4
    replicated, sharded = Needs.of(MILLION), Needs.of(replace(MILLION, sharded=True))
    assert replicated.held["proxies"] == replicated.held["gradient of the proxies"] == proxies
    assert replicated.held["optimiser state"] == 2 * proxies
    assert sharded.held["proxies"] == proxies // 8
    embeddings = 1024 // 8 * 512 * 4 * 7  # those of the seven others
    assert sharded.moved["embeddings"] == sharded.moved["gradient of the embeddings"] == embeddings
    assert sharded.moved["sizes and labels"] == 7 * 8 * (1 + 128)
    assert sharded.moved["scores"] == 2 * 7 * (3 * 1024 + 1) * 4 // 8
    assert sharded.moved["gradient of the proxies"] == 0
    assert replicated.moved["gradient of the proxies"] == proxies * 7 // 8
    assert Needs.of(replace(MILLION, proxies=3)).moved["gradient of the proxies"] == 3 * proxies * 7 // 8
    # AdamW at its fullest: proxies, two states, the gradient and two tensors of its own.
    assert replicated.peak == 6 * proxies
    assert Needs.of_dense(MILLION).held["scores"] == 2 * 128 * 1_000_000 * 4
    assert Needs.of_dense(replace(MILLION, class_wise=True)).held["scores"] == 2 * 1024 * 1_000_000 * 4


def test_sampled_classes_are_counted_by_the_rows_looked_at() -> None:
    setting = replace(MILLION, sample_rate=0.1, optimizer="sgd-momentum")
    rows = 1024 + 99_898  # and ⌈0.1 · 998,976⌉ others
    needs = Needs.of(setting)
    assert needs.held["gradient of the proxies"] == needs.held["sampled proxies"] == rows * 512 * 4
    assert needs.held["optimiser's step"] == 3 * rows * 512 * 4  # the rows, their momentum, weight decay
    assert needs.moved["choice of classes"] == rows * 8
    assert Needs.of(replace(setting, sharded=True)).moved["choice of classes"] == 0


def test_a_gpu_holds_larger_chunks_and_no_tensors_of_the_optimiser() -> None:
    alone = Setting(1_000_000, 512, batch=1024)
    gpu = replace(alone, gpu=80 * 10**9)
    on_cpu, on_gpu = Needs.of(alone), Needs.of(gpu)
    assert on_gpu.held["optimiser's step"] == 0 < on_cpu.held["optimiser's step"]
    assert on_gpu.held["scores"] == pytest.approx(2 * 2**29, rel=0.01)  # similarities and scaled scores of a chunk
    assert on_cpu.held["scores"] < 2**29 / 5
    assert Needs.of(replace(gpu, gpu=10**8)).held["scores"] < 2 * 10**8 / 32
    for other in ({"optimizer": "rmsprop"}, {"sample_rate": 0.1}):
        assert Needs.of(replace(gpu, **other)).held["optimiser's step"] > 0  # type: ignore[arg-type]


def test_a_plan_has_the_needs_of_each_layout_and_what_fits() -> None:
    planned = plan(1_000_000, 512, batch=1024, processes=8, memory=2 * 10**9)
    assert planned.setting == MILLION
    assert planned.needs == {
        "replicated": Needs.of(MILLION),
        "sharded": Needs.of(replace(MILLION, sharded=True)),
        "all scores at once": Needs.of_dense(MILLION),
    }
    assert [setting for setting, _, _ in planned.fitting] == alternatives(MILLION)
    assert all(fits == (peak <= 2 * 10**9) for _, peak, fits in planned.fitting)
    assert {fits for _, _, fits in planned.fitting} == {True, False}
    assert list(plan(1000, 16, batch=32).needs) == ["replicated", "all scores at once"]
    sharded = plan(1000, 16, batch=32, layouts=["sharded"])
    assert (sharded.setting.sharded, sharded.fitting) == (True, [])


def test_one_process_moves_nothing() -> None:
    for class_wise in (False, True):
        alone = Setting(1000, 16, batch=32, class_wise=class_wise)
        assert not any(Needs.of(alone).moved.values())
        assert not any(Needs.of_dense(alone).moved.values())


sizes: Any = st.builds(
    Setting,
    classes=st.integers(2, 10**7),
    dim=st.integers(1, 2048),
    proxies=st.integers(1, 10),
    batch=st.integers(1, 4096),
    processes=st.integers(1, 64),
    sharded=st.booleans(),
    sample_rate=st.sampled_from([0.01, 0.1, 1.0]),
    optimizer=st.sampled_from(list(OPTIMIZERS)),
    class_wise=st.booleans(),
)


@given(sizes)
def test_needs_are_never_negative_and_at_most_all_at_once(setting: Setting) -> None:
    needs = Needs.of(setting)
    assert all(size >= 0 for size in (*needs.held.values(), *needs.moved.values()))
    always = needs.held["proxies"] + needs.held["optimiser state"]
    assert always + needs.held["gradient of the proxies"] <= needs.peak <= sum(needs.held.values())


@given(sizes)
def test_sharding_never_holds_or_moves_more(setting: Setting) -> None:
    # Sampling apart: of its own classes each process looks at as many as the batch may have.
    replicated = Needs.of(replace(setting, sharded=False, sample_rate=1.0))
    sharded = Needs.of(replace(setting, sharded=True, sample_rate=1.0))
    assert sharded.peak <= replicated.peak
    assert sum(sharded.moved.values()) <= sum(replicated.moved.values())


@given(sizes)
def test_alternatives_begin_with_the_setting_and_are_distinct(setting: Setting) -> None:
    found = alternatives(setting)
    assert found[0] == setting
    assert len(set(found)) == len(found)
    assert any(item.processes > setting.processes for item in found)
    for item in found[1:]:  # each is a way to less
        assert item.sample_rate <= setting.sample_rate
        assert OPTIMIZERS[item.optimizer] <= OPTIMIZERS[setting.optimizer]
        assert item.sharded >= setting.sharded


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"classes": 1}, "classes is 1, but must be at least 2"),
        ({"batch": 0}, "batch is 0, but must be at least 1"),
        ({"sample_rate": 0.0}, "sample_rate is 0.0, but must be above 0 and at most 1"),
        ({"optimizer": "lion"}, "optimizer is lion, but is planned for sgd, sgd-momentum, "),
    ],
)
def test_a_setting_that_cannot_be_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(MILLION, **wrong)
