"""The report of a gallery, with and without labels, a model and pictures."""

from pathlib import Path

import pytest
import torch

from browser import Opened, faults_of_access
from command_line import Here
from proxemic.report import write_gallery_report
from proxemic.retrieval import Gallery

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.mark.parametrize("look", [{}, {"color_scheme": "dark"}], ids=["light", "dark"])
def test_the_command_reports_on_a_gallery(
    here: Here, shelf: Path, tmp_path: Path, browse: Opened, look: dict[str, str]
) -> None:
    page = tmp_path / "shop.html"
    result = here("report", shelf / "shop", "--out", page)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"Wrote {page}\n"
    with browse(page.as_uri(), **look) as opened:  # pyright: ignore[reportArgumentType]
        opened.wait_for_selector(".chart .mark-symbol path")
        titles = opened.locator("h2").all_inner_texts()
        assert titles[:4] == ["Summary", "Suspected images", "Metrics", "Queries"]
        assert titles[4:] == ["Confused classes", "Distances", "Map", "Why two images are near"]
        assert opened.locator(".lead").inner_text().startswith("28 images of 7 labels: the nearest other image ")
        assert opened.get_by_role("row", name="rows 28 with 7 labels", exact=True).is_visible()
        assert opened.get_by_role("columnheader", name="shop", exact=True).is_visible(), "not the whole path"
        assert faults_of_access(opened) == []


def test_a_gallery_of_vectors_alone(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "vectors", dim=4)
    vectors = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    gallery.add_vectors(vectors, [f"{HOSTILE}{row}" for row in range(30)])
    gallery.close()
    said: list[str] = []
    text = write_gallery_report(tmp_path / "vectors", out=tmp_path / "a.html", report=said.append).read_text()
    assert "does not know the model of its vectors" in said[0]
    assert "Random queries" in text
    assert "<img src=x" not in text
    assert ">Metrics</h2>" not in text


def test_pictures_outside_of_the_gallery_are_not_opened(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [str(path) for path in sorted((shelf / "photos").rglob("*.png"))]
    gallery = Gallery.create(tmp_path / "vectors", dim=4)
    gallery.add_vectors(torch.randn(len(names) + 1, 4), [*names, "http://127.0.0.1/"])
    monkeypatch.setattr("proxemic.data.reading._open", lambda _: pytest.fail("a picture is opened"))
    text = write_gallery_report(tmp_path / "vectors", out=tmp_path / "a.html", report=lambda _: None).read_text()
    assert "Random queries" in text


def test_many_rows_are_a_sample(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxemic.report.gallery._MOST", 10)
    said: list[str] = []
    text = write_gallery_report(shelf / "shop", out=tmp_path / "a.html", report=said.append).read_text()
    assert said == ["The report shows 10 of 28 images, drawn at random."]
    assert "shows 10 of the images, drawn at random" in text
    assert "A map of 10 images" in text


def test_refuses(here: Here, shelf: Path, tmp_path: Path) -> None:
    Gallery.create(tmp_path / "empty", dim=4).close()
    for words, said in (
        ([shelf / "shop", tmp_path], "another target is for a run"),
        ([tmp_path / "empty"], "is empty: add images with proxemic gallery add"),
    ):
        result = here("report", *words)
        assert result.returncode == 2
        assert said in result.stderr
