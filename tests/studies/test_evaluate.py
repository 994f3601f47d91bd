"""``proxemic.evaluate``: its result in Python, which the command line prints."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import proxemic
from proxemic.errors import UserError
from proxemic.metrics import paired_differences, retrieval_metrics

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
    with out.open(newline="") as file:
        assert [row["value"] for row in csv.DictReader(file)] == [str(row["value"]) for row in rows]
    classes = evaluation.class_rows()
    assert {row["label"]: row["map@r"] for row in classes} == {
        f"kind {label:02d}": values["map@r"] for label, values in expected.per_class().items()
    }
    queries = evaluation.query_rows()
    assert [row["map@r"] for row in queries] == sorted(expected.per_query["map@r"].tolist())
    worst = evaluation.worst(2)
    assert [table.title for table in worst] == ["Worst classes by map@r", "Hardest queries by map@r"]
    assert worst[1].rows[0][0] == queries[0]["query"]
    with per_query.open(newline="") as file:
        assert [row["query"] for row in csv.DictReader(file)] == [str(row["query"]) for row in queries]


def test_two_files(files: Path) -> None:
    paths = [files / "a.npy", files / "b.npy"]
    evaluation = proxemic.evaluate(paths, labels=files / "labels.csv", resamples=100)
    both = [metrics_of(path) for path in paths]
    expected = paired_differences(both[0].per_query, both[1].per_query, LABELS, resamples=100)
    assert evaluation.differences == expected
    assert [target.metrics for target in evaluation.targets] == both
    content = json.loads(evaluation.text("json"))
    assert content["differences"]["map@r"] == vars(expected["map@r"])
    without = proxemic.evaluate(
        paths, labels=files / "labels.csv", resamples=0, overrides={"evaluation.recall_at": [3]}
    )
    assert without.differences == {}
    assert "recall@3" in without.metrics
    assert "interval" not in without.text()


def test_wrong_arguments(files: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"level": 1.0}, "--level is 1.0"),
        ({"resamples": -1}, "--resamples is -1"),
        ({"per_class": "classes.txt"}, "classes.txt is written as CSV"),
        ({"overrides": {"evaluation.recal_at": [1]}}, "did you mean .*recall_at"),
        ({"strict": True}, "--strict is for models"),
    ]
    for options, words in wrong:
        with pytest.raises(UserError, match=words):
            proxemic.evaluate(files / "a.npy", labels=files / "labels.csv", **options)


def test_what_two_files_cannot_have(files: Path) -> None:
    paths = [files / "a.npy", files / "b.npy"]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"labels": files / "labels.csv", "per_class": "classes.csv"}, "--per-class is for one model"),
        ({"labels": files / "labels.csv", "gallery": paths[0]}, "--gallery holds embeddings of one model"),
        ({}, "the embeddings have no labels"),
    ]
    for options, words in wrong:
        with pytest.raises((UserError, ValueError), match=words):
            proxemic.evaluate(paths, **options)


def test_categories_need_a_column(files: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", LABELS.numpy())
    with pytest.raises(UserError, match=r"the rows of .*a\.npy have none: give a table with a column category"):
        proxemic.evaluate(files / "a.npy", labels=tmp_path / "labels.npy", by="category")


def test_the_text_says_what_is_averaged_left_out_and_not_tested(files: Path, tmp_path: Path) -> None:
    numbers = LABELS.clone()
    numbers[0], numbers[1] = 20, 21  # alone in their classes
    np.save(tmp_path / "labels.npy", numbers.numpy())
    paths, clustering = [files / "a.npy", files / "b.npy"], {"evaluation.nmi": True}
    averaged = {"evaluation.average": "classes"}
    one = proxemic.evaluate(paths[0], labels=tmp_path / "labels.npy", resamples=50, overrides=averaged | clustering)
    assert one.text().startswith("22 classes, 58 queries, all images, averages over classes\n")
    assert "2 queries have nothing of the class to find: left out." in one.text()
    both = proxemic.evaluate(paths, labels=tmp_path / "labels.npy", resamples=50, overrides=clustering)
    said = "Clustering has no value of each query to test; compare its intervals model by model."
    assert said in both.text()
    assert said not in one.text()
