"""Principal components against numpy's singular values; t-SNE for what it promises."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from proxemic.analysis.map.projections import principal_components, t_sne, umap


def sample(rows: int, dim: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("rows", "dim"), [(50, 6), (9, 30), (7, 2)])
def test_components_are_singular_vectors(rows: int, dim: int) -> None:
    points = 5 + sample(rows, dim) * torch.arange(1, dim + 1)
    found = principal_components(points)
    centred = points.double().numpy() - points.double().numpy().mean(0)
    _, values, directions = np.linalg.svd(centred, full_matrices=False)
    signs = np.sign([row[np.abs(row).argmax()] for row in directions[:2]])
    expected = (directions[:2] * signs[:, None]).T
    np.testing.assert_allclose(found.directions.numpy(), expected, atol=1e-9)
    np.testing.assert_allclose(found.shares.numpy(), (values**2 / (values**2).sum())[:2], atol=1e-12)
    np.testing.assert_allclose(found.project(points).numpy(), centred @ expected, atol=1e-8)
    proxies = sample(4, dim, seed=1)
    elsewhere = (proxies.double().numpy() - points.double().numpy().mean(0)) @ expected
    np.testing.assert_allclose(found.project(proxies).numpy(), elsewhere, atol=1e-8)


@given(seed=st.integers(0, 2**32 - 1), part=st.integers(1, 40))
def test_order_rotation_and_parts_change_nothing(seed: int, part: int) -> None:
    points = sample(30, 5, seed) * torch.tensor([9.0, 5.0, 2.0, 1.0, 1.0])
    found = principal_components(points)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proxemic.analysis.map.projections._ROWS", part)
        again = principal_components(points[order])
        torch.testing.assert_close(again.directions, found.directions, atol=1e-8, rtol=0)
        torch.testing.assert_close(again.project(points), found.project(points), atol=1e-7, rtol=0)
    rotation = torch.linalg.qr(sample(5, 5, seed + 1).double()).Q
    turned = principal_components(points.double() @ rotation)
    torch.testing.assert_close(turned.shares, found.shares, atol=1e-9, rtol=0)
    places = turned.project(points.double() @ rotation)
    torch.testing.assert_close(places.abs(), found.project(points).abs(), atol=1e-5, rtol=0)


def test_points_that_are_all_the_same_have_no_variance() -> None:
    found = principal_components(torch.ones(5, 3))
    assert found.shares.tolist() == [0.0, 0.0]
    assert found.project(torch.ones(2, 3)).abs().max() == 0


def neighbours_of_the_class(places: Tensor, labels: Tensor) -> int:
    distances = torch.cdist(places, places).fill_diagonal_(torch.inf)
    return int((labels[distances.argmin(1)] == labels).sum())


def test_neighbours_stay_neighbours_in_the_tsne_and_it_is_repeated() -> None:
    labels = torch.arange(60) % 10
    points = 10 * torch.eye(10)[labels] + sample(60, 10)
    places = t_sne(points, perplexity=5.0)
    assert neighbours_of_the_class(places, labels) == 60
    assert neighbours_of_the_class(principal_components(points).project(points), labels) < 60, "or it were no art"
    assert torch.equal(t_sne(points, perplexity=5.0), places)


@pytest.mark.parametrize("points", [sample(4, 5), sample(6, 1), torch.ones(5, 3)], ids=["few", "line", "one place"])
def test_tsne_of_little(points: Tensor) -> None:
    places = t_sne(points)
    assert places.shape == (len(points), 2)
    assert places.isfinite().all()


class _Umap:
    """In place of umap-learn's class, which compiles for a minute: moves nothing."""

    def __init__(self, n_neighbors: int, init: np.ndarray, random_state: int, n_jobs: int) -> None:
        assert (random_state, n_jobs) == (0, 1), "or it would not be repeated"
        self.neighbours, self.init = n_neighbors, init

    def fit_transform(self, rows: np.ndarray) -> np.ndarray:
        assert 2 <= self.neighbours < len(rows)
        return self.init


@pytest.mark.parametrize("points", [sample(4, 5), sample(30, 1), torch.ones(5, 3)], ids=["few", "line", "one place"])
def test_umap_begins_at_the_principal_components(points: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", ModuleType("umap"))
    monkeypatch.setattr(sys.modules["umap"], "UMAP", _Umap, raising=False)
    places = umap(points)
    components = principal_components(points, min(2, points.shape[1])).project(points)
    scale = components[:, 0].std(correction=0) or 1.0
    torch.testing.assert_close(places[:, : components.shape[1]], components / scale, atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="neighbours is 1, but must be 2 or more"):
        umap(points, neighbours=1)


def test_refuses() -> None:
    points = sample(6, 3)
    for k in (0, 4):
        with pytest.raises(ValueError, match=f"k is {k}, but must be from 1 to 3"):
            principal_components(points, k)
    with pytest.raises(ValueError, match="with 2 rows or more"):
        principal_components(points[:1])
    with pytest.raises(ValueError, match="with 4 rows or more"):
        t_sne(points[:3])
    with pytest.raises(ValueError, match="perplexity is 0"):
        t_sne(points, perplexity=0.0)
    points[0, 0] = torch.inf
    for draw in (principal_components, t_sne, umap):
        with pytest.raises(ValueError, match="NaN or infinite values in 1 of 6"):
            draw(points)
