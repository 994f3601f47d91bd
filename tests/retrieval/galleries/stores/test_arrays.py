"""Exact search, of any shape of queries and rows, against the definition."""

import numpy as np
import pytest

from galleries import naive_search, random_vectors
from proxemic.retrieval.galleries.stores import arrays
from proxemic.retrieval.galleries.stores.arrays import Arrays
from proxemic.retrieval.galleries.stores.store import Distance


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("order", ["random", "farthest first"])
@pytest.mark.parametrize("shown", [1.0, 0.9, 0.02])
def test_all_blocks_and_masks_give_the_nearest(
    distance: Distance, order: str, shown: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "_SCORES", 1)  # blocks of 256 rows
    monkeypatch.setattr(arrays, "_QUERIES", 3)
    vectors, queries = random_vectors(1500, 6, 0, distance), random_vectors(7, 6, 1, distance)
    if order == "farthest first":
        vectors = vectors[np.argsort(-np.linalg.norm(vectors - queries[0], axis=1))]
    mask = np.random.default_rng(2).random(1500) < shown
    ids = 10 + 3 * np.arange(1500)
    rows = {int(ids[place]): vectors[place] for place in np.flatnonzero(mask)}
    for k in (1, 10, 2000):
        found = Arrays(distance, ids, vectors).search(queries, k, None if shown == 1 else mask)
        distances, right = naive_search(queries, rows, k, distance)
        if k < 2000:  # some of all are equally near in float32
            np.testing.assert_array_equal(found.ids, right)
        np.testing.assert_array_equal(np.sort(found.ids), np.sort(right))
        np.testing.assert_allclose(found.distances, distances, atol=1e-5)


def test_vectors_that_are_not_finite_hide_no_others() -> None:
    vectors = random_vectors(3000, 4)
    damaged = vectors.copy()
    damaged[::7] = np.nan
    rows = {place: vector for place, vector in enumerate(vectors) if place % 7}
    found = Arrays("cosine", np.arange(3000), damaged).search(vectors[1:4], 5, None)
    np.testing.assert_array_equal(found.ids, naive_search(vectors[1:4], rows, 5, "cosine")[1])
