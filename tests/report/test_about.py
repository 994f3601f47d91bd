"""The curves of a run, in a real browser."""

from pathlib import Path

from browser import PHONE, Opened
from command_line import warm_proxemic
from proxemic.metrics import Interval
from proxemic.pages import Section, render_page
from proxemic.report.about import curves
from proxemic.report.metrics import points, recorded_metrics
from proxemic.studies.finished import FinishedRun

SYMBOLS = ".mark-symbol.role-legend-symbol path"
LOOK = """all => all.map(each => {
    const look = getComputedStyle(each);
    return [each.getAttribute("d"), look.stroke, look.fill, look.strokeDasharray].join();
})"""


def test_legends_tell_apart_all_that_they_name(browse: Opened, tiny: Path, tmp_path: Path) -> None:
    more = ["--evaluation.recall_at", "[1,2,3,4]", "--evaluation.mrr", "true"]  # seven metrics, of six colours
    result = warm_proxemic("train", "--recipe", tiny, "--out", tmp_path / "run", "--training.epochs", "2", *more)
    assert result.returncode == 0, result.stderr
    run = FinishedRun(tmp_path / "run")
    training = curves(run)
    assert training is not None
    (tmp_path / "page.html").write_text(render_page("Curves", [training, recorded_metrics(run)]), encoding="utf-8")
    with browse((tmp_path / "page.html").as_uri()) as page:
        page.wait_for_function("[...document.querySelectorAll('.chart > div')].every(place => place.view)")
        figures = page.locator("figure.chart")
        counts = []
        for place in range(figures.count()):
            looks = figures.nth(place).locator(SYMBOLS).evaluate_all(LOOK)
            assert len({*looks}) == len(looks)
            counts.append(len(looks))
        assert counts == [0, 8, 2]
        shapes = figures.nth(2).locator(SYMBOLS).evaluate_all("all => all.map(each => each.getAttribute('d'))")
        assert len({*shapes}) == 2, "those who see no colours"


def test_long_names_of_a_legend_are_read_on_a_phone(browse: Opened, tmp_path: Path) -> None:
    names = [f"a-run-with-a-long-name-{number}" for number in range(3)]
    shown = points({name: {"recall@1": Interval(0.5, 0.4, 0.6)} for name in names})
    (tmp_path / "page.html").write_text(render_page("Metrics", [Section("Metrics", shown)]), encoding="utf-8")
    with browse((tmp_path / "page.html").as_uri(), **PHONE) as page:
        legend = page.locator(".mark-text.role-legend-label text")
        for place in range(3):
            box = legend.nth(place).bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= page.evaluate("innerWidth")
            assert legend.nth(place).text_content() == names[place]


def test_metrics_of_the_validation_are_in_percent(run: Path) -> None:
    finished = FinishedRun(run)
    training = curves(finished)
    assert training is not None
    for row in finished.history:
        assert f">{100 * row['recall@1']:.2f}<" in training.html
        assert f">{row['loss']:.4f}<" in training.html
