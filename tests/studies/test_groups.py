"""Groups of runs that repeat each other, and differences paired by seed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from comparisons import interval
from proxemic.errors import UserError
from proxemic.studies.groups import differences_from_first, distinct_names, repetitions


def run(path: str, name: str, setting: str, seed: int) -> Any:
    return SimpleNamespace(path=Path(path), name=name, setting=setting, seed=seed)


RUNS = [run("x/a/seed-2", "a", "A", 2), run("x/b", "b", "B", 0), run("x/a/seed-1", "a", "A", 1)]


def test_runs_are_gathered_by_recipe_in_the_order_of_seeds() -> None:
    assert repetitions(RUNS) == {"a": [RUNS[2], RUNS[0]], "b": [RUNS[1]]}
    with pytest.raises(UserError, match="x/b and z have the same recipe and the same seed"):
        repetitions([*RUNS, run("z", "z", "B", 0)])


def test_names_are_their_own_and_short() -> None:
    assert list(repetitions([*RUNS, run("y/a/seed-1", "a", "other", 1)])) == ["x/a/seed-1", "x/b", "y/a/seed-1"]
    assert distinct_names([run("x", "cub-mpa", "A", 0), run("y", "cub-mpa-dw", "B", 0)]) == ["mpa", "mpa-dw"]
    assert distinct_names([run("x", "cub-mpa", "A", 0)]) == ["cub-mpa"]


def test_differences_are_of_the_same_seed() -> None:
    groups = {"one": [run("a", "a", "A", seed) for seed in (0, 1, 2)], "other": [run("b", "b", "B", n) for n in (2, 0)]}
    values = {"one": [{"gap": 1.0}, {"gap": 50.0}, {"gap": 3.0}], "other": [{"gap": 5.0}, {"gap": 2.0}]}
    ((title, estimates),) = differences_from_first(groups, values).items()
    assert "other less one, paired by 2 seeds" in title
    assert estimates["gap"].mean == pytest.approx(1.5)  # of 2 − 1 and 5 − 3
    assert estimates["gap"].half_width == pytest.approx(interval(1, 2)[1])
    # Without two groups, and two seeds of both, there is no difference.
    one, other = [run("a", "a", "A", 0), run("a1", "a", "A", 1)], [run("b", "b", "B", 0)]
    assert differences_from_first({"one": one}, {"one": [{}, {}]}) == {}
    assert differences_from_first({"one": one, "other": other}, {"one": [{}, {}], "other": [{}]}) == {}
