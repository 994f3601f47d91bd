"""Average linkage against its definition, and the threshold of the best groups against all others."""

import itertools

import numpy as np
import pytest
import torch

from proxemic.metrics import Distance, partition_agreement
from proxemic.retrieval.curation.linkage import average_linkage, best_cut, cut


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_the_best_threshold_is_better_than_all_others(distance: Distance) -> None:
    rng = np.random.default_rng(0)
    labels = torch.arange(60) % 9
    x = torch.from_numpy(rng.normal(size=(9, 6))[labels] + 0.8 * rng.normal(size=(60, 6)))
    merges, distances = average_linkage(x, distance)
    tried = [float(each) + 1e-9 for each in distances]
    scores = [partition_agreement(labels, cut(merges, distances, threshold)).f1 for threshold in tried]
    best = best_cut(merges, distances, labels)
    assert 0.2 < max(scores) < 1
    assert partition_agreement(labels, cut(merges, distances, best)).f1 == max(scores)


def test_groups_are_joined_at_their_mean_distance() -> None:
    x = torch.tensor([[0.0], [1.0], [3.0], [10.0]])
    merges, distances = average_linkage(x, "euclidean")
    mean = [1.0, (3 + 2) / 2, (10 + 9 + 7) / 3]
    assert distances.tolist() == pytest.approx(mean)
    for threshold, groups in zip((1.0, 1.01, 2.51, 9), (4, 3, 2, 1), strict=True):
        numbers = cut(merges, distances, threshold).tolist()
        assert len({*numbers}) == groups == 1 + sum(one != other for one, other in itertools.pairwise(numbers))
    assert cut(*average_linkage(x[:1], "euclidean"), 1.0).tolist() == [0]
