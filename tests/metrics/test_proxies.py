"""Samples around their proxies, against plain loops and the losses' own predictions."""

import math

import pytest
import torch
from torch import Tensor

from proxemic.losses import EuclideanSoftmaxLoss, ProxyAnchorLoss
from proxemic.metrics.exact import Distance
from proxemic.metrics.proxies import (
    average_distance_to_proxy,
    class_distances_to_proxy,
    proxy_accuracy,
    proxy_hits,
)


def sample(rows: int = 60, classes: int = 7, proxies: int = 3, dim: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes - 1, (rows,), generator=generator)  # the last class has no samples
    points = torch.randn(classes, proxies, dim, generator=generator)
    return points[labels, 0] + torch.randn(rows, dim, generator=generator), labels, points


def test_average_distance_equals_equation_9() -> None:
    embeddings, labels, proxies = sample()
    distances: dict[int, list[float]] = {}
    for embedding, label in zip(embeddings.tolist(), labels.tolist(), strict=True):
        own = [math.dist(embedding, proxy) for proxy in proxies[label].tolist()]
        distances.setdefault(label, []).append(min(own))
    means = {label: sum(distance) / len(distance) for label, distance in distances.items()}
    found = class_distances_to_proxy(embeddings, labels, proxies)
    assert {c: value for c, value in enumerate(found.tolist()) if not math.isnan(value)} == pytest.approx(means)
    assert bool(found[-1].isnan())
    assert average_distance_to_proxy(embeddings, labels, proxies) == pytest.approx(sum(means.values()) / len(means))


def test_average_distance_is_a_mean_over_classes_not_samples() -> None:
    proxies = torch.zeros(2, 1, 1)
    assert (
        average_distance_to_proxy(torch.tensor([[1.0], [1.0], [1.0], [9.0]]), torch.tensor([0, 0, 0, 1]), proxies) == 5
    )


def test_distances_near_a_far_proxy_keep_their_digits() -> None:
    proxies = torch.full((1, 1, 512), 1000.0)
    embeddings = proxies[0] + torch.eye(512)[:1] / 8
    assert average_distance_to_proxy(embeddings, torch.tensor([0]), proxies) == 0.125


def test_the_order_of_rows_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings, labels, proxies = sample(rows=301, dim=37)
    average, hits = average_distance_to_proxy(embeddings, labels, proxies), proxy_hits(embeddings, labels, proxies)
    for seed in range(3):
        order = torch.randperm(301, generator=torch.Generator().manual_seed(seed))
        assert average_distance_to_proxy(embeddings[order], labels[order], proxies) == average
        assert torch.equal(proxy_hits(embeddings[order], labels[order], proxies), hits[order])
    monkeypatch.setattr("proxemic.metrics.proxies._NUMBERS", 1000)
    assert average_distance_to_proxy(embeddings, labels, proxies) == average


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_hits_equal_a_loop(distance: Distance) -> None:
    embeddings, labels, proxies = sample(rows=200)

    def away(embedding: Tensor, proxy: Tensor) -> float:
        if distance == "euclidean":
            return math.dist(embedding.tolist(), proxy.tolist())
        return 1 - float(torch.cosine_similarity(embedding.double(), proxy.double(), dim=0))

    expected = [
        min(range(7), key=lambda c: min(away(embedding, proxy) for proxy in proxies[c])) == label
        for embedding, label in zip(embeddings, labels.tolist(), strict=True)
    ]
    assert proxy_hits(embeddings, labels, proxies, distance=distance).tolist() == expected
    assert 0.2 < sum(expected) / 200 < 0.9
    assert proxy_accuracy(embeddings, labels, proxies, distance=distance) == sum(expected) / 200


@pytest.mark.parametrize(("loss", "distance"), [(ProxyAnchorLoss, "cosine"), (EuclideanSoftmaxLoss, "euclidean")])
def test_agrees_with_what_a_loss_predicts(
    loss: type[ProxyAnchorLoss] | type[EuclideanSoftmaxLoss], distance: Distance
) -> None:
    torch.manual_seed(0)
    criterion = loss(9, 5)
    embeddings, labels = torch.randn(100, 5), torch.arange(100) % 9
    with torch.no_grad():
        embeddings += 2 * criterion.proxies[labels, 0]
    hits = proxy_hits(embeddings, labels, criterion.proxies, distance=distance)
    assert torch.equal(hits, criterion.predict(embeddings) == labels)
    assert 0 < int(hits.sum()) < 100


def test_ties_with_another_class_are_wrong_in_any_order() -> None:
    generator = torch.Generator().manual_seed(0)
    proxies = torch.randn(6, 2, 33, generator=generator)
    proxies[4, 1] = proxies[1, 0]
    proxies[2, 1] = proxies[2, 0]  # a tie within a class
    embeddings = proxies[[1, 4, 2, 3], [0, 1, 0, 1]] + 0.01 * torch.randn(4, 33, generator=generator)
    labels = torch.tensor([1, 4, 2, 3])
    assert proxy_hits(embeddings, labels, proxies).tolist() == [False, False, True, True]
    names = torch.tensor([5, 4, 3, 2, 1, 0])
    assert proxy_hits(embeddings, names[labels], proxies[names]).tolist() == [False, False, True, True]
    # A zero vector is as far from all.
    assert proxy_accuracy(torch.zeros(2, 33), torch.tensor([0, 1]), proxies) == 0
    assert proxy_accuracy(torch.ones(2, 4), torch.tensor([0, 1]), torch.ones(3, 1, 4)) == 0


def test_one_class_is_always_right() -> None:
    assert proxy_accuracy(torch.randn(3, 4), torch.zeros(3, dtype=torch.long), torch.randn(1, 2, 4)) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_and_gradients(dtype: torch.dtype) -> None:
    embeddings, labels, proxies = sample()
    embeddings, parameter = embeddings.to(dtype), torch.nn.Parameter(proxies)
    assert average_distance_to_proxy(embeddings, labels.int(), parameter) == pytest.approx(
        average_distance_to_proxy(embeddings.float(), labels, proxies), rel=1e-6
    )
    assert torch.equal(proxy_hits(embeddings, labels, parameter), proxy_hits(embeddings.float(), labels, proxies))


def test_refuses() -> None:
    embeddings, labels, proxies = sample()
    broken, strange = embeddings.clone(), proxies.clone()
    broken[[1, 4, 9], 0] = torch.nan
    strange[2, 1, 0] = torch.inf
    refused = {
        r"embeddings has NaN or infinite values in 3 of 60": (broken, labels, proxies),
        r"proxies has NaN or infinite values in 1 of 21": (embeddings, labels, strange),
        r"labels holds 7 but must be from 0 to 6": (embeddings, labels + (labels == 5) * 2, proxies),
        r"labels holds -1 but must be from 0 to 6": (embeddings, labels - 1, proxies),
        r"labels has shape \(59,\) but must be \[60\]": (embeddings, labels[1:], proxies),
        r"proxies has shape \(7, 4\) but must be \[classes, proxies, 4\]": (embeddings, labels, proxies[:, 0]),
    }
    for message, arguments in refused.items():
        for measure in (average_distance_to_proxy, proxy_accuracy):
            with pytest.raises(ValueError, match=message):
                measure(*arguments)
