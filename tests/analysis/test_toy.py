"""How compact the classes of a scene are, and that figure and film show what they are given."""

import math
from inspect import unwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from proxemic.analysis.toy import Scene, animate_scenes, draw_training_diagram, plot_scenes, separation


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(2, 6))
def test_separation_is_that_of_plain_loops(seed: int, dim: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat((torch.arange(classes), torch.randint(classes, (20,), generator=generator)))
    given = Scene(torch.randn(len(labels), dim, generator=generator, dtype=torch.float64), labels)
    rows = {c: [x for x, y in zip(given.embeddings, given.labels, strict=True) if y == c] for c in range(classes)}
    means = {c: sum(rows[c], torch.zeros(dim).double()) / len(rows[c]) for c in rows}
    within = sum(sum(float((x - means[c]).norm()) for x in rows[c]) / len(rows[c]) for c in rows) / classes
    apart = {c: [float((means[c] - means[d]).norm()) for d in rows if d != c] for c in rows}
    found = separation(given)
    assert found["within"] == pytest.approx(within, abs=1e-12)
    assert found["between"] == pytest.approx(sum(map(sum, apart.values())) / (classes * (classes - 1)))
    assert found["nearest"] == pytest.approx(sum(map(min, apart.values())) / classes)
    assert found["ratio"] == pytest.approx(found["nearest"] / within if within else math.inf)


def scene(seed: int = 0, dim: int = 2, classes: int = 3) -> Scene:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat((torch.arange(classes), torch.randint(classes, (20,), generator=generator)))
    return Scene(
        torch.randn(len(labels), dim, generator=generator, dtype=torch.float64),
        labels,
        torch.randn(classes, 2, dim, generator=generator, dtype=torch.float64),
    )


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("count", [1, 4])
def test_a_panel_a_scene(dim: int, count: int) -> None:
    figure = plot_scenes({f"run {number}": scene(number, dim) for number in range(count)}, ["a", "b", "c"])
    figure.draw_without_rendering()  # which fills collections in space
    assert [axes.get_title() for axes in figure.axes] == [f"run {number}" for number in range(count)]
    for axes in figure.axes:
        dots, stars = axes.collections
        assert (len(dots.get_facecolor()), len(stars.get_facecolor())) == (23, 6)  # type: ignore[arg-type]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]


def test_of_many_classes_none_is_named_and_a_loss_may_have_no_proxies() -> None:
    shown = scene(classes=12)
    figure = plot_scenes({"without": Scene(shown.embeddings, shown.labels)}, [str(number) for number in range(12)])
    assert figure.get_suptitle() == "12 classes in 10 colours"
    assert not figure.legends
    assert len(figure.axes[0].collections) == 1


def test_a_diagram_has_up_to_four_images_of_up_to_four_classes() -> None:
    labels = torch.tensor([*[0] * 6, 1, 1, 2, 3, 4])
    images = SimpleNamespace(labels=labels, pictures=[Image.new("L", (3, 2), color=index) for index in range(11)])
    draw: Any = unwrap(draw_training_diagram)
    figure = draw(images, scene(0), scene(1), "a network")
    *small, before, after = figure.axes
    shown = [[image.get_array()[0, 0, 0] for image in axes.images] for axes in small if axes.get_visible()]
    assert shown == [[0], [1], [2], [3], [6], [7], [8], [9]]
    assert (len(small), before.get_title(), after.get_title()) == (16, "embeddings before training", "after")


def test_a_film_shows_the_epochs_that_all_have_and_is_the_same_each_time(tmp_path: Path) -> None:
    films = {"one": {0: scene(0), 1: scene(1), 5: scene(2)}, "other": {0: scene(3), 5: scene(4), 7: scene(5)}}
    for name in ("a.gif", "b.gif"):
        animate_scenes(films, ["a", "b", "c"], tmp_path / name)
    assert (tmp_path / "a.gif").read_bytes() == (tmp_path / "b.gif").read_bytes()
    with Image.open(tmp_path / "a.gif") as film:
        assert film.n_frames == 2  # type: ignore[attr-defined]
        first = film.convert("RGB").tobytes()
        film.seek(1)
        assert film.convert("RGB").tobytes() != first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gif", "b.gif"]


def test_films_without_a_common_epoch(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no epoch in common"):
        animate_scenes({"one": {0: scene()}, "other": {1: scene()}}, ["a", "b", "c"], tmp_path / "a.gif")
    assert not (tmp_path / "a.gif").exists()
