"""The documentation as a site, built as ``make docs`` builds it: links, reference, search, and pages in a browser."""

import importlib
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import proxemic
from browser import PHONE, Opened, faults_of_access
from test_docs import LOSSES

ROOT = Path(__file__).parents[1]


class Elements(HTMLParser):
    """The ids of a page, its links, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids, self.links, self.loaded, self.tags = set[str](), set[str](), set[str](), set[str]()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        self.tags.add(tag)
        self.ids |= {found[key] for key in ("id", "name") if key in found}
        if tag == "a" and "href" in found:
            self.links.add(found["href"])
        self.loaded |= {found[key] for key in ("src", "href") if key in found and tag != "a"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    # The tutorials are run by tests of their own.
    environment = {**os.environ, "TUTORIALS": "unrun", "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Elements]:
    return {path: Elements(path) for path in site.rglob("*.html")}


def public_names() -> Iterator[str]:
    for module in [*pkgutil.walk_packages(proxemic.__path__, "proxemic.")]:
        if module.ispkg:
            yield from (f"{module.name}.{name}" for name in importlib.import_module(module.name).__all__)
    yield from (f"proxemic.{name}" for name in proxemic.__all__)


def test_links_lead_somewhere(site: Path, pages: dict[Path, Elements]) -> None:
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links begin at the site's root
            continue
        for link in page.links | page.loaded:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto") and link in page.links:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            inside = target.is_relative_to(site) and target.is_file() and not parts.scheme
            if not inside or (parts.fragment and unquote(parts.fragment) not in pages[target].ids):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert len(pages) > 80
    assert not broken


def test_every_public_name_is_in_the_reference(site: Path, pages: dict[Path, Elements]) -> None:
    described = set[str]().union(*(page.ids for path, page in pages.items() if path.parent == site / "reference"))
    assert set(public_names()) - described == set()
    # A function is not taken for the module of its name.
    modules = re.findall(
        r'doc-module">\s*<h2 id="(.*?)"', "".join(path.read_text() for path in (site / "reference").iterdir())
    )
    assert modules == []


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_has_its_formula_and_picture(site: Path, pages: dict[Path, Elements], name: str) -> None:
    page = pages[site / "losses" / f"{name}.html"]
    assert ("math" in page.tags) != (name == "PairwiseLoss")  # whose formulas are calls
    assert f"{name}.png" in page.loaded
    assert f"../reference/proxemic.losses.html#proxemic.losses.{name}" in page.links


def test_files_beside_docs_are_pages(site: Path, pages: dict[Path, Elements]) -> None:
    assert "security.html" in pages[site / "architecture.html"].links
    assert "../files/src/proxemic/analysis/gradient_fields.py.html" in pages[site / "losses" / "arguments.html"].links
    code = (site / "files/src/proxemic/analysis/gradient_fields.py.html").read_text(encoding="utf-8")
    assert "plot_gradient_field" in code


@pytest.mark.parametrize(
    ("page", "options"),
    [
        ("start.html", {}),
        ("losses/ProxyAnchorLoss.html", {"color_scheme": "dark"}),
        ("reference/proxemic.optim.html", PHONE),
    ],
)
def test_pages_can_be_read_by_everyone(browse: Opened, site: Path, page: str, options: dict[str, Any]) -> None:
    with browse((site / page).as_uri(), allowed=site.as_uri(), **options) as shown:
        shown.wait_for_load_state("load")
        assert faults_of_access(shown) == []
        assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
        background = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") == ("color_scheme" not in options)


def test_the_search_finds_a_loss_by_keyboard(browse: Opened, site: Path) -> None:
    with browse((site / "index.html").as_uri(), allowed=site.as_uri()) as page:
        page.keyboard.press("/")
        page.keyboard.type("SoftTripleLoss")
        page.wait_for_selector(".md-search-result__link")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_url("**/*SoftTripleLoss*")
        assert "SoftTripleLoss" in page.inner_text("main")


def test_the_search_finds_flags_and_other_spellings(browse: Opened, site: Path) -> None:
    searched = {
        "--training.spread_after": "reference/recipe-keys",
        "finetune": "fine-tuning",
        "initialization": "losses/regularizers-and-pooling",
    }
    with browse((site / "index.html").as_uri(), allowed=site.as_uri()) as shown:
        shown.keyboard.press("/")
        assert shown.get_attribute("[role=dialog]", "aria-label") == "Search"
        for words, page in searched.items():
            shown.fill("[data-md-component=search-query]", "")
            shown.keyboard.type(words)  # the theme listens to keys
            shown.wait_for_selector(f".md-search-result__link[href*='{page}']", state="attached")
        assert faults_of_access(shown) == []


def test_wide_tables_show_that_they_go_on_and_keep_their_first_column(browse: Opened, site: Path) -> None:
    with browse((site / "losses" / "ArcFaceLoss.html").as_uri(), allowed=site.as_uri(), **PHONE) as page:
        page.wait_for_selector(".md-typeset__scrollwrap[data-more]")
        table = page.locator(".md-typeset__scrollwrap").first
        table.evaluate("each => { each.scrollLeft = each.scrollWidth }")
        page.wait_for_function("!document.querySelector('.md-typeset__scrollwrap').hasAttribute('data-more')")
        kept, moved = (table.locator("tbody td").nth(number).bounding_box() for number in (0, 1))
        assert kept is not None
        assert moved is not None
        assert moved["x"] < kept["x"] + kept["width"]
        assert kept["x"] >= 0


def test_formulas_of_docstrings_are_mathml(site: Path, pages: dict[Path, Elements]) -> None:
    assert "math" in pages[site / "reference" / "proxemic.metrics.html"].tags
    assert not [path.name for path in (site / "reference").glob("*.html") if "$$" in path.read_text(encoding="utf-8")]


def test_what_is_copied_of_an_example_can_be_run(browse: Opened, site: Path) -> None:
    address = (site / "losses" / "ProxyAnchorLoss.html").as_uri()
    with browse(address, allowed=site.as_uri()) as page:
        copied = page.evaluate(
            """() => {
                const code = document.querySelector("pre:has(.gp) > code");
                code.setAttribute("data-md-copying", "");
                return code.innerText;
            }"""
        )
    assert copied.startswith("import torch\nfrom proxemic.losses import ProxyAnchorLoss\n")
    assert ">>>" not in copied
    assert "torch.Size" not in copied
