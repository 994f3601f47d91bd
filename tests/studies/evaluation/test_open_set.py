"""``proxemic evaluate --open-set``: which rows are the gallery and which are queries, and what is printed."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import Here, assert_refused
from proxemic.arrays import number_texts
from proxemic.data.embeddings import write_embeddings
from proxemic.data.rows import Rows
from proxemic.metrics import RetrievalResults, open_set_identification
from proxemic.studies.evaluate import evaluate
from proxemic.studies.evaluation.open_set import divide_open_set
from vectors import some_vectors


def rows(classes: int, each: int, **flags: Any) -> RetrievalResults:
    return RetrievalResults(torch.zeros(classes * each, 1), torch.arange(classes).repeat_interleave(each), **flags)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    vectors, labels = some_vectors(classes=44, each=6)
    path = tmp_path_factory.mktemp("open set") / "vectors.parquet"
    write_embeddings(path, Rows.of(torch.from_numpy(vectors), label=labels))
    return path


@pytest.mark.parametrize(("classes", "each"), [(2, 2), (7, 5), (8, 1), (3, 4)])
def test_half_of_the_classes_are_unknown(classes: int, each: int) -> None:
    content = rows(classes, each)
    is_gallery, is_query = divide_open_set(content, seed=3)
    assert not (is_gallery & is_query).any()
    assert (is_gallery | is_query).all()
    known = content.labels[is_gallery].unique()
    assert len(known) == classes - classes // 2
    for label in range(classes):
        in_gallery = int(is_gallery[content.labels == label].sum())
        assert in_gallery == (max(1, each // 2) if label in known else 0)
    again, _ = divide_open_set(content, seed=3)
    assert torch.equal(is_gallery, again)
    assert classes < 7 or len({str(divide_open_set(content, seed)[0].tolist()) for seed in range(3)}) == 3


def test_flags_say_which_rows_are_which() -> None:
    is_gallery, is_query = divide_open_set(RetrievalResults(torch.zeros(5, 1), torch.tensor([0, 0, -1, 1, 1])), seed=0)
    assert (is_gallery | is_query).tolist() == [True, True, False, True, True]  # without a label, a row is neither
    is_query = torch.arange(24) % 4 == 0
    content = rows(6, 4, is_query=is_query, is_gallery=~is_query)
    is_gallery, queries = divide_open_set(content, seed=0)
    assert torch.equal(queries, is_query)
    assert not (is_gallery & is_query).any()
    assert len(content.labels[is_gallery].unique()) == 3
    lacks = ~is_query & (content.labels != 5)  # with queries of a class that it lacks, the gallery is as it came
    is_gallery, queries = divide_open_set(rows(6, 4, is_query=is_query, is_gallery=lacks), seed=0)
    assert torch.equal(is_gallery, lacks)
    assert torch.equal(queries, is_query)


def test_the_figures_are_those_of_the_metric(file: Path, here: Here) -> None:
    found = json.loads(here("evaluate", file, "--open-set", "--json", "--resamples", "50").stdout)["open_set"]
    vectors, labels = some_vectors(classes=44, each=6)
    embeddings = torch.from_numpy(vectors)
    content = RetrievalResults(embeddings, number_texts(labels)[0])
    gallery, queries = divide_open_set(content, seed=0)
    metric = open_set_identification(
        embeddings[queries], content.labels[queries], embeddings[gallery], content.labels[gallery]
    )
    assert (found["gallery_classes"], found["gallery_images"]) == (22, 66)
    assert (found["mated_queries"], found["non_mated_queries"], found["non_mated_classes"]) == (66, 132, 22)
    assert found["rank_1"] == metric.rank_1
    for rate in (0.1, 0.01):
        assert found[f"dir@far={rate}"] == metric.points[rate].rate
        assert found[f"threshold@far={rate}"] == metric.points[rate].threshold
    assert found["dir@far=0.001"] is None
    low, high = found["intervals"]["dir@far=0.1"]
    assert low < metric.points[0.1].rate < high
    assert json.loads(here("evaluate", file, "--open-set", "--seed", "1", "--json").stdout)["open_set"] != found
    assert "open_set" not in json.loads(here("evaluate", file, "--json").stdout)


def test_every_format_shows_it(file: Path, tmp_path: Path, here: Here) -> None:
    table = here("evaluate", file, "--open-set", "--resamples", "50").stdout
    for words in (
        "a gallery of 66 images of 22 classes, 66 queries of these, and 132 of 22 classes that it lacks",
        "│ dir@far=0.1 ",
        "│ threshold@far=0.01 ",
        "to measure a false alarm rate of 0.001.",
    ):
        assert words in " ".join(table.split()).replace("│ d", "│ d"), table
    lines = here("evaluate", file, "--open-set", "--format", "csv", "--resamples", "0").stdout
    records = [record for record in csv.DictReader(io.StringIO(lines)) if record["split"] == "open set"]
    names = ["rank_1", *(f"{name}@far={rate}" for name in ("dir", "threshold") for rate in (0.1, 0.01, 0.001))]
    assert [record["metric"] for record in records] == names
    assert records[0]["chance"] == records[3]["value"] == ""
    out = tmp_path / "out.md"
    here("evaluate", file, "--open-set", "--out", out, "--resamples", "0")
    assert "| dir@far=0.1 |" in out.read_text()


def test_two_files_are_compared_each_at_its_own_threshold(file: Path, tmp_path: Path, here: Here) -> None:
    vectors, labels = some_vectors(classes=44, each=6)
    other = tmp_path / "other.parquet"
    noisy = torch.from_numpy(vectors) + torch.randn(len(vectors), vectors.shape[1])
    write_embeddings(other, Rows.of(noisy, label=labels))
    found = json.loads(here("evaluate", file, other, "--open-set", "--json", "--resamples", "50").stdout)
    first, second = (model["open_set"] for model in found["models"])
    difference = found["open_set"]["differences"]["dir@far=0.1"]
    assert difference["difference"] == pytest.approx(first["dir@far=0.1"] - second["dir@far=0.1"])
    assert first["threshold@far=0.1"] != second["threshold@far=0.1"]
    assert "dir@far=0.001" not in found["open_set"]["differences"]
    table = here("evaluate", file, other, "--open-set", "--resamples", "50").stdout
    assert "A - B" in table.rpartition("Open set")[2]


def test_a_run_is_evaluated_on_its_test_classes(run: Path) -> None:
    evaluation = evaluate(run, open_set=True, resamples=0)
    found = evaluation.targets[0].open_set
    assert found is not None
    content = found.content()
    assert (content["gallery_classes"], content["non_mated_classes"], content["non_mated_queries"]) == (2, 2, 12)


def test_what_cannot_be_divided_is_one_sentence(tmp_path: Path, file: Path, here: Here) -> None:
    path = tmp_path / "one.parquet"
    write_embeddings(path, Rows.of(torch.eye(4), label=["a"] * 4))
    assert_refused(here("evaluate", path, "--open-set"), ["leaves classes out of the gallery", "has less than two"])
    write_embeddings(path, Rows.of(torch.eye(4), label=["a", "b", "b", "b"]))
    seeds = {here("evaluate", path, "--open-set", "--seed", str(seed)).returncode for seed in range(6)}
    assert seeds == {0, 2}, "a gallery of class a alone, which has one image, leaves no query of it"
    assert_refused(here("evaluate", file, "--open-set", "--seed", "-1"), ["seed is -1"])
