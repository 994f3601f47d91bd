"""The rows of the papers' tables that recipes reproduce: each recipe names its rows, and every figure is shown."""

import functools
from collections import Counter
from pathlib import Path

import pytest
import yaml

from proxemic.errors import UserError
from proxemic.published import PublishedFigure, published_figures
from proxemic.recipes import find_recipe, list_recipes
from proxemic.recipes.reader import read_recipe
from proxemic.studies.beside_paper import SHOWN_BY, PaperRow, paper_rows, shown_by
from proxemic.studies.recipe_content import same_recipe
from proxemic.studies.tuning.search import recipe_fingerprint

WARP, MPA = "realigned-softmax-warping", "multi-proxy-anchor-family"
PAPERS = ("cub", "cars", "sop", "in-shop", "faces")
NONE = {
    "in-shop": "no paper has a table of it",
    "arcface": "in the tables only within the reality check, with a recipe there",
    "contrastive": "as arcface",
    "cosface": "as arcface",
    "proxy-nca-plus-plus": "its authors' own settings, which no table has",
    "sop/proxy-anchor": "Table I has it with BN-Inception only",
    "sop/softmax": "the thesis has CUB and Cars only",
    "sop/softmax-mean-proxy": "as sop/softmax",
    "softmax-augmented": "the thesis trains without augmentation",
    "softmax-mean-proxy-augmented": "as softmax-augmented",
    "faces/small": "the user's own images",
    **dict.fromkeys(("faces/adaface", "faces/curricularface", "faces/elasticface"), "in none of the three papers"),
}
"""Recipes without a row, by folder or name, and why."""

UNREACHED = {
    **dict.fromkeys(("Clustering", "HDC", "HTL"), "quoted by the MPA paper, no loss of ours"),
    **dict.fromkeys(("BlackBox", "Proxy-Few", "RS@K", "CE", "CBML", "IBC", "Contextual"), "quoted, no loss of ours"),
    **dict.fromkeys(("ROADMAP", "OSAP", "CCL"), "quoted, no loss of ours"),
}
"""Methods whose figures no recipe stands for, and why."""


@functools.cache
def rows_of(name: str) -> list[PaperRow]:
    return paper_rows(yaml.load(read_recipe(find_recipe(name)).yaml, yaml.CSafeLoader))


def of_the_papers() -> list[str]:
    return [name for name in list_recipes() if name.partition("/")[0] in PAPERS]


def has_none(name: str) -> bool:
    folder, _, rest = name.partition("/")
    return folder in NONE or name in NONE or (rest in NONE and folder != "faces")


def test_every_recipe_of_a_papers_data_set_names_its_rows_or_is_listed_without() -> None:
    assert not [name for name in {*list_recipes()} - {*of_the_papers()} if rows_of(name)]
    for name in of_the_papers():
        assert bool(rows_of(name)) != has_none(name), name
        for row in rows_of(name):
            assert len({apart(figure) for figure in row.figures}) == 1, (name, row.named)


def apart(figure: PublishedFigure) -> tuple[object, ...]:
    """Return the settings that all figures of a row share; columns may be data sets, models or corruptions."""
    faces, together = figure.metric == "accuracy", figure.table in ("VI", "VII", "VIII")
    corrupted = figure.settings.startswith("corruption=")
    return (
        "" if faces else figure.dataset,
        "" if together else (figure.variant, figure.embedding_size),
        "" if corrupted else figure.settings,
        figure.backbone,
        figure.quoted,
    )


def test_every_figure_is_shown_beside_that_of_a_recipe_or_is_listed() -> None:
    shown = {figure for name in of_the_papers() for row in rows_of(name) for figure in row.figures}
    assert len(published_figures()) == 775
    assert {figure.method for figure in published_figures() if figure not in shown} == {*UNREACHED}
    assert not [figure for figure in shown if figure.method in UNREACHED]
    alone = Counter(shown_by(figure)[0] for figure in shown)
    assert alone.keys() == SHOWN_BY.keys()
    # Tables IV and V, and the separated and the concatenated of tables VI to VIII.
    assert (alone["analyze robustness"], alone["verify"], alone["reality-check"]) == (9 * 4, 7 * 5, 20 * 2 * 3)


def test_a_recipe_that_extends_another_does_not_stand_for_its_rows(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: cub/mpa\n")
    assert yaml.safe_load(read_recipe(mine).yaml)["published"] is None
    row = f'{{paper: {MPA}, table: "7", method: MPA, settings: proxies_per_class=4}}'
    mine.write_text(f"extends: cub/mpa\npublished: [{row}]\n")
    text = read_recipe(mine).yaml
    [found] = paper_rows(yaml.safe_load(text))
    assert [figure.printed for figure in found.figures] == ["69.0", "67.2", "64.5", "61.2"]
    mine.write_text(text)
    assert read_recipe(mine).yaml == text


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("[{paper: X, table: I, method: A}]", ["published.paper is 'X'", MPA]),
        (f"[{{paper: {WARP}, table: XI, method: A}}]", ["published.table is 'XI'", "'VIII'"]),
        (f"[{{paper: {WARP}, table: V, method: Arc}}]", ["published.method is 'Arc'", "'ArcFace'"]),
        (f"[{{paper: {WARP}, table: I, method: HIST, variant: x}}]", ["is 'x'", "'without validation'"]),
        (f"[{{paper: {WARP}, table: I, metod: HIST}}]", ["did you mean published.method?"]),
        (f"{{paper: {WARP}, table: I, method: HIST}}", ["published is {'paper'", "a list"]),
        (f"[{{paper: {MPA}, table: 7, method: MPA}}]", ["published.table is 7, but must be a text"]),
    ],
)  # fmt: skip
def test_what_is_no_row_is_refused_when_the_recipe_is_read(row: str, words: list[str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"extends: cub/mpa\npublished: {row}\n")
    with pytest.raises((UserError, ValueError)) as caught:
        read_recipe(mine)
    assert all(word in str(caught.value) for word in words), caught.value


def test_what_stands_beside_the_results_does_not_make_another_run() -> None:
    named = read_recipe(find_recipe("cub/mpa")).yaml
    content = yaml.safe_load(named)
    older = {key: value for key, value in content.items() if key != "published"}
    assert same_recipe(yaml.safe_dump(older), named)
    assert recipe_fingerprint(older) == recipe_fingerprint(content)
