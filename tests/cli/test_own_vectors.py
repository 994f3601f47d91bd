"""Own vectors through the command line: training, resuming, evaluation, analyses, and what has no meaning for them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import Here, assert_refused
from proxemic.data.embeddings import write_embeddings
from proxemic.data.rows import Rows
from proxemic.models import ModelConfig, build_model, load_model, save_model
from proxemic.recipes import find_recipe
from stopping import killed_and_resumed
from vectors import CLASSES, DIM, EACH, some_vectors, write_table
from verification import by_definition

RECIPE = ("train", "--recipe", "own-vectors", "--training.accelerator", "cpu", "--batches.size", "16")
SMALL = ("--model.embedding_size", "8", "--data.test_fraction", "0.34", "--data.validation_fraction", "0.34")
LAST = ("--evaluation.select_on", "last")  # a network that came out worse than it was would not be kept
VARIED = ("--vectors.noise", "0.2")

ROWS = np.arange(CLASSES * EACH)
FIRST, SECOND = (item.flatten()[::7] for item in np.meshgrid(ROWS, ROWS))
SAME = FIRST % CLASSES == SECOND % CLASSES
PAIRS = "first,second,same\n" + "".join(f"{a},{b},{c}\n" for a, b, c in zip(FIRST, SECOND, SAME, strict=True))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    vectors, names = some_vectors()
    return write_table(tmp_path_factory.mktemp("vectors") / "v.parquet", vectors.astype(np.float16), label=names)


def trained(here: Here, out: Path, table: Path, *flags: str | Path) -> Path:
    result = here(*RECIPE, *SMALL, "--data.root", table, "--out", out, *flags)
    assert result.returncode == 0, result.stderr
    assert "vectors/s" in result.stdout + result.stderr
    return out


def test_a_head_is_trained_resumed_evaluated_and_analysed(table: Path, tmp_path: Path, here: Here) -> None:
    varied = ("--training.epochs", "2", *VARIED, *LAST)
    run = trained(here, tmp_path / "run", table, *varied)
    assert not (run / "gallery.png").exists()
    metrics = json.loads((run / "metrics.json").read_text())
    assert {"test", "untrained"} <= metrics.keys()
    description = json.loads((run / "model.json").read_text())
    assert (description["config"]["backbone"], description["config"]["input_size"]) == ("none", DIM)
    assert description["preprocessing"] == {}
    killed = tmp_path / "killed"
    killed_and_resumed(find_recipe("own-vectors"), killed, *RECIPE[3:], *SMALL, "--data.root", table, *varied)
    for file in ("model.safetensors", "loss.safetensors"):
        assert (run / file).read_bytes() == (killed / file).read_bytes()

    saved = tmp_path / "saved.parquet"
    evaluated = here("evaluate", run, "--json", "--resamples", "0", "--save-embeddings", saved)
    assert evaluated.returncode == 0, evaluated.stderr
    assert "recall@1" in evaluated.stdout
    of_file = here("evaluate", saved, "--json", "--resamples", "0")
    assert of_file.returncode == 0, of_file.stderr
    both = here("evaluate", run, killed, "--json", "--resamples", "0")
    assert both.returncode == 0, both.stderr
    drawn = here("analyze", "map", run, "--method", "pca")
    assert drawn.returncode == 0, drawn.stderr
    assert_refused(here("analyze", "robustness", run), ["takes vectors, but only images can be corrupted"])
    assert_refused(here("verify", run, "--sets", "lfw"), ["run takes vectors", "give --pairs FILE", "first, second"])
    (tmp_path / "pairs.csv").write_text(PAIRS)
    for flags in ((), ("--no-flip",)):
        verified = here("verify", run, "--pairs", tmp_path / "pairs.csv", *flags)
        assert verified.returncode == 0, verified.stderr
        assert "Verification by cosine distance; in percent" in verified.stdout
    assert json.loads((run / "verification.json").read_text())["data"] == str(table)

    vectors, names = some_vectors()
    np.save(tmp_path / "other.npy", vectors)
    labels = write_table(tmp_path / "labels.parquet", label=[f"other {name}" for name in names])
    other = ("--data.root", tmp_path / "other.npy", "--data.labels", labels)
    assert here("evaluate", run, *other, "--resamples", "0").returncode == 0
    np.save(tmp_path / "other.npy", vectors[:, 1:])
    assert_refused(here("evaluate", run, *other), [f"23 dimensions but the head takes {DIM}"])


def test_heads_losses_and_a_final_model(table: Path, tmp_path: Path, here: Here) -> None:
    one = ("--training.epochs", "1", *LAST)
    trained(here, tmp_path / "residual", table, *one, "--model.head", "residual", "--loss", "ArcFaceLoss")
    run = trained(here, tmp_path / "pca", table, *one, "--model.head_init", "pca")
    trained(here, tmp_path / "all", table, *one[:2], "--no-validation")
    model, _ = load_model(run)
    vectors, _ = some_vectors()
    assert model(torch.from_numpy(vectors)).shape == (len(vectors), 8)
    head = ("--model.head", "none", "--model.embedding_size", str(DIM), "--model.head_init", "null")
    assert trained(here, tmp_path / "none", table, *one, *head).exists()
    result = here(*RECIPE, *head[:2], *head[4:], "--data.root", table, "--out", tmp_path / "refused")
    assert_refused(result, ["embedding_size is 128 but without a head it must be 24"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--images.size", "20"), ["images.size is 20", "model.backbone is none", "leave it out"]),
        (("--augment.horizontal_flip", "0.5"), ["augment.horizontal_flip is 0.5"]),
        (("--model.pooling", "max"), ["vectors are not pooled"]),
        (("--model.input_size", "7"), ["model.input_size is 7, but the data are vectors of 24 dimensions"]),
        (("--vectors.noise", "-1"), ["vectors.noise is -1", "at least 0"]),
        (("--vectors.noise", "0", "--model.backbone", "convnet"), ["vectors of 24 dimensions", "set it to none"]),
    ],
)
def test_what_has_no_meaning_for_vectors_is_refused(
    table: Path, tmp_path: Path, here: Here, flags: tuple[str, ...], words: list[str]
) -> None:
    result = here(*RECIPE, "--data.root", table, "--out", tmp_path / "run", *flags)
    assert_refused(result, words)
    assert not (tmp_path / "run").exists()


def test_recipes_of_images_point_to_that_of_vectors(table: Path, tmp_path: Path, here: Here) -> None:
    assert_refused(here("train", "--recipe", "own", "--data.root", table), ["no column path", "recipe own-vectors"])
    np.save(tmp_path / "v.npy", np.eye(3))
    assert_refused(here("train", "--recipe", "own", "--data.root", tmp_path / "v.npy"), ["OwnVectors", "own-vectors"])
    assert_refused(here("train", "--recipe", "own-vectors"), ["data.root is missing"])


def test_a_head_on_the_embeddings_of_a_run_knows_which_run_made_them(table: Path, tmp_path: Path, here: Here) -> None:
    one = ("--training.epochs", "1", *LAST)
    first, second = (trained(here, tmp_path / f"run{seed}", table, *one, "--seed", seed) for seed in "12")
    for run, kind in ((first, "parquet"), (first, "npy"), (second, "npy")):
        saved = here("evaluate", run, "--split", "train", "--save-embeddings", run / f"saved.{kind}", "--json")
        assert saved.returncode == 0, saved.stderr
    final = ("--data.test_fraction", "0", "--data.validation_fraction", "0")
    head = trained(here, tmp_path / "head", first / "saved.parquet", *one, *final)
    made_by = json.loads((first / "model.json").read_text())["sha256"]
    assert json.loads((head / "model.json").read_text())["config"]["input_model"] == made_by

    def saved_by(run: Path) -> list[str | Path]:
        return ["--data.root", run / "saved.npy", "--data.labels", run / "saved.paths.csv"]

    same = here("evaluate", head, *saved_by(first), "--split", "all", "--json")
    assert (same.returncode, "WARNING" in same.stderr) == (0, False), same.stderr
    other = here("evaluate", head, *saved_by(second), "--split", "all", "--json")
    assert other.returncode == 0, other.stderr
    assert f"was trained on vectors of the model {made_by}, but these come from" in other.stderr


def test_queries_search_a_gallery(tmp_path: Path, here: Here) -> None:
    torch.manual_seed(0)
    model = build_model(ModelConfig("none", input_size=DIM, embedding_size=8, unit_features=True)).eval()
    save_model(tmp_path / "model", model, {})
    vectors, names = some_vectors()
    asked = ROWS < CLASSES  # one of each class
    paths = [f"n{row}" for row in ROWS]
    for name, part in (("q", asked), ("g", ROWS >= 6)):  # half of the queries are in the gallery, too
        rows = np.flatnonzero(part)
        columns = {"label": [names[row] for row in rows], "path": [paths[row] for row in rows]}
        write_table(tmp_path / f"{name}.parquet", vectors[rows], **columns, split=["train"] * len(rows))
        np.save(tmp_path / f"{name}.npy", vectors[rows])
        write_table(tmp_path / f"{name}-labels.parquet", **columns)
    query, gallery = ("--query", tmp_path / "q.parquet"), ("--gallery", tmp_path / "g.parquet")
    result = here("evaluate", tmp_path / "model", *query, *gallery, "--json", "--resamples", "0")
    assert result.returncode == 0, result.stderr
    with torch.no_grad():
        embeddings = model(torch.from_numpy(vectors)).double().numpy()
    labels, nearest = ROWS % CLASSES, []
    for row in np.flatnonzero(asked):
        others = np.flatnonzero((ROWS >= 6) & (row != ROWS))
        nearest.append(labels[others[np.argmax(embeddings[others] @ embeddings[row])]] == labels[row])
    found = json.loads(result.stdout)
    assert found["all"]["recall@1"] == pytest.approx(np.mean(nearest))
    assert (found["queries"], found["images"]) == (CLASSES, len(ROWS))

    apart = ("--query", tmp_path / "q.npy", "--gallery", tmp_path / "g.npy")
    labelled = ("--labels", tmp_path / "q-labels.parquet", "--gallery-labels", tmp_path / "g-labels.parquet")
    same = here("evaluate", tmp_path / "model", *apart, *labelled, "--json", "--resamples", "0")
    assert same.stdout == result.stdout
    file = tmp_path / "model"
    assert_refused(here("evaluate", file, *apart), ["q.npy has no labels", "--labels and --gallery-labels"])
    assert_refused(here("evaluate", file, *labelled), ["--labels is for embeddings", "with --query and --gallery"])
    folders = ("--query", tmp_path, "--gallery", tmp_path / "g.npy")
    assert_refused(here("evaluate", file, *folders), ["model takes vectors, but", "holds none"])
    np.save(tmp_path / "g.npy", np.where(np.arange(DIM) == ROWS[ROWS >= 6, None] - 10, np.nan, vectors[ROWS >= 6]))
    wrong = here("evaluate", file, *apart, *labelled)  # of rows 5 and 6 it reads the queries
    assert_refused(wrong, ["g.npy, row 7: the vector has a number that is not finite"])

    save_model(tmp_path / "images", build_model(ModelConfig(embedding_size=8, width=4)), {})
    assert_refused(here("evaluate", tmp_path / "images", *apart), ["images takes images, but", "q.npy holds vectors"])
    both = here("evaluate", tmp_path / "model", tmp_path / "images", *apart)
    assert_refused(both, ["evaluate them one by one"])


def test_pairs_of_vectors_are_verified_by_definition(tmp_path: Path, here: Here) -> None:
    config = ModelConfig("none", input_size=DIM, embedding_size=8, unit_features=True, input_model="mine")
    torch.manual_seed(0)
    model = build_model(config)
    save_model(tmp_path, model, {})
    vectors, _ = some_vectors()
    names = [f"n{row:02d}" for row in ROWS]
    data = write_table(tmp_path / "v.parquet", vectors, path=names)  # without labels
    folds = np.arange(len(SAME)) % 3
    columns = {"first": [names[row] for row in FIRST], "second": [names[row] for row in SECOND]}
    pairs = write_table(tmp_path / "p.parquet", **columns, same=SAME.tolist(), fold=folds.tolist())
    # The formula: the head of a unit vector, scaled to unit length.
    weight, bias = (parameter.detach().double().numpy() for parameter in model.parameters())
    unit = vectors.astype(np.float64) / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    embeddings = unit @ weight.T + bias
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    for distance in ("cosine", "euclidean"):
        words = ("--pairs", pairs, "--data", data, "--distance", distance, "--format", "json")
        result = here("verify", tmp_path / "model.safetensors", *words)
        assert result.returncode == 0, result.stderr
        found = json.loads(result.stdout)
        expected = by_definition(embeddings, FIRST, SECOND, SAME, folds, distance)
        assert found["sets"]["p.parquet"]["accuracies"] == pytest.approx(expected)
        assert (found["flip"], found["data"]) == (False, str(data))
        assert found["sets"]["p.parquet"]["same"] == SAME.sum()
    assert not (tmp_path / "verification.json").exists()

    model_file, pairs = tmp_path / "model.safetensors", ("--pairs", pairs)
    assert_refused(here("verify", model_file, *pairs), ["--data is missing: give the file of the vectors"])
    write_table(tmp_path / "short.parquet", vectors[:5], path=names[:5])
    short = here("verify", model_file, *pairs, "--data", tmp_path / "short.parquet")
    assert_refused(short, ["short.parquet, whose rows are named by the column path, lacks 67 of the 72", "n05, n06"])
    known = Rows.of(torch.from_numpy(vectors), path=names, label=["a"] * len(names))
    write_embeddings(tmp_path / "theirs.parquet", replace(known, made_by="theirs"))
    theirs = here("verify", model_file, *pairs, "--data", tmp_path / "theirs.parquet")
    assert "was trained on vectors of the model mine, but these come from theirs" in theirs.stderr
    assert theirs.returncode == 0


def test_labels_are_found_from_another_folder(table: Path, tmp_path: Path, here: Here) -> None:
    vectors, names = some_vectors()
    np.save(tmp_path / "v.npy", vectors)
    write_table(tmp_path / "labels.parquet", label=names)
    files = ("--data.root", "v.npy", "--data.labels", "labels.parquet", "--training.epochs", "1")
    result = here(*RECIPE, *SMALL, *files, "--out", "run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (tmp_path / "else").mkdir()
    evaluated = here("evaluate", "../run", "--json", "--resamples", "0", cwd=tmp_path / "else")
    assert evaluated.returncode == 0, evaluated.stderr
