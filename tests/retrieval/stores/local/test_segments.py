"""Comparing queries with every row, by Faiss or without it."""

import numpy as np
import pytest

from galleries import random_vectors
from proxemic.retrieval.stores.local import segments
from proxemic.retrieval.stores.local.segments import nearest


@pytest.fixture(params=[False, True], ids=["without Faiss", "Faiss"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(segments, "_WORTH_FAISS", 0 if request.param else 2**20)
    return request.param


@pytest.mark.parametrize(("queries", "rows", "k"), [(1, 50, 10), (7, 50, 50), (3, 4, 9), (2, 1, 1)])
def test_both_find_the_nearest(engine: bool, queries: int, rows: int, k: int) -> None:
    vectors, asked = (
        each / np.linalg.norm(each, axis=1, keepdims=True)
        for each in (random_vectors(rows, 6), random_vectors(queries, 6, seed=1))
    )
    distances, places = nearest(asked, vectors, k, "cosine")
    wanted = 1 - asked.astype(np.float64) @ vectors.T.astype(np.float64)
    order = np.argsort(wanted, axis=1)[:, :k]
    assert [*map(set, places.tolist())] == [*map(set, order.tolist())]
    np.testing.assert_allclose(distances, np.take_along_axis(wanted, places, 1), atol=1e-6)


def test_what_is_not_a_number_is_never_found(engine: bool) -> None:
    vectors = random_vectors(5, 6)
    vectors[2] = np.nan
    _, places = nearest(vectors[:1], vectors, 5, "cosine")
    assert sorted(places[0]) == [-1, 0, 1, 3, 4]
