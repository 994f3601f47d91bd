"""Toy pictures: what is measured of them, and that figure and film show what they are given."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from proxemic.analysis.toy import Scene, animate_scenes, plot_scenes


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
