"""Results of retrieval: averages, per class and per group, and intervals."""

import json
import math

import pytest
import torch

from proxemic.metrics import retrieval_metrics

pytestmark = pytest.mark.cpu


def test_is_a_plain_mapping_for_json() -> None:
    found = retrieval_metrics(torch.eye(2), torch.tensor([0, 0]), recall_at=())
    assert json.loads(json.dumps(found)) == {"map@r": 1.0, "r_precision": 1.0}


def test_averages_over_classes_and_what_they_are_made_of() -> None:
    points = torch.tensor([[0.0], [0.1], [0.25], [5.0], [0.3], [20.0]])
    labels = torch.tensor([3, 3, 3, 8, 8, 2**40])
    found = retrieval_metrics(points, labels, distance="euclidean", recall_at=(1,))
    assert found.per_query["recall@1"].tolist() == pytest.approx([1, 1, 0, 1, 0, math.nan], nan_ok=True)
    assert found.per_class().keys() == {3, 8}
    assert found.per_class()[3]["recall@1"] == pytest.approx(2 / 3)
    assert found["recall@1"] == pytest.approx(3 / 5)
    macro = retrieval_metrics(points, labels, distance="euclidean", recall_at=(1,), average="classes")
    assert macro["recall@1"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert macro.per_class() == found.per_class()


@pytest.mark.parametrize("average", ["queries", "classes"])
def test_every_value_has_an_interval_about_it(average) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 20
    points = torch.randn(20, 8, generator=generator)[labels] + torch.randn(120, 8, generator=generator)
    found = retrieval_metrics(points, labels, ndcg_at=(4,), nmi=True, average=average)
    intervals = found.intervals(resamples=200)
    assert intervals.keys() == found.keys()
    for name, interval in intervals.items():
        assert interval.value == pytest.approx(found[name], abs=1e-12)
        assert interval.low < found[name] < interval.high


def test_groups_of_queries_search_the_whole_gallery() -> None:
    generator = torch.Generator().manual_seed(0)
    points, labels = torch.randn(60, 3, generator=generator), torch.arange(60) % 6
    groups = torch.randint(-1, 3, (60,), generator=generator)
    found = retrieval_metrics(points, labels, average="classes")
    parts = found.by_group(groups)
    assert parts.keys() == {0, 1, 2}
    for group, part in parts.items():
        asked = (groups == group).nonzero().squeeze(1)
        alone = retrieval_metrics(points[asked], labels[asked], points, labels, exclude=asked, average="classes")
        assert (part, part.chance, part.queries) == (alone, alone.chance, alone.queries)
    with pytest.raises(ValueError, match=r"groups has torch.float32"):
        found.by_group(groups.float())
