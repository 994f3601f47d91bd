"""The map in a browser, with the other sections that have pictures: a thousand pictures of noise."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Page
from torch import Tensor

from browser import PHONE, Opened, faults_of_access
from command_line import Here, assert_refused
from judged import judged_rows
from proxemic.analysis.map import principal_components, t_sne
from proxemic.pages import render_page
from proxemic.report import Judged
from proxemic.report.classes import confused
from proxemic.report.pictured_map import pictured_map
from proxemic.report.queries import queries
from proxemic.report.why_near import why_near
from proxemic.retrieval import Embedder
from shelves import write_model

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&{{7*7}}"
POINTS = ".chart .mark-symbol path"


@pytest.fixture(scope="module")
def judged() -> Judged:
    labels = [row % 20 for row in range(1000)]
    names = [HOSTILE, *(f"class {number:02d}" for number in range(1, 20))]
    return judged_rows(labels, names=names, paths=[f"photos/{HOSTILE}/{row}.png" for row in range(1000)], spread=1.0)


@pytest.fixture(scope="module")
def address(judged: Judged, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("map")
    with_model = replace(judged, embedder=Embedder.load(write_model(folder / "model", dim=8)))
    sections = [section(with_model) for section in (queries, confused, pictured_map, why_near)]
    page = render_page("Pictures", [section for section in sections if section is not None])
    (folder / "page.html").write_text(page, encoding="utf-8")
    return (folder / "page.html").as_uri()


@pytest.fixture(scope="module")
def page(browse: Opened, address: str) -> Iterator[Page]:
    with browse(address) as page:
        page.wait_for_selector(POINTS)
        yield page


def test_a_thousand_pictures_of_noise_take_less_than_5_mb(address: str) -> None:
    size = Path(address.removeprefix("file://")).stat().st_size
    assert 3_000_000 < size < 5_000_000, size


def test_hovering_over_a_point_shows_its_picture_class_and_name(page: Page) -> None:
    assert page.locator(POINTS).count() == 1000
    page.locator(POINTS).first.hover(force=True)
    shown = page.locator("#vg-tooltip-element.visible")
    assert shown.locator("img").get_attribute("src", timeout=5000).startswith("data:image/jpeg")  # pyright: ignore[reportOptionalMemberAccess]
    assert shown.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)") > 10
    assert "class" in shown.inner_text()
    assert ".png" in shown.inner_text()


def test_searching_by_keyboard_leaves_a_class_and_is_undone(page: Page) -> None:
    def bright() -> int:
        return page.locator(POINTS).evaluate_all(
            "all => all.filter(each => Number(each.getAttribute('opacity') ?? 1) > 0.5).length"
        )

    box = page.get_by_role("searchbox", name="Search by class")
    assert bright() == 1000
    box.focus()
    page.keyboard.type("CLASS 07")
    page.wait_for_timeout(200)
    assert bright() == 50
    box.fill("onerror")  # as text
    page.wait_for_timeout(200)
    assert bright() == 50
    box.fill("")
    page.wait_for_timeout(200)
    assert bright() == 1000


def test_the_classes_are_a_list_for_those_who_see_no_map(page: Page) -> None:
    summary = page.get_by_text("The 20 classes of the map")
    summary.focus()
    page.keyboard.press("Enter")
    assert page.get_by_role("row", name="class 07 50").is_visible()


def test_names_of_files_and_classes_stay_text(page: Page) -> None:
    assert page.locator("img[src=x]").count() == 0
    assert page.locator("figcaption", has_text=HOSTILE).count() > 0
    assert "49" not in page.locator("h3").all_inner_texts()


@pytest.mark.parametrize("look", [{"color_scheme": "dark"}, PHONE], ids=["dark", "phone"])
def test_everyone_can_read_it(browse: Opened, address: str, look: dict[str, Any]) -> None:
    with browse(address, **look) as page:
        page.wait_for_selector(POINTS)
        assert faults_of_access(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_more_classes_than_two_dozen_are_grey() -> None:
    for classes in (24, 25):
        section = pictured_map(judged_rows([row % classes for row in range(50)]))
        assert section is not None
        assert "principal components" in section.html
        assert ('"condition": {"test": "wanted' in section.html) == (classes > 24)


def test_other_projections_have_no_axes(judged: Judged) -> None:
    few = replace(judged, embeddings=judged.embeddings[:8], images=judged.images.select(range(8)))
    section = pictured_map(few, method="tsne")
    assert section is not None
    assert "t-SNE keeps neighbours" in section.html
    places = t_sne(torch.nn.functional.normalize(few.embeddings.double()))
    assert f'"x": {places[0, 0]:.4g}' in section.html
    assert "first component" not in section.html
    with pytest.raises(ValueError, match="projection is 'lda', but must be one of pca, tsne, umap"):
        pictured_map(few, method="lda")  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_a_map_by_umap(browse: Opened, tmp_path: Path) -> None:
    pytest.importorskip("umap", reason="umap-learn has no wheel for this Python")
    labels = [row % 10 for row in range(120)]
    rows = judged_rows(labels, spread=0.4)
    threads = torch.get_num_threads()
    section = pictured_map(rows, method="umap")
    assert section is not None
    assert torch.get_num_threads() == threads, "numba sets those of the process"
    assert "UMAP keeps neighbours; its distances and axes mean nothing." in section.html
    (tmp_path / "page.html").write_text(render_page("Map", [section]), encoding="utf-8")
    with browse((tmp_path / "page.html").as_uri()) as page:
        page.wait_for_selector(POINTS)
        assert page.locator(POINTS).count() == 120
        drawn = page.locator(".chart > div").evaluate("place => place.view.data('source_0')")
    places = torch.tensor([[item["x"], item["y"]] for item in drawn])
    components = principal_components(rows.embeddings).project(rows.embeddings)
    assert neighbours_of_the_class(places, labels) > 0.9
    assert neighbours_of_the_class(components, labels) < neighbours_of_the_class(places, labels), "or it were no art"


def neighbours_of_the_class(places: Tensor, labels: list[int]) -> float:
    nearest = torch.cdist(places, places).fill_diagonal_(torch.inf).argmin(1)
    return float((torch.tensor(labels)[nearest] == torch.tensor(labels)).float().mean())


def test_umap_is_missing_before_images_are_embedded(
    run: Path, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Here
) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    monkeypatch.setattr("proxemic.report.write.judge_run", lambda *_, **__: pytest.fail("embeds"))
    monkeypatch.setattr("proxemic.report.gallery.judge_gallery", lambda *_, **__: pytest.fail("embeds"))
    for target in (run, shelf / "shop"):
        words = ("report", target, "--map", "umap", "--out", tmp_path / "page.html")
        assert_refused(here(*words), ["umap is not installed: install it with pip install", "[umap]"])


def test_a_part_of_many_is_drawn_and_said(judged: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxemic.report.pictured_map.MOST", 10)
    section = pictured_map(judged)
    assert section is not None
    assert "A map of 10 images, drawn at random from 1,000." in section.html
    assert section.html.count("data:image/jpeg") == 10


def test_few_or_without_labels(judged: Judged) -> None:
    assert pictured_map(judged_rows([0, 0, 1])) is None
    section = pictured_map(judged_rows([-1] * 5))
    assert section is not None
    assert "Search by class" not in section.html
