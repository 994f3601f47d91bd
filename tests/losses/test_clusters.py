"""k-means against a naive implementation, and proxies that start at its centres."""

import itertools

import pytest
import torch
from torch import Tensor

from proxemic.losses import ArcFaceLoss, EuclideanSoftmaxLoss, ProxyLoss, SoftTripleLoss
from proxemic.losses.clusters import k_means


def some_points(count: int, dim: int, seed: int) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("spherical", [False, True])
def test_it_finds_the_best_of_all_partitions(spherical: bool) -> None:
    points = some_points(8, 3, 0).double() + torch.tensor([[1.5], [-1.5]], dtype=torch.float64).repeat(4, 1)
    units = points / points.norm(dim=1, keepdim=True)
    points = units if spherical else points

    def spread(partition: tuple[int, ...]) -> float:
        total = 0.0
        for k in set(partition):
            members = points[[of == k for of in partition]]
            mean = members.mean(0)
            total += float((members - (mean / mean.norm() if spherical else mean)).square().sum())
        return total

    best = min(itertools.product(range(2), repeat=8), key=spread)
    means = torch.stack([points[[of == k for of in best]].mean(0) for k in set(best)])
    means = means / means.norm(dim=1, keepdim=True) if spherical else means
    found = k_means(points, 2, spherical=spherical)
    assert sorted(map(tuple, found.tolist())) == [pytest.approx(mean) for mean in sorted(map(tuple, means.tolist()))]


def test_no_more_different_points_than_clusters_are_the_centers() -> None:
    points = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    assert k_means(points, 3, spherical=False).tolist() == [[0.0, 2.0], [1.0, 0.0]]
    assert k_means(points, 2, spherical=True).tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert k_means(points[:0], 2, spherical=True).shape == (0, 2)


@pytest.mark.parametrize(
    "loss", [SoftTripleLoss(3, 4, proxies_per_class=2), EuclideanSoftmaxLoss(3, 4, proxies_per_class=2)]
)
def test_proxies_begin_at_the_centers_of_their_own_class(loss: ProxyLoss) -> None:
    cosine = isinstance(loss, SoftTripleLoss)
    drawn = loss.proxies.detach().clone()
    embeddings = torch.cat([some_points(12, 4, 1), some_points(1, 4, 2)])
    labels = torch.tensor([0, 2] * 6 + [1])
    loss.begin_at_clusters(embeddings, labels, seed=5)
    for label in (0, 2):
        expected = k_means(embeddings[labels == label], 2, spherical=cosine, seed=5)
        if cosine:
            expected = expected * drawn[label].norm(dim=1, keepdim=True)
        torch.testing.assert_close(loss.proxies[label].detach(), expected.float())
    assert torch.equal(loss.proxies[1, 1], drawn[1, 1])  # of one image one proxy moves
    assert not torch.equal(loss.proxies[1, 0], drawn[1, 0])


def test_with_one_proxy_it_is_the_mean_of_the_class() -> None:
    ours, theirs = (ArcFaceLoss(2, 3, init=lambda proxies: torch.nn.init.ones_(proxies)) for _ in range(2))
    embeddings, labels = some_points(10, 3, 3), torch.arange(10) % 2
    ours.begin_at_clusters(embeddings, labels)
    theirs.begin_at_class_means(embeddings, labels)
    torch.testing.assert_close(ours.proxies, theirs.proxies)


def test_what_does_not_fit_is_refused() -> None:
    loss = SoftTripleLoss(3, 4, proxies_per_class=2)
    with pytest.raises(ValueError, match="labels hold 3, but num_classes=3"):
        loss.begin_at_clusters(torch.randn(2, 4), torch.tensor([0, 3]))
    with pytest.raises(ValueError, match=r"embeddings have shape \[2, 5\]"):
        loss.begin_at_clusters(torch.randn(2, 5), torch.tensor([0, 1]))
