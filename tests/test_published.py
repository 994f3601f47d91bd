"""The papers' figures: complete, legal, and as they are printed."""

import inspect
from collections import Counter
from functools import partial

import pytest
import torch
from pytorch_metric_learning import losses as pair_losses

import proxemic.losses
from proxemic.metrics import retrieval_metrics
from proxemic.metrics.ranking import map_at_k, map_at_r, ndcg_at_k, precision_at_k, recall_at_k
from proxemic.published import (
    FOLDER,
    PublishedFigure,
    PublishedTable,
    list_papers,
    published_figures,
    published_protocol,
    published_tables,
)

MEAN, MPA, WARP = "softmax-loss-mean-proxy", "multi-proxy-anchor-family", "realigned-softmax-warping"
TABLES = {(published_table.paper, published_table.table): published_table for published_table in published_tables()}
FIGURES = published_figures()
FACES = {"lfw", "cfp-fp", "agedb-30", "calfw", "cplfw"}
COLUMNS = (
    "paper,table,dataset,method,loss,variant,backbone,embedding_size,image_size,settings,metric,value,spread,"
    "spread_kind,quoted,note"
)  # fmt: skip


def name(figure: PublishedFigure) -> tuple[object, ...]:
    return (*where(figure), figure.dataset, figure.method, figure.variant, figure.backbone, figure.settings,
            figure.metric)  # fmt: skip


def where(figure: PublishedFigure) -> tuple[str, str]:
    return figure.paper, figure.table


def find(paper: str, table: str, **of: str) -> PublishedFigure:
    [found] = [f for f in FIGURES if where(f) == (paper, table) and all(getattr(f, key) == of[key] for key in of)]
    return found


@pytest.mark.parametrize(
    ("paper", "table", "rows", "columns", "dashes"),
    [
        (MEAN, "4.1", 2, 8, 0),
        (MPA, "1", 6, 6, 0), (MPA, "2", 9, 1, 0), (MPA, "3", 5, 5, 0),
        (MPA, "4", 13, 8, 8 * 4), (MPA, "5", 13, 8, 8 * 4), (MPA, "6", 10, 6, 5 * 3),
        (MPA, "7", 5, 4, 0), (MPA, "8", 5, 4, 0),
        (WARP, "I", 23, 12, 49), (WARP, "II", 3, 4, 0), (WARP, "III", 12, 3, 0), (WARP, "IV", 10, 4, 0),
        (WARP, "V", 7, 5, 0), (WARP, "VI", 7, 9, 0), (WARP, "VII", 7, 9, 0), (WARP, "VIII", 6, 9, 0),
    ],
)  # fmt: skip
def test_every_cell_of_a_table_but_its_dashes(paper: str, table: str, rows: int, columns: int, dashes: int) -> None:
    found = TABLES[paper, table]
    assert len(found.rows()) == rows * columns - dashes
    assert all((row["paper"], row["table"]) == (paper, table) for row in found.rows())


def test_every_file_is_listed() -> None:
    listed = {table.file for table in TABLES.values()}
    assert len(listed) == len(TABLES) == 17
    assert {path for path in FOLDER.iterdir() if "-table-" in path.name} == listed
    assert [paper.key for paper in list_papers()] == [MEAN, MPA, WARP]
    assert {paper for paper, _ in TABLES} == {MEAN, MPA, WARP}
    for table in TABLES.values():
        assert table.kind in ("results", "properties", "examples")
        if table.kind == "results":
            assert table.file.read_text(encoding="utf-8").splitlines()[0] == COLUMNS
    assert len(FIGURES) == sum(len(table.rows()) for table in TABLES.values() if table.kind == "results")


def test_figures_are_legal() -> None:
    assert [key for key, times in Counter(map(name, FIGURES)).items() if times > 1] == []
    ours = retrieval_metrics(
        torch.eye(4), torch.tensor([0, 0, 1, 1]), recall_at=(1, 2, 4, 8, 10, 100, 1000), precision_at=(1,),
        ndcg_at=(2, 4, 8, 10, 100), nmi=True,
    )  # fmt: skip
    for figure in FIGURES:
        assert figure.metric in ours or figure.metric in ("accuracy", "average_distance_to_proxy"), figure
        assert (figure.metric == "accuracy") == (figure.dataset in FACES), figure
        assert figure.dataset in FACES | {"cub", "cars", "sop"}, figure
        assert figure.printed == str(figure.printed).strip(), figure
        assert 0 < figure.value < 100, figure
        assert float(figure.printed) == figure.value
        assert (figure.spread is None) == (figure.spread_kind == ""), figure
        assert figure.spread_kind in ("", "std", "95% ci"), figure
        assert figure.backbone in ("", "BN-Inception", "ResNet-50", "ResNet-100"), figure


def test_losses_and_their_settings_are_ours() -> None:
    for figure in FIGURES:
        settings = dict(part.split("=", 1) for part in figure.settings.split())
        settings.pop("corruption", None)
        if figure.loss == "":
            assert settings == {}, figure
            continue
        assert figure.loss in proxemic.losses.__all__, figure
        arguments = set(inspect.signature(getattr(proxemic.losses, figure.loss)).parameters)
        if figure.loss == "PairwiseLoss":
            assert hasattr(pair_losses, settings["loss"]), figure
        if figure.variant == "mean proxy regulariser":
            arguments |= set(inspect.signature(proxemic.losses.MeanProxyNorm).parameters)
        assert settings.keys() <= arguments, figure
    ours = {item for item in proxemic.losses.__all__ if item.endswith("Loss")}
    in_none = {"ProxyLoss", "AdaFaceLoss", "CurricularFaceLoss", "ElasticFaceLoss", "MatryoshkaLoss"}
    assert {figure.loss for figure in FIGURES} > ours - in_none


def test_each_figure_has_one_protocol_that_agrees_with_it() -> None:
    keys = ("paper", "table", "dataset", "method", "variant")
    rows = PublishedTable("", "", "", "", FOLDER / "protocols.csv").rows()
    used = set()
    for figure in FIGURES:
        of = {key: getattr(figure, key) for key in keys} | {"quoted": str(figure.quoted).lower()}
        applying = {
            number: sum(row[key] != "" for key in of)
            for number, row in enumerate(rows)
            if all(row[key] in ("", of[key]) for key in of)
        }
        best = [number for number, specific in applying.items() if specific == max(applying.values())]
        assert len(best) == 1, figure
        used |= set(best)

        protocol = published_protocol(figure)
        assert protocol.note == rows[best[0]]["note"]
        assert protocol.selected_on in ("test", "validation", "last", "unstated")
        assert protocol.interval == (figure.spread_kind or "none")
        if figure.quoted:
            assert (protocol.backbone, protocol.batch_size, protocol.optimizer, protocol.seeds) == ("", None, "", None)
        else:
            assert protocol.backbone == figure.backbone
            assert (protocol.embedding_size, protocol.image_size) == (figure.embedding_size, figure.image_size)
    assert used == set(range(len(rows)))


def test_protocols_differ_where_the_papers_do() -> None:
    by_variant = {
        figure.variant: published_protocol(figure)
        for figure in published_figures(paper=WARP, dataset="cub", loss="WarpedSoftmaxLoss")
        if (figure.table, figure.metric) in {("I", "recall@1"), ("VI", "map@r")}
    }
    assert by_variant["with validation"].selected_on == "validation"
    assert by_variant["without validation"].selected_on == "test"
    assert by_variant["without validation, larger crop"].image_size == 256
    assert (by_variant["separated"].embedding_size, by_variant["separated"].seeds) == (128, 10)
    sizes = [published_protocol(find(MPA, table, method="MPA-AP", metric="recall@1")).batch_size for table in "456"]
    assert sizes == [180, 64, 32]


# Read again in the papers, apart from the files.
READ_AGAIN = [
    (MEAN, "4.1", "cub", "Softmax-loss", "", "recall@1", "59.69"),
    (MEAN, "4.1", "cars", "Ours", "", "recall@1", "80.41"),
    (MPA, "4", "cub", "MPA-DW", "", "recall@8", "91.9"),
    (MPA, "4", "cub", "SoftTriple (our)", "", "map@r", "25.5"),
    (MPA, "5", "cars", "MPA-AP", "", "recall@2", "92.4"),
    (MPA, "5", "cars", "ProxyAnchor (our)", "", "map@r", "28.8"),
    (MPA, "6", "sop", "MPA-DW", "", "recall@100", "95.5"),
    (MPA, "6", "sop", "HTL", "", "recall@10", "88.3"),
    (MPA, "7", "cub", "proxies_per_class=12", "", "recall@1", "69.3"),
    (MPA, "8", "cars", "proxies_per_class=8", "", "ndcg@8", "78.1"),
    (WARP, "I", "cars", "HIST", "without validation", "nmi", "75.2"),
    (WARP, "I", "cars", "CE", "without validation", "recall@4", "96.6"),
    (WARP, "I", "sop", "OSAP", "without validation, larger crop", "recall@1", "84.4"),
    (WARP, "I", "sop", "RS@K", "with validation", "recall@1000", "99.0"),
    (WARP, "I", "cars", "Warped-Softmax", "with validation", "nmi", "77.0"),
    (WARP, "I", "sop", "Warped-Softmax", "without validation, larger crop", "recall@100", "96.9"),
    (WARP, "II", "cars", "Warped-Softmax", "with validation", "nmi", "77.0 ± 0.32"),
    (WARP, "II", "sop", "Warped-Softmax", "with validation", "recall@10", "92.3 ± 0.05"),
    (WARP, "III", "cub", "t1^(3/2) - t2^(3/2)", "", "average_distance_to_proxy", "17.20"),
    (WARP, "III", "cub", "k1=0.9 k2=1.1 alpha=25.0", "", "nmi", "60.1"),
    (WARP, "V", "agedb-30", "CosFace", "", "accuracy", "98.32"),
    (WARP, "V", "cplfw", "Warped-Softmax", "", "accuracy", "93.25"),
    (WARP, "VI", "cub", "HIST", "separated", "r_precision", "33.87 ± 0.23"),
    (WARP, "VI", "cub", "Warped-Softmax", "concatenated", "map@r", "28.47 ± 0.29"),
    (WARP, "VII", "cars", "PrAnchor", "concatenated", "map@r", "30.0 ± 0.27"),
    (WARP, "VIII", "sop", "PrAnchor", "complete", "precision@1", "58.75 ± 16.08"),
    (WARP, "VIII", "sop", "ProxyNCA", "separated", "r_precision", "47.48 ± 0.11"),
]


@pytest.mark.parametrize(("paper", "table", "dataset", "row", "variant", "metric", "printed"), READ_AGAIN)
def test_read_again(
    paper: str, table: str, dataset: str, row: str, variant: str, metric: str, printed: str
) -> None:  # fmt: skip
    key = "settings" if "=" in row else "method"
    of = {"variant": variant} if paper == WARP else {}
    found = find(paper, table, dataset=dataset, metric=metric, **{key: row}, **of)
    value, _, spread = printed.partition(" ± ")
    assert (found.printed, found.spread) == (value, float(spread) if spread else None)


@pytest.mark.parametrize(
    ("corruption", "row"),
    [
        ("none", ("71.8", "66.3", "69.4", "72.5")),
        ("cutout", ("64.5", "54.5", "59.5", "61.6")),
        ("defocus-blur", ("46.2", "44.4", "46.1", "47.6")),
    ],
)
def test_corruptions_read_again(corruption: str, row: tuple[str, ...]) -> None:
    methods = ("HIST", "ProxyNCA++", "Regular Softmax", "Warped Softmax")
    found = [find(WARP, "IV", method=method, settings=f"corruption={corruption}").printed for method in methods]
    assert found == list(row)


def test_what_the_papers_say_of_their_tables_holds() -> None:
    for figure in published_figures(paper=WARP):
        if figure.table == "II":
            of = {key: getattr(figure, key) for key in ("dataset", "method", "variant", "metric", "printed")}
            assert find(WARP, "I", **of)
    cells = [figure for figure in FIGURES if figure.table in ("VI", "VII", "VIII")]
    values = {(f.dataset, f.variant, f.metric, f.method): f.value for f in cells}
    better = [key for key in values if key[3] == "Warped-Softmax" and values[key] > values[*key[:3], "PrNCA++"]]
    assert len(better) == 24  # of 27, says the paper
    assert [f.method for f in FIGURES if "(our)" in f.method and f.quoted] == []
    assert {f.method for f in published_figures(paper=MPA) if not f.quoted} == {
        "SoftTriple (our)", "ProxyAnchor (our)", "MPA", "MPA-DW", "MPA-AP",
    }  # fmt: skip


def test_examples_are_what_our_metrics_give() -> None:
    ours = {
        "recall@10": recall_at_k, "precision@10": precision_at_k, "ndcg@10": ndcg_at_k,
        "map_over_k@10": partial(map_at_k, divisor="k"),
    }  # fmt: skip
    for row in TABLES[MPA, "3"].rows():
        relevance, relevant = torch.tensor([[int(part) for part in row["ranking"].split()]]), torch.tensor([4])
        metric = row["metric"]
        value = map_at_r(relevance, relevant) if metric == "map@r" else ours[metric](relevance, relevant, 10)
        assert round(100 * value.item(), 1) == float(row["value"]), row


def test_filters() -> None:
    assert {figure.paper for figure in published_figures(paper=MPA)} == {MPA}
    assert {figure.dataset for figure in published_figures(dataset="lfw")} == {"lfw"}
    found = published_figures(paper=MPA, dataset="sop", loss="AllPairMultiProxyAnchorLoss")
    assert [figure.printed for figure in found] == ["78.1", "90.1", "95.6", "62.9", "69.1", "50.2"]
    assert published_figures(dataset="glyphs-small") == ()
    with pytest.raises(ValueError, match=f"paper is 'mpa' but must be one of {MEAN}, {MPA}, {WARP}"):
        published_figures(paper="mpa")
