"""Every public function of metrics gives the same for tensors, NumPy arrays and lists."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from proxemic import metrics
from proxemic.metrics import ranking

POINTS = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(60) % 30
PROXIES = torch.randn(30, 1, 4, generator=torch.Generator().manual_seed(1))
SAME = torch.arange(60) % 2 == 0
VALUES = POINTS[:, 0].double()

CALLS: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "retrieval": lambda to: metrics.retrieval_metrics(to(POINTS), to(LABELS), nmi=True),
    "gallery": lambda to: metrics.retrieval_metrics(
        to(POINTS), to(LABELS), to(POINTS), to(LABELS), exclude=to(torch.arange(60))
    ),
    "neighbours": lambda to: metrics.nearest_neighbours(to(POINTS), to(POINTS), k=3, exclude=to(torch.arange(60))),
    "nmi": lambda to: metrics.normalized_mutual_information(to(POINTS), to(LABELS)),
    "intervals": lambda to: metrics.bootstrap_intervals({"m": to(VALUES)}, to(LABELS), resamples=50),
    "paired": lambda to: metrics.paired_differences({"m": to(VALUES)}, {"m": to(VALUES.flip(0))}, to(LABELS)),
    "distance to proxy": lambda to: metrics.average_distance_to_proxy(to(POINTS), to(LABELS), to(PROXIES)),
    "proxy hits": lambda to: metrics.proxy_hits(to(POINTS), to(LABELS), to(PROXIES)),
    "pairs": lambda to: metrics.pair_distances(to(POINTS), to(POINTS.flip(0))),
    "verification": lambda to: metrics.verification_metrics(to(POINTS[:, 0]), to(SAME), folds=to(LABELS // 10)),
    "ranking": lambda to: ranking.ndcg_at_k(to(SAME.reshape(6, 10).long()), to(torch.full((6,), 5)), 8),
    "average precision": lambda to: ranking.map_at_r(to(SAME.reshape(6, 10).long()), to(torch.full((6,), 5))),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_arrays_and_lists_are_taken(name: str) -> None:
    expected = CALLS[name](lambda tensor: tensor)

    def read_only(tensor: torch.Tensor) -> np.ndarray:
        array = tensor.numpy().copy()
        array.setflags(write=False)
        return array

    def narrow(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.int() if tensor.dtype == torch.int64 else tensor

    for convert in (torch.Tensor.numpy, read_only, torch.Tensor.tolist, narrow):
        assert str(CALLS[name](convert)) == str(expected)


def test_what_holds_no_numbers_is_named() -> None:
    refused: list[tuple[str, Callable[[], object]]] = [
        ("query_labels is a <U1 array", lambda: metrics.retrieval_metrics(POINTS, np.array(["a", "b"]))),  # type: ignore[arg-type]
        ("query_labels is a list", lambda: metrics.retrieval_metrics(POINTS, ["a", "b"])),  # type: ignore[arg-type]
        ("queries is a list", lambda: metrics.retrieval_metrics([[1.0], [1.0, 2.0]], [0, 0])),  # type: ignore[arg-type]
        ("labels is a set", lambda: metrics.proxy_hits(POINTS, {1}, PROXIES)),  # type: ignore[arg-type]
        ("m is a str", lambda: metrics.bootstrap_intervals({"m": "abc"}, LABELS)),  # type: ignore[dict-item]
    ]
    for message, call in refused:
        with pytest.raises(ValueError, match=message):
            call()
