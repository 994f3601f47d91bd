"""Reports of runs, in a real browser."""

from pathlib import Path
from typing import Any

import pytest

from browser import PHONE, Opened, faults_of_access
from command_line import Here, assert_refused
from proxemic.errors import UserError
from proxemic.report import write_comparison_report, write_report


@pytest.fixture(scope="module")
def page_of_run(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(run, out=tmp_path_factory.mktemp("report") / "report.html")


@pytest.mark.parametrize("look", [{}, {"color_scheme": "dark"}, PHONE], ids=["light", "dark", "phone"])
def test_the_report_of_a_run(browse: Opened, page_of_run: Path, look: dict[str, Any]) -> None:
    with browse(page_of_run.as_uri(), **look) as page:
        page.wait_for_function("[...document.querySelectorAll('.chart > div')].every(place => place.view)")
        assert faults_of_access(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        titles = page.locator("h2").all_inner_texts()
        assert titles[0] == "Summary"
        said = page.locator(".lead").inner_text()
        assert " classes never seen in training, the nearest image is right for " in said
        assert "; by chance " in said
        page.get_by_role("link", name="Environment").click()
        assert page.get_by_role("link", name="Summary").is_visible(), "the menu stays"
        assert titles[-1] == "Environment"


def test_a_folder_is_refused_before_anything_is_done(
    run: Path, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Here
) -> None:
    for module in ("write.judge_run", "gallery.judge_gallery"):
        monkeypatch.setattr(f"proxemic.report.{module}", lambda *_, **__: pytest.fail("embeds"))
    monkeypatch.setattr("proxemic.evaluate", lambda *_, **__: pytest.fail("evaluates"))
    (taken := tmp_path / "taken.html").mkdir()
    said = [f"{taken}, but that is a folder: give the name of a file"]
    for words in (("report", run, "--out"), ("report", shelf / "shop", "--out")):
        assert_refused(here(*words, taken), said)
    assert_refused(here("evaluate", run, "--worst", "3", "--pictures", taken), said)
    with pytest.raises(UserError, match="that is a folder"):
        write_comparison_report(tmp_path, out=taken)
