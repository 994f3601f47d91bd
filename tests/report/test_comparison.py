"""Reports of comparisons, in a real browser."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from browser import PHONE, Opened, faults_of_access
from comparisons import comparison, entry, finish
from proxemic.errors import UserError
from proxemic.report import write_comparison_report

HOSTILE = "<script>document.title='mine'</script>"


@pytest.fixture(scope="module")
def page_of_comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recipes of one data set, three seeds each, a third that has failed, and one of another data set."""
    folder = tmp_path_factory.mktemp("report")
    entries = [entry(name, HOSTILE) for name in ("birds/a", "birds/b", "birds/c", "cars/a")]
    made = comparison(folder / "made", entries)
    for number, item in enumerate(entries):
        for seed in made.seeds:
            if number == 2:
                made.cell(item, seed).path.parent.mkdir(parents=True, exist_ok=True)
                made.cell(item, seed).fail(f"No memory. {HOSTILE}")
            else:
                finish(
                    made.cell(item, seed), {"recall@1": 0.8 + 0.01 * seed + 0.05 * number, "map@r": 0.5, "ndcg@8": 0.7}
                )
    made.write()
    return write_comparison_report(made.path, out=folder / "report.html")


@pytest.mark.parametrize("look", [{}, {"color_scheme": "dark"}, PHONE], ids=["light", "dark", "phone"])
def test_the_report_of_a_comparison(browse: Opened, page_of_comparison: Path, look: dict[str, Any]) -> None:
    with browse(page_of_comparison.as_uri(), **look) as page:
        page.wait_for_function("[...document.querySelectorAll('.chart > div')].every(place => place.view)")
        assert faults_of_access(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.title() == "Comparison made"
        assert page.locator("h2").all_inner_texts() == ["birds", "cars", "Failed"]
        assert "3 of 12 runs are not finished" in page.locator("header").inner_text()
        cells = page.locator("#birds table").nth(1).locator("tr").nth(1).locator("td").all_inner_texts()
        assert cells == ["+5.00 ± 0.00 *", "0.00 ± 0.00", "0.00 ± 0.00", "3"]
        assert page.locator("#birds table").first.locator("td").first.inner_text() == HOSTILE


def test_charts_show_the_recipes_that_have_the_metric(tmp_path: Path) -> None:
    made = comparison(tmp_path / "made", [entry(name, name) for name in ("birds/a", "birds/b", "birds/c", "cars/d")], 2)
    for item in made.entries:
        metrics = {"map@r": 0.5} if item.name == "birds/c" else {"map@r": 0.5, "recall@1": 0.8}
        for seed in made.seeds:
            finish(made.cell(item, seed), metrics)
    made.write()
    page = write_comparison_report(made.path, out=tmp_path / "report.html").read_text(encoding="utf-8")
    charts = [*map(json.loads, re.findall(r'<script type="application/json">(.*?)</script>', page))]
    seeds = {
        chart["description"].partition(":")[0]: [row["recipe"] for row in chart["layer"][1]["data"]["values"]]
        for chart in (charts[0], charts[1])
    }
    both = ["birds/a"] * 2 + ["birds/b"] * 2
    assert seeds == {"recall@1": both, "map@r": [*both, *["birds/c"] * 2]}


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not hold a comparison"):
        write_comparison_report(tmp_path, out=tmp_path / "report.html")
