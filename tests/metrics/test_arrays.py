"""Every public function of metrics gives the same for tensors, NumPy arrays and lists."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from proxemic import metrics

pytestmark = pytest.mark.cpu

POINTS = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(60) % 30
PROXIES = torch.randn(30, 1, 4, generator=torch.Generator().manual_seed(1))
SAME = torch.arange(60) % 2 == 0
VALUES = POINTS[:, 0].double()

RANKED, R = SAME.reshape(6, 10).long(), torch.full((6,), 5)

CALLS: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "retrieval_metrics": lambda to: metrics.retrieval_metrics(to(POINTS), to(LABELS), map=True, mrr=True, nmi=True),
    "retrieval_metrics of a gallery": lambda to: metrics.retrieval_metrics(
        to(POINTS), to(LABELS), to(POINTS), to(LABELS), exclude=to(torch.arange(60))
    ),
    "nearest_neighbours": lambda to: metrics.nearest_neighbours(
        to(POINTS), to(POINTS), k=3, exclude=to(torch.arange(60))
    ),
    "k_reciprocal_distances": lambda to: metrics.k_reciprocal_distances(to(POINTS), to(POINTS)),
    "expand_queries": lambda to: metrics.expand_queries(to(POINTS), to(POINTS), k=3),
    "clustering_metrics": lambda to: metrics.clustering_metrics(to(POINTS), to(LABELS)),
    "kmeans_clusters": lambda to: metrics.kmeans_clusters(to(POINTS), 3),
    "normalized_mutual_information": lambda to: metrics.normalized_mutual_information(to(POINTS), to(LABELS)),
    "adjusted_mutual_information": lambda to: metrics.adjusted_mutual_information(to(POINTS), to(LABELS)),
    "partition_agreement": lambda to: metrics.partition_agreement(to(LABELS // 2), to(LABELS)),
    "bootstrap_intervals": lambda to: metrics.bootstrap_intervals({"m": to(VALUES)}, to(LABELS), resamples=50),
    "paired_differences": lambda to: metrics.paired_differences(
        {"m": to(VALUES)}, {"m": to(VALUES.flip(0))}, to(LABELS)
    ),
    "average_distance_to_proxy": lambda to: metrics.average_distance_to_proxy(to(POINTS), to(LABELS), to(PROXIES)),
    "class_distances_to_proxy": lambda to: metrics.class_distances_to_proxy(to(POINTS), to(LABELS), to(PROXIES)),
    "proxy_accuracy": lambda to: metrics.proxy_accuracy(to(POINTS), to(LABELS), to(PROXIES)),
    "proxy_hits": lambda to: metrics.proxy_hits(to(POINTS), to(LABELS), to(PROXIES)),
    "open_set_identification": lambda to: metrics.open_set_identification(
        to(POINTS), to(LABELS), to(POINTS[:20]), to(LABELS[:20])
    ).points,
    "pair_distances": lambda to: metrics.pair_distances(to(POINTS), to(POINTS.flip(0))),
    "verification_metrics": lambda to: metrics.verification_metrics(to(POINTS[:, 0]), to(SAME), folds=to(LABELS // 10)),
    "verification_accuracy": lambda to: metrics.verification_accuracy(
        to(POINTS[:, 0]), to(SAME), folds=to(LABELS // 10)
    ),
    "best_threshold": lambda to: metrics.best_threshold(to(POINTS[:, 0]), to(SAME)),
    "roc_auc": lambda to: metrics.roc_auc(to(POINTS[:, 0]), to(SAME)),
    "tar_at_far": lambda to: metrics.tar_at_far(to(POINTS[:, 0]), to(SAME)),
    "equal_error_rate": lambda to: metrics.equal_error_rate(to(POINTS[:, 0]), to(SAME)),
    "recall_at_k": lambda to: metrics.recall_at_k(to(RANKED), to(R), 3),
    "precision_at_k": lambda to: metrics.precision_at_k(to(RANKED), to(R), 3),
    "r_precision": lambda to: metrics.r_precision(to(RANKED), to(R)),
    "map_at_r": lambda to: metrics.map_at_r(to(RANKED), to(R)),
    "map_at_k": lambda to: metrics.map_at_k(to(RANKED), to(R), 3, divisor="hits"),
    "mrr": lambda to: metrics.mrr(to(RANKED), to(R)),
    "ndcg_at_k": lambda to: metrics.ndcg_at_k(to(RANKED), to(R), 8),
}  # fmt: skip


def test_every_public_function_is_called() -> None:
    public = {name for name in metrics.__all__ if inspect.isfunction(getattr(metrics, name))}
    assert {name.split()[0] for name in CALLS} == public - {"bootstrap_statistic"}  # which takes a function


@pytest.mark.parametrize("name", CALLS)
def test_arrays_and_lists_are_taken(name: str) -> None:
    expected = CALLS[name](lambda tensor: tensor)

    def read_only(tensor: torch.Tensor) -> np.ndarray:
        array = tensor.numpy().copy()
        array.setflags(write=False)
        return array

    def backwards(tensor: torch.Tensor) -> np.ndarray:
        return np.flip(np.flip(tensor.numpy()).copy())

    def narrow(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.int() if tensor.dtype == torch.int64 else tensor

    for convert in (torch.Tensor.numpy, read_only, backwards, torch.Tensor.tolist, narrow):
        assert str(CALLS[name](convert)) == str(expected)


def test_what_holds_no_numbers_is_named() -> None:
    refused: list[tuple[str, Callable[[], object]]] = [
        ("query_labels is a list", lambda: metrics.retrieval_metrics(POINTS, ["a", 1])),  # type: ignore[arg-type]
        ("queries is a list", lambda: metrics.retrieval_metrics([[1.0], [1.0, 2.0]], [0, 0])),  # type: ignore[arg-type]
        ("labels is a set", lambda: metrics.proxy_hits(POINTS, {1}, PROXIES)),  # type: ignore[arg-type]
        ("m is a str", lambda: metrics.bootstrap_intervals({"m": "abc"}, LABELS)),  # type: ignore[dict-item]
    ]
    for message, call in refused:
        with pytest.raises(ValueError, match=message):
            call()
