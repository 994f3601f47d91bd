"""``proxemic.evaluate``: its result in Python, which the command line prints."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import proxemic
from command_line import csv_rows
from proxemic.errors import UserError
from proxemic.metrics import retrieval_metrics

LABELS = torch.arange(60) % 20


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models' embeddings of 20 classes, and their labels, with a column that is not used."""
    folder = tmp_path_factory.mktemp("embeddings")
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(20, 8, generator=generator)
    for name, noise in (("a", 0.8), ("b", 2.0)):
        np.save(folder / f"{name}.npy", (centers[LABELS] + noise * torch.randn(60, 8, generator=generator)).numpy())
    rows = [f"kind {label:02d},{'odd' if label % 2 else 'even'},x" for label in LABELS.tolist()]
    (folder / "labels.csv").write_text("\n".join(["label,category,colour", *rows]))
    return folder


def metrics_of(file: Path) -> proxemic.metrics.RetrievalMetrics:
    return retrieval_metrics(torch.from_numpy(np.load(file)), LABELS, ndcg_at=(8,))


def test_one_file(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes: list[str] = []
    out, per_query = tmp_path / "out.csv", tmp_path / "queries.csv"
    evaluation = proxemic.evaluate(
        str(files / "a.npy"), labels=files / "labels.csv", by="category", resamples=200, out=out, per_query=per_query,
        report=notes.append,
    )  # fmt: skip
    expected = metrics_of(files / "a.npy")
    assert evaluation.metrics == expected
    assert evaluation.intervals == expected.intervals(resamples=200)
    assert notes == [f"{files / 'labels.csv'} has columns that are not used: colour."]
    assert capsys.readouterr() == ("", "")
    rows = evaluation.rows()
    assert {row["category"] for row in rows} == {"", "odd", "even"}
    assert {row["metric"]: row["value"] for row in rows if row["category"] == ""} == expected
    assert all(math.isnan(row["low"]) for row in rows if row["category"])  # ten classes each
    assert [row["value"] for row in csv_rows(out)] == [str(row["value"]) for row in rows]
    classes = evaluation.class_rows()
    assert {row["label"]: row["map@r"] for row in classes} == {
        f"kind {label:02d}": values["map@r"] for label, values in expected.per_class().items()
    }
    queries = evaluation.query_rows()
    assert [row["map@r"] for row in queries] == sorted(expected.per_query["map@r"].tolist())
    worst = evaluation.worst(2)
    assert [table.title for table in worst] == ["Worst classes by map@r", "Hardest queries by map@r"]
    assert worst[1].rows[0][0] == queries[0]["query"]
    assert [row["query"] for row in csv_rows(per_query)] == [str(row["query"]) for row in queries]


def test_the_plain_ranking_beside_the_reranked_one(files: Path) -> None:
    options = {"labels": files / "labels.csv", "resamples": 50, "by": "category"}
    evaluation = proxemic.evaluate(files / "a.npy", rerank=True, **options)
    plain = proxemic.evaluate(files / "a.npy", **options)
    again = retrieval_metrics(torch.from_numpy(np.load(files / "a.npy")), LABELS, ndcg_at=(8,), rerank=True)
    assert (evaluation.metrics, evaluation.targets[1].metrics) == (plain.metrics, again)
    assert again["map@r"] != plain.metrics["map@r"]
    assert f"A: {files / 'a.npy'}\nB: {files / 'a.npy'}, re-ranked" in evaluation.text()
    assert len(evaluation.categories) == 2
    with pytest.raises(UserError, match="--rerank is for one model"):
        proxemic.evaluate([files / "a.npy", files / "b.npy"], rerank=True)


def test_the_text_says_what_is_averaged_left_out_and_not_tested(files: Path, tmp_path: Path) -> None:
    numbers = LABELS.clone()
    numbers[0], numbers[1] = 20, 21  # alone in their classes
    (tmp_path / "labels.csv").write_text("\n".join(["label", *map(str, numbers.tolist())]))
    paths, clustering = [files / "a.npy", files / "b.npy"], {"evaluation.nmi": True}
    averaged = {"evaluation.average": "classes"}
    one = proxemic.evaluate(paths[0], labels=tmp_path / "labels.csv", resamples=50, overrides=averaged | clustering)
    assert one.text().startswith("22 classes, 58 queries, all images, averages over classes\n")
    assert "2 queries have nothing of the class to find: left out." in one.text()
    both = proxemic.evaluate(paths, labels=tmp_path / "labels.csv", resamples=50, overrides=clustering)
    said = "Clustering has no value per query to test: compare the intervals of the two models."
    assert said in both.text()
    assert said not in one.text()
