"""Predicted needs of galleries, from measurements of smaller ones."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from proxemic.errors import UserError
from proxemic.retrieval import planning
from proxemic.retrieval.planning import FITTED, QUANTITIES, plan_gallery, read_measurements


def write(folder: Path, rows: Sequence[Sequence[str | float]]) -> None:
    with (folder / planning.MEASURED).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["store", "index", "rows", "dim", *QUANTITIES, "recall"])
        writer.writerows([*row[:3], 128, *row[3:], 0.98] for row in rows)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(planning, "files", lambda _: tmp_path)
    return tmp_path


def test_quantities_that_follow_their_laws_are_foretold_exactly(measured: Path) -> None:
    sizes = (*FITTED, 3_000_000)
    write(
        measured,
        [
            *(("folder", "exact", n, 1e6 + 600 * n, 700 * n, 1e-5 * n, 1e-3 + 6e-8 * n) for n in sizes),
            *(("folder", "hnsw", n, 900 * n, 950 * n, 2e-6 * n * np.log2(n), 1e-5 * np.log2(n)) for n in sizes),
            *(("folder", "ivfpq", n, 80 * n, 700 * n, 1e-5 * n + 1e-8 * n**1.5, 1e-6 * n**0.5) for n in sizes),
        ],
    )
    exact, hnsw, ivfpq = plan_gallery(10**9, 256, machine_memory=10**12)
    n = 1e9
    wanted = [
        (exact, (1e6 + 600 * n, 700 * n, 1e-5 * n, 1e-3 + 6e-8 * n)),
        (hnsw, (900 * n, 950 * n, 2e-6 * n * np.log2(n), 1e-5 * np.log2(n))),
        (ivfpq, (80 * n, 700 * n, 1e-5 * n + 1e-8 * n**1.5, 1e-6 * n**0.5)),
    ]
    for needs, values in wanted:
        # Twice as many numbers are twice the bytes and comparisons.
        assert [getattr(needs, name) for name in QUANTITIES] == pytest.approx([2 * value for value in values], rel=1e-6)
        assert [*needs.errors.values()] == pytest.approx([1] * 4, rel=1e-6)
        assert needs.checked_at == 3_000_000
    assert (exact.machines, hnsw.machines, ivfpq.machines) == (2, 3, 1)  # of 0.8 TB each


def test_larger_galleries_than_those_fitted_measure_the_error_alone(measured: Path) -> None:
    write(measured, [("folder", "exact", n, n, n, n, n) for n in FITTED])
    (before,) = plan_gallery(10**7, 128)
    assert before.errors == {}
    assert before.checked_at is None
    write(measured, [*(("folder", "exact", n, n, n, n, n) for n in FITTED), ("folder", "exact", 3_000_000, *[6e6] * 4)])
    (after,) = plan_gallery(10**7, 128)
    assert after.memory == pytest.approx(before.memory)
    assert after.errors == pytest.approx(dict.fromkeys(QUANTITIES, 0.5))


def test_no_factor_is_negative(measured: Path) -> None:
    # Noise that would have a line begin below 0.
    write(measured, [("folder", "exact", n, 1, 1, 1, n**1.2 * 1e-9) for n in FITTED])
    (needs,) = plan_gallery(1, 128)
    assert needs.query > 0


def test_what_was_measured() -> None:
    for (_, index), taken in read_measurements().items():
        assert {item.rows for item in taken} >= {*FITTED[:2]}
        assert all(getattr(item, name) > 0 for item in taken for name in QUANTITIES)
        assert all(item.recall == 1 if index == "exact" else item.recall > 0.9 for item in taken)


@pytest.mark.parametrize(
    ("arguments", "memory", "words"),
    [((0, 128), 64, "--gallery is 0"), ((10**13, 128), 64, "1,000,000,000,000"), ((10, 0), 64, "--dim is 0")],
)
def test_numbers_out_of_range(arguments: tuple[int, int], memory: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        plan_gallery(*arguments, machine_memory=memory * 10**9)
    with pytest.raises(UserError, match="1 GB or more"):
        plan_gallery(10, 10, machine_memory=1000)
