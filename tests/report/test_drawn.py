"""Chosen and worst queries on a page of their own, through the command."""

from pathlib import Path

import pytest

import proxemic
from browser import Opened, faults_of_access
from command_line import Here
from proxemic.errors import UserError
from proxemic.report import draw_queries
from proxemic.studies.evaluation import Evaluation


@pytest.fixture(scope="module")
def evaluation(run: Path) -> Evaluation:
    return proxemic.evaluate(run, resamples=0)


def test_the_command_draws_the_worst(here: Here, run: Path, tmp_path: Path, browse: Opened) -> None:
    page = tmp_path / "worst.html"
    result = here("evaluate", run, "--worst", "2", "--pictures", page, "--resamples", "0")
    assert result.returncode == 0
    assert "Hardest queries" in result.stdout
    assert f"Wrote {page}" in result.stderr
    with browse(page.as_uri()) as opened:
        assert opened.locator(".query").count() == 2
        assert opened.locator(".query img").first.evaluate("image => image.naturalWidth") > 10
        assert faults_of_access(opened) == []


def test_chosen_ones_are_found_by_the_end_of_their_path(evaluation: Evaluation, tmp_path: Path) -> None:
    paths = evaluation.targets[0].rows.paths
    assert paths is not None
    ending = "/".join(Path(paths[3]).parts[-2:])
    html = draw_queries(evaluation, tmp_path / "a.html", chosen=[paths[5], ending]).read_text()
    assert html.count('class="query"') == 2
    assert html.index(f'title="{paths[5]}"') < html.index(f'title="{paths[3]}"')


def test_embeddings_are_drawn_by_the_paths_of_their_rows(run: Path, tmp_path: Path) -> None:
    vectors = tmp_path / "vectors.safetensors"
    whole = proxemic.evaluate(run, resamples=0, save_embeddings=vectors)
    again = proxemic.evaluate(vectors, resamples=0)
    one = draw_queries(again, tmp_path / "a.html", worst=1).read_text()
    assert one.count("<img") >= 7
    assert one.count("<img") == draw_queries(whole, tmp_path / "b.html", worst=1).read_text().count("<img")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"worst": 101}, "101 worst and 0 chosen"),
        ({}, "there must be some"),
        ({"chosen": ["nowhere.png"]}, "--chosen is nowhere.png, but no picture has this path"),
        ({"chosen": ["0.png"]}, "pictures end in it: give one of them, such as "),
    ],
    ids=str,
)
def test_refuses(evaluation: Evaluation, tmp_path: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        draw_queries(evaluation, tmp_path / "a.html", **options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match=r"must end in \.html"):
        draw_queries(evaluation, tmp_path / "a.png", worst=1)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--pictures", "a.html"], "say which, by --worst N or --chosen PATH"),
        (["--chosen", "a.png"], "give --pictures FILE, too"),
        (["--worst", "1", "--pictures", "a.png"], "--pictures is a.png, but must end in .html"),
    ],
)
def test_the_command_refuses_before_it_evaluates(here: Here, run: Path, flags: list[str], said: str) -> None:
    result = here("evaluate", run, *flags)
    assert result.returncode == 2
    assert said in result.stderr
