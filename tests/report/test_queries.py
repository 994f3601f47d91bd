"""Which queries are shown, and what is said of them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import proxemic
from browser import Opened, faults_of_access
from command_line import Here
from judged import judged_rows, with_sequences
from proxemic.errors import UserError
from proxemic.metrics import nearest_neighbours
from proxemic.report import Judged, draw_queries
from proxemic.report.queries import (
    chosen_queries,
    first_right_ranks,
    hardest_first,
    queries,
    worst_queries,
)
from proxemic.studies.evaluation import Evaluation

LABELS = [row % 7 for row in range(60)] + [7]  # of the last class there is one


@pytest.fixture(scope="module")
def judged() -> Judged:
    return judged_rows(LABELS, spread=1.5)


def naive(judged: Judged) -> dict[int, tuple[float, int]]:
    """The average precision at R and the rank of the first right one of each query, by plain Python."""
    rows = judged.embeddings
    _, order = nearest_neighbours(rows, rows, k=len(rows) - 1, exclude=torch.arange(len(rows)))
    found = {}
    for query, listed in enumerate(order.tolist()):
        right = [LABELS[row] == LABELS[query] for row in listed]
        if wanted := sum(right):
            hits = [sum(right[: rank + 1]) / (rank + 1) for rank in range(wanted) if right[rank]]
            found[query] = (sum(hits) / wanted, right.index(True) + 1)
    return found


def test_the_worst_have_the_lowest_average_precision_and_of_these_the_latest_right_one(judged: Judged) -> None:
    expected = naive(judged)
    assert len(expected) == 60
    order = hardest_first(judged)
    assert order is not None
    assert order.tolist() == sorted(expected, key=lambda row: (round(expected[row][0], 9), -expected[row][1], row))
    assert first_right_ranks(judged, order).tolist() == [expected[row][1] for row in order.tolist()]
    assert len({expected[row][0] for row in order.tolist()[:3]}) == 1, "or no rank would decide"


def test_a_section_shows_the_worst_the_median_and_random_ones(judged: Judged) -> None:
    section = queries(judged, count=2)
    assert section is not None
    assert section.title == "Queries"
    assert [section.html.count(name) for name in ("The worst queries", "near the median", "Random queries")] == [1] * 3
    assert section.html.count('class="query"') == 6
    shown = re.findall(r"<strong>class (\d)</strong>", queries(judged, count=7).html)  # pyright: ignore[reportOptionalMemberAccess]
    assert [{*shown[start : start + 7]} for start in (0, 7, 14)] == [{*"0123456"}] * 3, "one query per class"
    again = queries(judged, count=2)
    other = queries(judged, count=2, seed=1)
    assert again is not None
    assert other is not None
    assert again.html == section.html
    assert other.html.partition("Random queries")[2] != section.html.partition("Random queries")[2]


def test_the_first_right_one_is_shown_however_late_it_comes(judged: Judged) -> None:
    order, expected = hardest_first(judged), naive(judged)
    assert order is not None
    worst = int(order[0])
    assert expected[worst][1] > 6
    html = worst_queries(judged, 1).html
    assert f"the first right one, rank {expected[worst][1]}<br>" in html
    assert [html.count(name) for name in ("✗", "✓")] == [6, 1]
    assert "average precision 0.0\N{NO-BREAK SPACE}%" in html


def test_chosen_ones_are_shown_in_their_order(judged: Judged) -> None:
    html = chosen_queries(judged, [60, 3]).html
    assert html.index("row 61") < html.index("row 4<")
    assert "nothing else of its class" in html


def test_a_row_that_is_no_query_is_refused(judged: Judged) -> None:
    is_query = [str(row != 3) for row in range(61)]
    rows = judged.images.rows.with_texts(is_query=is_query, is_gallery=["true"] * 61)
    with pytest.raises(ValueError, match="row 4 is in the gallery, but is not a query"):
        chosen_queries(replace(judged, images=replace(judged.images, rows=rows)), [3])


def test_a_sequence_is_left_out() -> None:
    judged = with_sequences(judged_rows([0, 0, 0, 1, 1, 1]), ["a", "a", None, None, None, None])
    html = chosen_queries(judged, [0]).html
    assert "row 2<" not in html
    assert "row 3<" in html


def test_without_labels_queries_are_random_and_nothing_is_right_or_wrong() -> None:
    judged = judged_rows([-1] * 12)
    section = queries(judged)
    assert section is not None
    assert section.html.count('class="query"') == 6
    assert not {"✗", "✓"} & {*section.html}
    with pytest.raises(ValueError, match="there are no labels"):
        worst_queries(judged, 1)


def test_one_row_is_no_query() -> None:
    assert queries(judged_rows([0])) is None


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
    paths = evaluation.targets[0].images.names
    assert paths is not None
    ending = "/".join(Path(paths[3]).parts[-2:])
    html = draw_queries(evaluation, tmp_path / "a.html", chosen=[paths[5], ending]).read_text()
    assert html.count('class="query"') == 2
    assert html.index(f'title="{paths[5]}"') < html.index(f'title="{paths[3]}"')


def test_embeddings_are_drawn_by_the_paths_of_their_rows(run: Path, tmp_path: Path) -> None:
    vectors = tmp_path / "vectors.parquet"
    whole = proxemic.evaluate(run, resamples=0, save_embeddings=vectors)
    again = proxemic.evaluate(vectors, resamples=0)
    one = draw_queries(again, tmp_path / "a.html", worst=1).read_text()
    assert one.count("<img") >= 7
    assert one.count("<img") == draw_queries(whole, tmp_path / "b.html", worst=1).read_text().count("<img")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"worst": 101}, "101 worst and 0 chosen"),
        ({"chosen": ["nowhere.png"]}, "--chosen is nowhere.png, but no image has this path"),
        ({"chosen": ["0.png"]}, "images end in it: give one of them, such as "),
    ],
    ids=str,
)
def test_refuses(evaluation: Evaluation, tmp_path: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        draw_queries(evaluation, tmp_path / "a.html", **options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--pictures", "a.html"], "there must be some"),
        (["--chosen", "a.png"], "give --pictures FILE, too"),
        (["--worst", "1", "--pictures", "a.png"], "is a.png, but must end in .html"),
    ],
)
def test_the_command_refuses_before_it_evaluates(here: Here, run: Path, flags: list[str], said: str) -> None:
    result = here("evaluate", run, *flags)
    assert result.returncode == 2
    assert said in result.stderr
