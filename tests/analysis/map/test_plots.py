"""The picture of a map: nothing is hidden, classes can be told apart, and the same map is the same file."""

from itertools import combinations
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from PIL import Image
from torch import Tensor

from proxemic.analysis.map.plots import NAMED_CLASSES, OTHERS, place_thumbnails, plot_map
from proxemic.plots import write_figure


def sample(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 40), side=st.floats(0.1, 3.0))
def test_thumbnails_hide_nothing(seed: int, rows: int, side: float) -> None:
    points = 4 + sample(rows, seed).clamp(-3, 3)
    avoid = 4 + sample(5, seed + 1).clamp(-3, 3)
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
    points, labels = 10 * sample(30), torch.arange(30) % 3
    figure = plot_map(
        points,
        labels,
        ["cat", "$dog", "_bird"],
        proxies=sample(4, seed=1),
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
    (axes,) = plot_map(sample(NAMED_CLASSES), few, [f"class {n}" for n in few.tolist()]).axes
    assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == NAMED_CLASSES
    assert len(axes.get_legend().get_texts()) == NAMED_CLASSES
    many = torch.arange(NAMED_CLASSES + 1)
    (axes,) = plot_map(sample(len(many)), many, [f"class {n}" for n in many.tolist()]).axes
    assert "colours and shapes repeat" in axes.get_legend().get_title().get_text()
    assert axes.get_legend().get_texts() == []


def test_the_same_map_is_the_same_file(tmp_path: Path) -> None:
    written = []
    for name in ("one", "other"):
        figure = plot_map(sample(12), torch.arange(12) % 2, ["a", "b" * 40], thumbnails=pictures)
        written.append([path.read_bytes() for path in write_figure(figure, tmp_path / name, ["x"], [])])
    assert written[0] == written[1]


def test_refuses() -> None:
    points, labels = sample(4), torch.tensor([0, 0, 1, 1])
    with pytest.raises(ValueError, match="points has 0 rows"):
        plot_map(points[:0], labels[:0], ["a", "b"])
    with pytest.raises(ValueError, match="points has 4 rows and labels 3"):
        plot_map(points, labels[:3], ["a", "b"])
    with pytest.raises(ValueError, match="proxies and proxy_labels do not fit"):
        plot_map(points, labels, ["a", "b"], proxies=points)
    for proxy_label in (-2, 2):
        with pytest.raises(ValueError, match="from 0 to 1"):
            plot_map(points, labels, ["a", "b"], proxies=points[:1], proxy_labels=torch.tensor([proxy_label]))
    with pytest.raises(ValueError, match="from 0 to 0"):
        plot_map(points, labels, ["a"])
