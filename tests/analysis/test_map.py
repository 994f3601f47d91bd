"""Maps: projections, and plots with thumbnails."""

import sys
from itertools import combinations
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from PIL import Image
from torch import Tensor

from proxemic.analysis.map import NAMED_CLASSES, OTHERS, place_thumbnails, plot_map, principal_components, t_sne, umap


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
        patch.setattr("proxemic.analysis.map._ROWS", part)
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
    with pytest.raises(ValueError, match="with 2 samples or more"):
        principal_components(points[:1])
    with pytest.raises(ValueError, match="with 4 samples or more"):
        t_sne(points[:3])
    with pytest.raises(ValueError, match="perplexity is 0"):
        t_sne(points, perplexity=0.0)
    points[0, 0] = torch.inf
    for draw in (principal_components, t_sne, umap):
        with pytest.raises(ValueError, match="NaN or infinite values in 1 of 6"):
            draw(points)


def places_of(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 40), side=st.floats(0.1, 3.0))
def test_thumbnails_hide_nothing(seed: int, rows: int, side: float) -> None:
    points = 4 + places_of(rows, seed).clamp(-3, 3)
    avoid = 4 + places_of(5, seed + 1).clamp(-3, 3)
    placed = place_thumbnails(points, range(rows), side=side, frame=8.0, avoid=avoid)
    hidden = [*points.tolist(), *avoid.tolist()]
    for x, y in placed.values():
        assert side / 2 - 1e-9 <= min(x, y)
        assert max(x, y) <= 8 - side / 2 + 1e-9
        assert all(max(abs(x - a), abs(y - b)) > side / 2 for a, b in hidden)
    for (x, y), (a, b) in combinations(placed.values(), 2):
        assert max(abs(x - a), abs(y - b)) > side
    for index, (x, y) in placed.items():
        assert torch.dist(points[index], torch.tensor([x, y], dtype=torch.float64)) < 1.5 * side


def test_the_first_come_first_and_not_more_than_asked_for() -> None:
    points = torch.tensor([[2.0, 2.0], [2.0, 2.0], [6.0, 6.0]], dtype=torch.float64)
    assert list(place_thumbnails(points, [2, 1, 0], side=1.0, frame=8.0, most=2)) == [2, 1]
    assert place_thumbnails(points, [0], side=9.0, frame=8.0) == {}


def pictures(index: int) -> Image.Image:
    return Image.new("L", (30, 20), color=index)


def test_points_proxies_and_thumbnails_are_there() -> None:
    points, labels = 10 * places_of(30), torch.arange(30) % 3
    figure = plot_map(
        points,
        labels,
        ["cat", "$dog", "_bird"],
        proxies=places_of(4, seed=1),
        proxy_labels=torch.tensor([0, 1, 1, -1]),
        thumbnails=pictures,
        axis_names=("x", "y"),
        title="a map",
    )
    (axes,) = figure.axes
    drawn = [line for line in axes.lines if line.get_linestyle() == "None"]
    marks = torch.cat([torch.tensor(line.get_xydata()) for line in drawn if line.get_marker() != "*"])
    for point in points:
        assert (marks == point).all(1).any()
    stars = [line for line in drawn if line.get_marker() == "*"]
    assert sorted(len(line.get_xdata()) for line in stars) == [1, 1, 2]
    assert sum(to_hex(line.get_color()) == OTHERS for line in stars) == 1
    assert len(axes.images) > 3
    below, above = sorted({patch.get_zorder() for patch in axes.patches})  # the white box, and the frame
    assert {below < image.get_zorder() < above for image in axes.images} == {True}
    boxes = [image.get_extent() for image in axes.images]
    for (left, right, bottom, top), (west, east, south, north) in combinations(boxes, 2):
        assert right < west or east < left or top < south or north < bottom
    for left, right, bottom, top in boxes:
        assert (right - left) / (top - bottom) == pytest.approx(1.5), "as the picture is"
        inside = (marks > torch.tensor([left, bottom])) & (marks < torch.tensor([right, top]))
        assert not inside.all(1).any()
    low, high = axes.get_xlim()
    assert high - low == pytest.approx(axes.get_ylim()[1] - axes.get_ylim()[0]), "one scale"
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["cat", "$dog", " _bird", "proxy of a class", "proxy of another class"]


def test_named_classes_look_different_and_more_are_not_named() -> None:
    few = torch.arange(NAMED_CLASSES)
    (axes,) = plot_map(places_of(NAMED_CLASSES), few, [f"class {n}" for n in few.tolist()]).axes
    assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == NAMED_CLASSES
    assert len(axes.get_legend().get_texts()) == NAMED_CLASSES
    many = torch.arange(NAMED_CLASSES + 1)
    (axes,) = plot_map(places_of(len(many)), many, [f"class {n}" for n in many.tolist()]).axes
    assert "colours and shapes repeat" in axes.get_legend().get_title().get_text()
    assert axes.get_legend().get_texts() == []
