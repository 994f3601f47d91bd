"""``proxemic evaluate``: models on images, embeddings from files, two of either."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from command_line import Here, assert_refused, csv_rows
from images import write_folder, write_recipe
from proxemic.data import ImageSet
from proxemic.data.embeddings import read_embeddings, write_embeddings
from proxemic.data.rows import Rows
from proxemic.metrics import paired_differences, retrieval_metrics


def test_evaluate_repeats_the_run_s_own_test(run: Path, tmp_path: Path, here: Here) -> None:
    table = here("evaluate", run)
    assert table.returncode == 0, table.stderr
    assert "recall@1" in table.stdout
    out = tmp_path / "metrics.json"
    content = json.loads(here("evaluate", run, "--json", "--out", out).stdout)
    assert content == json.loads(out.read_text())
    assert content["test"] == json.loads((run / "metrics.json").read_text())["test"]


def test_evaluate_takes_other_metrics_and_splits(run: Path, here: Here) -> None:
    result = here(
        "evaluate", run, "--json", "--split", "train", "--evaluation.recall_at", "[1,3]",
        "--evaluation.precision_at", "[3]", "--evaluation.ndcg_at", "[]", "--evaluation.distance", "euclidean",
        "--evaluation.map_at", "[3]", "--evaluation.map_divisors", "[min,hits]", "--evaluation.map", "true",
        "--evaluation.mrr", "true", "--evaluation.metric", "mrr", "--evaluation.nmi", "true",
    )  # fmt: skip
    found = json.loads(result.stdout)
    names = {"recall@1", "recall@3", "precision@3", "map@3", "map_over_hits@3", "map@r", "r_precision", "map", "mrr"}
    names |= {"nmi", "nmi_geometric", "ami"}
    assert set(found["train"]) == set(found["chance"]) == names
    assert found["train"]["recall@1"] <= found["train"]["mrr"] <= 1
    assert found["train"]["map@r"] <= found["train"]["map"]


@pytest.mark.parametrize("which", ["run", "file"])
def test_another_folder_is_evaluated_whole(run: Path, which: str, tmp_path: Path, here: Here) -> None:
    other = write_folder(tmp_path / "other", classes=3, images=4)
    model = run if which == "run" else run / "model.safetensors"
    found = json.loads(here("evaluate", model, "--data.root", other, "--json").stdout)
    assert (found["classes"], found["images"], found["queries"]) == (3, 12, 12)
    assert 0 <= found["all"]["recall@1"] <= 1


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models' embeddings of 40 rows of 20 classes, and their labels."""
    folder = tmp_path_factory.mktemp("embeddings")
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 20
    centers = rng.normal(size=(20, 16))
    for name, noise in (("a", 0.8), ("b", 2.0)):
        np.save(folder / f"{name}.npy", (centers[labels] + noise * rng.normal(size=(40, 16))).astype(np.float32))
    (folder / "labels.csv").write_text("\n".join(["label", *(f"kind {label:02d}" for label in labels)]))
    return folder


@pytest.mark.parametrize(
    "words",
    [
        "--evaluation.nmi true a.npy b.npy --labels labels.csv",
        "a.npy --labels labels.csv --evaluation.nmi=true b.npy",
        "--labels labels.csv a.npy b.npy --evaluation.nmi true",
    ],
)
def test_flags_stand_anywhere(words: str, files: Path, here: Here) -> None:
    found = json.loads(here("evaluate", *words.split(), "--json", "--resamples", "0", cwd=files).stdout)
    assert [model["model"] for model in found["models"]] == ["a.npy", "b.npy"]
    assert all("nmi" in model["all"] for model in found["models"])


def test_names_are_no_markup(tmp_path: Path, files: Path, here: Here) -> None:
    names = ["k[/0]", "bird[red] :cat:"]
    (tmp_path / "labels.csv").write_text("\n".join(["label", *(names[row % 2] for row in range(40))]))
    result = here("evaluate", files / "a.npy", "--labels", tmp_path / "labels.csv", "--worst", "2")
    assert all(name in result.stdout for name in names)


def test_rows_are_named_by_their_place_in_the_file(tmp_path: Path, files: Path, here: Here) -> None:
    lines = [f"kind {row % 20},{row >= 20},{row < 20}" for row in range(40)]
    (tmp_path / "labels.csv").write_text("\n".join(["label,is_query,is_gallery", *lines]))
    queries = tmp_path / "queries.csv"
    flags = ["--labels", tmp_path / "labels.csv", "--per-query", queries]
    assert here("evaluate", files / "a.npy", *flags).returncode == 0
    assert sorted(int(row["query"]) for row in csv_rows(queries)) == list(range(21, 41))
    lines = [f"kind {row % 20},{row % 20 < 3},true" for row in range(40)]
    (tmp_path / "labels.csv").write_text("\n".join(["label,is_query,is_gallery", *lines]))
    shown = here("evaluate", files / "a.npy", "--labels", tmp_path / "labels.csv").stdout
    assert "20 classes, 6 queries" in shown
    assert "Few classes: 3." in shown
    assert "interval " not in shown.splitlines()[2]


def test_two_models_are_compared_on_the_same_queries(files: Path, here: Here) -> None:
    flags = ["--labels", files / "labels.csv"]
    found = json.loads(here("evaluate", files / "a.npy", files / "b.npy", *flags, "--json").stdout)
    labels = torch.arange(40) % 20
    both = [retrieval_metrics(torch.from_numpy(np.load(files / f"{name}.npy")), labels, ndcg_at=(8,)) for name in "ab"]
    expected = paired_differences(both[0].per_query, both[1].per_query, labels)
    assert [model["all"] for model in found["models"]] == both
    assert found["differences"] == {name: vars(item) for name, item in expected.items()}


def test_two_runs_are_compared(run: Path, folder: Path, tmp_path: Path, here: Here) -> None:
    other = tmp_path / "other"
    recipe = write_recipe(tmp_path / "tiny.yaml", folder)
    assert here("train", "--recipe", recipe, "--out", other, "--training.epochs", "1", "--seed", "1").returncode == 0
    found = json.loads(here("evaluate", run, other, "--json").stdout)
    tests = [json.loads((path / "metrics.json").read_text())["test"] for path in (run, other)]
    assert [model["test"] for model in found["models"]] == tests
    same = here("evaluate", run, run, "--format", "csv").stdout.splitlines()[1].split(",")
    assert same[4:] == ["0.0", "", "", "1.0"]  # four classes: no interval
    # A run that was trained on what the other keeps for its test.
    third = tmp_path / "third"
    flags = ["--training.epochs", "1", "--data.split_seed", "1"]
    assert here("train", "--recipe", recipe, "--out", third, *flags).returncode == 0
    assert_refused(here("evaluate", run, third), ["third", "split"])


def test_reports_are_written_in_the_format_of_their_name(files: Path, tmp_path: Path, here: Here) -> None:
    base = ["evaluate", files / "a.npy", "--labels", files / "labels.csv"]
    outs = {ending: tmp_path / "new" / f"out{ending}" for ending in (".json", ".csv", ".md")}
    for out in outs.values():
        assert here(*base, "--out", out).returncode == 0
    content = json.loads(outs[".json"].read_text())
    rows = csv_rows(outs[".csv"])
    assert {row["metric"]: float(row["value"]) for row in rows} == content["all"]
    assert [[float(row["low"]), float(row["high"])] for row in rows] == list(content["intervals"].values())
    line = next(line for line in outs[".md"].read_text().splitlines() if "map@r" in line)
    low, high = content["intervals"]["map@r"]
    value, chance = 100 * content["all"]["map@r"], 100 * content["chance"]["map@r"]
    assert line == f"| map@r | {value:.2f} | {chance:.2f} | {100 * low:.2f} … {100 * high:.2f} |"
    assert here(*base, "--format", "markdown").stdout == outs[".md"].read_text()


@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_kept_embeddings_give_the_same_metrics(run: Path, ending: str, tmp_path: Path, here: Here) -> None:
    kept = tmp_path / f"test.{ending}"
    first = json.loads(here("evaluate", run, "--save-embeddings", kept, "--json").stdout)
    labels = tmp_path / "test.paths.csv" if ending == "npy" else None
    flags = [] if labels is None else ["--labels", labels]
    metrics = ["--evaluation.recall_at", "[1,2]", "--evaluation.ndcg_at", "[2]"]
    again = json.loads(here("evaluate", kept, *flags, "--json", *metrics).stdout)
    assert again["all"] == first["test"]
    assert again["chance"] == first["chance"]
    assert again["precision"] == first["precision"] == "32-true"
    assert read_embeddings(kept, labels).names[0].endswith(".png")


def test_query_and_gallery_folders(run: Path, folder: Path, tmp_path: Path, here: Here) -> None:
    query, gallery = tmp_path / "query", tmp_path / "gallery"
    for name in ("class 00", "class 01", "class 02"):
        for place, numbers in ((query, (0,)), (gallery, (1, 2, 3))):
            (place / name).mkdir(parents=True)
            for number in numbers:
                shutil.copy(folder / name / f"{number}.png", place / name)
    shutil.copytree(folder / "class 05", gallery / "class 05")
    kept = tmp_path / "kept.parquet"
    flags = ["--query", query, "--gallery", gallery]
    found = json.loads(here("evaluate", run, *flags, "--save-embeddings", kept, "--json").stdout)
    assert (found["images"], found["queries"], found["classes"]) == (18, 3, 4)
    content = ImageSet.of(read_embeddings(kept))
    asked = content.is_query
    assert asked is not None
    assert content.rows.embeddings is not None
    parts = [part[flags] for flags in (asked, ~asked) for part in (content.rows.embeddings, content.labels)]
    assert found["all"] == retrieval_metrics(*parts, recall_at=(1, 2), ndcg_at=(2,))
    # The same in two tables with one image in both, which must not find itself.
    rows = [f"{folder}/class 0{label}/{number}.png,{label}" for label in range(2) for number in range(3)]
    for name, part in (("query.csv", rows[:4]), ("gallery.csv", rows)):
        (tmp_path / name).write_text("\n".join(["path,label", *part]))
    flags = ["--query", tmp_path / "query.csv", "--gallery", tmp_path / "gallery.csv"]
    flags += ["--per-query", tmp_path / "q.csv", "--save-embeddings", kept]
    found = json.loads(here("evaluate", run, *flags, "--evaluation.recall_at", "[1,6]", "--json").stdout)
    assert (found["images"], found["queries"]) == (6, 4)
    content = ImageSet.of(read_embeddings(kept))
    points, labels, asked = content.rows.embeddings, content.labels, content.is_query
    assert points is not None
    assert asked is not None
    sets, at = (points[asked], labels[asked], points, labels), {"recall_at": (1, 6), "ndcg_at": (2,)}
    assert found["all"] == retrieval_metrics(*sets, exclude=torch.arange(6)[asked], **at)
    assert found["all"] != retrieval_metrics(*sets, **at)
    assert len(csv_rows(tmp_path / "q.csv")) == 4


def test_embeddings_search_a_gallery_in_another_file(files: Path, tmp_path: Path, here: Here) -> None:
    labels = files / "labels.csv"
    flags = ["--labels", labels, "--gallery", files / "b.npy", "--gallery-labels", labels, "--json"]
    found = json.loads(here("evaluate", files / "a.npy", *flags).stdout)
    numbers = torch.arange(40) % 20
    sets = [torch.from_numpy(np.load(files / f"{name}.npy")) for name in "ab"]
    assert found["all"] == retrieval_metrics(sets[0], numbers, sets[1], numbers, ndcg_at=(8,))
    assert (found["images"], found["queries"]) == (80, 40)


@pytest.fixture(scope="module")
def spoilt(files: Path, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that cannot be evaluated, beside those that can."""
    folder = tmp_path_factory.mktemp("spoilt")
    shutil.copytree(files, folder, dirs_exist_ok=True)
    lines = (files / "labels.csv").read_text().splitlines()
    (folder / "short.csv").write_text("\n".join(lines[:-3]))
    points = np.load(files / "a.npy")
    np.save(folder / "wide.npy", np.concatenate([points, points[:, :1]], 1))
    np.save(folder / "lone.npy", points[:3])
    (folder / "lone.csv").write_text("label\na\nb\nc")
    points[3], points[5, 1] = np.nan, np.inf
    np.save(folder / "nan.npy", points)
    rows = Rows.of(torch.from_numpy(np.load(files / "a.npy")), label=[str(row % 20) for row in range(40)])
    asked = rows.with_texts(is_query=["true", "false"] * 20, is_gallery=["false", "true"] * 20)
    for name, part in (("all", rows), ("asked", asked)):
        write_embeddings(folder / f"{name}.parquet", part)
    (folder / "beside").mkdir()
    shutil.copy(run / "model.safetensors", folder / "beside" / "renamed.safetensors")
    shutil.copy(run / "model.json", folder / "beside")
    return folder


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a.npy"], ["no labels", "--labels"]),
        (["a.npy", "--labels", "short.csv"], ["37", "40"]),
        (["nan.npy", "--labels", "labels.csv"], ["NaN or infinite values in 2 of 40"]),
        (["lone.npy", "--labels", "lone.csv"], ["none of the 3 queries"]),
        (["labels.csv"], ["labels.csv", ".npy"]),
        (["a.npy", "wide.npy", "b.npy"], ["3 runs or files", "b.npy"]),
        (["a.npy", "--labels", "labels.csv", "--json", "--worst", "2"], ["--worst is for the table"]),
        (["a.npy", "--labels", "labels.csv", "--out", "labels.csv"], ["labels.csv", "another name"]),
        (["a.npy", "--labels", "labels.csv", "--out", "x.csv", "--per-class", "./x.csv"], ["x.csv", "another name"]),
        (["{run}", "--save-embeddings", "{run}/model.npy"], ["model.json", "another name"]),
        (["{run}", "--save-embeddings", "x.npy", "--out", "x.json"], ["x.json", "another name"]),
        (["{run}", "--save-embeddings", "x.safetensors"], ["not a format of embeddings", ".parquet", ".npy"]),
        (["all.parquet", "asked.parquet"], ["is_query or is_gallery"]),
        (["beside/renamed.safetensors", "--labels", "labels.csv"], ["--labels is for embeddings"]),
        (["a.npy", "{run}", "--labels", "labels.csv"], ["model and embeddings"]),
        (["a.npy", "--labels", "labels.csv", "--data.root", "x"], ["--data.root is for models"]),
        (["a.npy", "--labels", "labels.csv", "--split", "test"], ["--split is for models"]),
        (["a.npy", "--labels", "labels.csv", "--gallery", "wide.npy", "--gallery-labels", "labels.csv"], ["16", "17"]),
        (["a.npy", "--labels", "labels.csv", "--gallery-labels", "labels.csv"], ["needs --gallery"]),
        (["a.npy", "b.npy", "--labels", "labels.csv", "--per-class", "c.csv"], ["--per-class is for one model"]),
        (["a.npy", "b.npy", "--labels", "labels.csv", "--gallery", "a.npy"], ["--gallery holds embeddings of one"]),
        (["{run}", "--resamples", "1000000000"], ["resamples is 1000000000", "100000"]),
        (["a.npy", "--labels", "labels.csv", "--level", "95"], ["level is 95"]),
        (["a.npy", "--labels", "labels.csv", "--out", "out.txt"], ["out.txt", ".json, .csv or .md"]),
        (["a.npy", "--labels", "labels.csv", "--per-class", "out.md"], ["out.md", ".csv"]),
        (["a.npy", "b.npy", "--labels", "labels.csv", "--worst", "3"], ["--worst is for one model"]),
        (["a.npy", "--labels", "labels.csv", "--worst", "-1"], ["worst is -1", "at least 0"]),
        (["a.npy", "--labels", "labels.csv", "--evaluation.recal_at", "[1]"], ["did you mean --evaluation.recall_at"]),
        (["{run}", "--query", "x"], ["given together"]),
        (["{run}", "--query", "{folder}", "--gallery", "nowhere"], ["nowhere does not exist"]),
        (["{run}", "--query", "{folder}", "--gallery", "{folder}", "--data.root", "x"], ["--data.root"]),
        (["{run}", "--save-embeddings", "x.pt"], ["x.pt", "pickle"]),
        (["{run}/model.safetensors"], ["--data.root is missing"]),
        (["{run}/recipe.yaml", "--data.root", "{folder}"], ["recipe.yaml"]),
        (["{run}", "--evaluation.recall_at", "[0]"], ["recall_at", "1 or more"]),
    ],
)
def test_evaluate_says_what_is_wrong(
    words: list[str], said: list[str], spoilt: Path, run: Path, folder: Path, here: Here
) -> None:
    before = sorted(spoilt.iterdir())
    result = here("evaluate", *(word.format(run=run, folder=folder) for word in words), cwd=spoilt)
    assert_refused(result, said)
    assert sorted(spoilt.iterdir()) == before


def test_the_commands_of_the_page(
    run: Path, folder: Path, files: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "evaluating.md").read_text()
    commands = re.findall(r"^proxemic (evaluate .*?)(?:  +#.*)?$", page, re.MULTILINE)
    assert len(commands) == 8
    (tmp_path / "runs").mkdir()
    for name in ("photos", "photos-2"):
        (tmp_path / "runs" / name).symlink_to(run)
    for name in ("other-photos", "shop/query", "shop/gallery"):
        shutil.copytree(folder, tmp_path / name)
    for name in ("embeddings.npy", "queries.npy", "gallery.npy"):
        shutil.copy(files / "a.npy", tmp_path / name)
    for name in ("labels.csv", "q.csv", "g.csv"):
        shutil.copy(files / "labels.csv", tmp_path / name)
    lines = [f"{path},{path.parent.name},{path.parent.name[-1]}" for path in sorted(folder.glob("*/*.png"))[:24]]
    (tmp_path / "table.csv").write_text("\n".join(["path,label,category", *lines]))
    for words in commands:
        result = here(*words.split(), cwd=tmp_path)
        assert result.returncode == 0, (words, result.stderr)
        assert "map@r" in result.stdout
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "proxemic.evaluate(" in block)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["evaluation"].metrics.keys() >= {"recall@1", "recall@10"}
    assert names["compared"].differences["map@r"].p_value == 1.0  # two names of one run
