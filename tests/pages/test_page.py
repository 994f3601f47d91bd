"""Pages in a real browser: what they show, in the dark and on a phone, and that text of others stays text."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup
from PIL import Image
from playwright.sync_api import Page

from browser import PHONE, Opened, faults_of_access
from proxemic.pages import Section, chart, data_url, environment, figure, picture, render_page, table
from proxemic.tables import Table

HOSTILE = "</script><script>document.title = 'mine'</script><b id=\"x\">'"


def points() -> dict[str, Any]:
    axes = {axis: {"field": axis, "type": kind} for axis, kind in (("x", "quantitative"), ("name", "nominal"))}
    return {
        "data": {"values": [{"name": HOSTILE, "x": 1.5}, {"name": "b", "x": 2}]},
        "height": 80,
        "mark": {"type": "point", "tooltip": {"content": "data"}},
        "encoding": {"x": axes["x"], "y": axes["name"]},
    }


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    wide = Table([f"column {number}" for number in range(20)], [[HOSTILE, *range(19)]], HOSTILE, [HOSTILE])
    shown = figure(picture(Image.new("RGB", (400, 100), "red"), 96, HOSTILE), HOSTILE) + picture(None, 96, "")
    sections = [
        Section(HOSTILE, table(wide)),
        Section("Pictures", shown),
        Section("Charts", chart(points(), HOSTILE) + chart(points(), "Another.")),
    ]
    path = tmp_path_factory.mktemp("pages") / "page.html"
    path.write_text(render_page(HOSTILE, sections, summary=HOSTILE), encoding="utf-8")
    return path.as_uri()


def drawn(page: Page) -> None:
    page.wait_for_function("[...document.querySelectorAll('.chart > div')].every(place => place.view)")


@pytest.mark.parametrize("look", [{}, {"color_scheme": "dark"}, PHONE], ids=["light", "dark", "phone"])
def test_a_page_is_read_in_any_light_on_a_phone_and_by_a_screen_reader(
    browse: Opened, address: str, look: dict[str, Any]
) -> None:
    with browse(address, **look) as page:
        drawn(page)
        assert faults_of_access(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "only the table scrolls sideways"
        caption = page.locator("caption span").bounding_box()
        assert caption is not None
        assert caption["x"] + caption["width"] <= page.evaluate("innerWidth"), "nor does its title"
        assert page.get_by_role("img", name="Another.").count() == 1
        box = page.locator(".chart svg").first.bounding_box()
        assert box is not None
        assert 250 < box["width"] <= page.evaluate("innerWidth")
        colours = [
            page.evaluate(f"getComputedStyle(document.querySelector('{part}')).{what}")
            for part, what in (("body", "color"), (".chart svg text", "fill"))
        ]
        assert colours[0] == colours[1] == ("rgb(240, 246, 252)" if "color_scheme" in look else "rgb(31, 35, 40)")


def test_text_of_others_stays_text_also_in_what_is_shown_on_hover(browse: Opened, address: str) -> None:
    with browse(address) as page:
        drawn(page)
        assert page.title() == HOSTILE
        assert page.locator("h1").inner_text() == HOSTILE
        assert page.locator("#x").count() == 0
        assert page.locator("img").get_attribute("alt") == HOSTILE
        page.locator(".chart .mark-symbol path").first.hover()
        assert HOSTILE in page.locator("#vg-tooltip-element.visible").inner_text()


def test_a_page_is_used_by_keyboard(browse: Opened, address: str) -> None:
    with browse(address) as page:
        drawn(page)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "scroll"


def test_no_script_but_those_of_the_page_runs(browse: Opened, tmp_path: Path) -> None:
    forged = Section("Forged", Markup("<script>document.title = 'mine'</script>") + chart(points(), "Points."))
    (tmp_path / "page.html").write_text(render_page("Page", [forged]), encoding="utf-8")
    with pytest.raises(AssertionError, match="Content Security Policy"):
        open_and_draw(browse, (tmp_path / "page.html").as_uri())


def open_and_draw(browse: Opened, address: str) -> None:
    with browse(address) as page:
        drawn(page)
        assert page.title() == "Page"


def test_vega_is_in_a_page_once_and_only_where_it_is_needed(tmp_path: Path) -> None:
    part = Section("Part", chart(points(), "Points."))
    without, once, twice = (len(render_page("Page", [part] * count)) for count in range(3))
    assert without < 10_000
    assert 500_000 < once < 1_000_000
    assert twice - once < 5_000


def test_templates_of_others_extend_the_base(tmp_path: Path) -> None:
    (tmp_path / "own.html").write_text('{% extends "base.html" %}{% block content %}{{ text }}{% endblock %}')
    page = environment(tmp_path).get_template("own.html").render(title="Own", text="<b>", scripts=[])
    assert "&lt;b&gt;" in page
    assert "script-src 'none'" in page


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8))


def opened(address: str) -> Image.Image:
    head, _, content = address.partition(",")
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(content)))


def test_a_copy_keeps_its_shape() -> None:
    assert opened(data_url(NOISE, 100)).size == (100, 75)
    assert opened(data_url(NOISE.crop((0, 0, 30, 20)), 100)).size == (30, 20)


@pytest.mark.parametrize("most", [1500, 2000, 6000])
def test_noise_is_made_as_small_as_is_wanted(most: int) -> None:
    assert len(data_url(NOISE, 112)) > most
    address = data_url(NOISE, 112, most)
    assert most / 2 < len(address) <= most
    assert len(picture(NOISE, 112, "noise", most)) < most + 100
    plain = Image.new("RGB", (120, 90), "red")
    assert data_url(plain, 112, most) == data_url(plain, 112), "and what is small stays as it is"
