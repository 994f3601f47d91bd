"""``proxemic evaluate`` on runs and folders that were moved, damaged or oddly named, and on classes trained on."""

import json
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import FIRST_LINE, Here, assert_refused
from proxemic.data import ImageSet, OwnImages
from proxemic.data.embeddings import read_embeddings
from proxemic.errors import UserNote
from proxemic.runs.embed import embed_images
from proxemic.studies.evaluation import models
from proxemic.training import RunDirectory


def evaluated(here: Here, *words: str | Path, cwd: Path | None = None) -> dict[str, Any]:
    result = here("evaluate", *words, "--json", cwd=cwd)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def own_test(run: Path) -> dict[str, float]:
    return json.loads((run / "metrics.json").read_text())["test"]


def test_figures_are_those_of_float32_whatever_the_recipe_of_a_run(run: Path, copy: Path, here: Here) -> None:
    recipe = copy / "recipe.yaml"
    before, evaluation, after = recipe.read_text().partition("\nevaluation:")
    recipe.write_text(before + evaluation + after.replace("precision: 32-true", "precision: bf16-mixed", 1))
    assert recipe.read_text() != (run / "recipe.yaml").read_text()
    found = evaluated(here, copy)
    assert (found["test"], found["precision"]) == (own_test(run), "32-true")
    for pair in ((run, copy), (copy, run)):
        models = evaluated(here, *pair)["models"]
        assert [(model["test"], model["precision"]) for model in models] == [(own_test(run), "32-true")] * 2
    asked = here("evaluate", run, copy, "--evaluation.precision", "bf16-mixed")
    assert "computed in bf16-mixed" in asked.stdout
    assert "computed in" not in here("evaluate", run, copy).stdout
    assert_refused(here("evaluate", run, "--evaluation.precision", "auto"), ["precision", "32-true", "bf16-mixed"])


def test_commands_that_take_a_model_say_that_its_run_is_unfinished(
    copy: Path, folder: Path, tmp_path: Path, here: Here
) -> None:
    pytest.importorskip("onnxscript")
    (copy / "metrics.json").unlink()
    history = (copy / "history.csv").read_text().splitlines(keepends=True)
    (copy / "history.csv").write_text("".join(history[:2]))
    stopped, shop, pairs = "stopped in epoch 2 of 2", tmp_path / "shop", tmp_path / "pairs.csv"
    files = sorted(path.relative_to(folder) for path in folder.glob("*/*.png"))
    couples = [*pairwise(files), *zip(files, files[7:], strict=False)]
    rows = [f"{first},{second},{first.parent == second.parent}" for first, second in couples]
    pairs.write_text("\n".join(["first,second,same", *rows]))
    printed = {}
    for name, words in {
        "evaluate": ["evaluate", copy, "--json"],
        "two": ["evaluate", copy, copy / "model.safetensors", "--json"],
        "table": ["evaluate", copy],
        "verify": ["verify", copy, "--pairs", pairs, "--data", folder, "--format", "json"],
        "calibrate": ["calibrate", copy, "--format", "json"],
        "note": ["calibrate", copy],
        "embed": ["embed", folder, "--model", copy, "--out", tmp_path / "v.npy", "--workers", "0"],
        "create": ["gallery", "create", shop, folder, "--model", copy],
        "export": ["export", copy, "--unfinished", "--out", tmp_path / "net.onnx"],
    }.items():
        with pytest.warns(UserNote, match=stopped):
            result = here(*words)
        assert result.returncode == 0, result.stderr
        printed[name] = result.stdout
    printed["gallery"] = here("gallery", "info", shop, "--format", "json").stdout
    printed["two"] = json.dumps(json.loads(printed["two"])["models"][1])
    for name in ("evaluate", "two", "verify", "calibrate", "gallery"):
        assert json.loads(printed[name])["unfinished"] == stopped
    assert f"{copy} {stopped}." in printed["table"]
    assert stopped in printed["note"]
    assert stopped in here("gallery", "info", shop).stdout
    assert json.loads((tmp_path / "net.json").read_text())["unfinished"] == stopped
    assert f"**This model is unfinished: its training {stopped}.**" in (tmp_path / "net.md").read_text()
    assert_refused(here("export", copy), [stopped, f"--resume {copy}", "--unfinished"])


def test_few_classes_are_said_to_be_few_beside_chance(run: Path, here: Here) -> None:
    metrics = json.loads((run / "metrics.json").read_text())
    for result in (here("train", "--resume", run), here("evaluate", run)):  # the first prints what the training found
        assert "Few classes: 4." in result.stdout
        line = next(line for line in result.stdout.splitlines() if "map@r" in line)
        assert f"{100 * metrics['chance']['map@r']:.2f}" in line
        assert "…" not in line
    found = evaluated(here, run)
    assert found["chance"] == metrics["chance"]
    assert "intervals" not in found
    two = here("evaluate", run, run).stdout
    assert "Few classes: 4." in two
    (row,) = (line for line in two.splitlines() if "recall@1 " in line)
    assert row.replace("│", "").split()[3] == f"{100 * found['chance']['recall@1']:.2f}"
    differences = evaluated(here, run, run)["differences"]
    assert all(difference["low"] is None and difference["p_value"] == 1 for difference in differences.values())


def test_moved_data_are_named_with_the_flag(run: Path, copy: Path, folder: Path, here: Here) -> None:
    recipe, metrics = copy / "recipe.yaml", (copy / "metrics.json").read_text()
    recipe.write_text(recipe.read_text().replace(str(folder), str(folder.with_name("gone"))))
    (copy / "metrics.json").unlink()
    for words in (["train", "--resume", copy], ["evaluate", copy]):
        assert_refused(here(*words), ["gone, the data of", "does not exist", "--data.root"])
    assert_refused(here("train", "--resume", copy, "--data.root", copy), ["class folders"])
    assert here("train", "--resume", copy, "--data.root", folder).returncode == 0
    assert json.loads((copy / "metrics.json").read_text())["test"] == json.loads(metrics)["test"]
    assert evaluated(here, copy)["test"] == own_test(run)


def test_a_relative_root_is_that_of_the_folder_where_the_run_began(
    run: Path, copy: Path, folder: Path, here: Here
) -> None:
    recipe = copy / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(folder), folder.name))
    assert evaluated(here, copy, cwd=copy)["test"] == own_test(copy)
    assert RunDirectory(copy).locate(OwnImages(Path("elsewhere"))) == OwnImages(folder)
    (copy / "metrics.json").unlink()
    assert here("train", "--resume", copy, cwd=copy).returncode == 0  # only its evaluation was left
    assert own_test(copy) == own_test(run)
    (copy / "classes.json").unlink()  # an older run
    assert_refused(here("evaluate", copy, cwd=copy), [folder.name, "does not exist"])
    assert evaluated(here, copy, cwd=folder.parent)["test"] == own_test(copy)


def test_images_that_were_moved_keep_their_split(
    run: Path, copy: Path, folder: Path, tmp_path: Path, here: Here
) -> None:
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    (copy / "classes.json").unlink()  # an older run, which knows no classes to find again
    old = evaluated(here, copy, "--data.root", moved)
    assert (old["classes"], "classes_trained_on" in old) == (12, False)
    result = here("evaluate", run, "--data.root", moved, "--json")
    assert json.loads(result.stdout)["test"] == own_test(run)
    assert "in another place" in result.stderr
    shutil.copy(folder / "class 00" / "0.png", moved / "class 00" / "another.png")
    assert evaluated(here, run, "--data.root", moved)["test"] == own_test(run)
    (moved / "class 00" / "0.png").unlink()  # without one of the run's, they are other data
    found = evaluated(here, run, "--data.root", moved)
    assert (found["classes"], found["classes_trained_on"]) == (12, 5)
    (moved / "class 00" / "broken.png").write_bytes(b"no image")
    assert_refused(here("evaluate", run, "--data.root", moved, "--strict"), ["broken.png"])
    assert evaluated(here, run, "--data.root", moved)["images"] == found["images"]


def test_splits_that_data_do_not_have(run: Path, folder: Path, here: Here) -> None:
    model = run / "model.safetensors"
    words = ["--data.root", folder, "--split", "validation", "--data.validation_fraction", "0"]
    assert_refused(here("evaluate", model, *words), ["no validation classes", "data.validation_fraction is 0"])
    words = ["--data", "Glyphs", "--split", "all"]
    assert_refused(here("evaluate", model, *words), ["--split all is for folders and tables", "Glyphs has train"])


def test_classes_trained_on_are_evaluated_apart(run: Path, folder: Path, tmp_path: Path, here: Here) -> None:
    classes = json.loads((run / "classes.json").read_text())
    for name in (*classes["train"][:2], *classes["test"][:3]):
        shutil.copytree(folder / name, tmp_path / "both" / name)
        shutil.copytree(folder / name, tmp_path / ("seen" if name in classes["train"] else "unseen") / name)
    found = evaluated(here, run, "--data.root", tmp_path / "both")
    assert (found["classes"], found["classes_trained_on"]) == (5, 2)
    for split, trained_on in (("seen", 2), ("unseen", 0)):
        alone = evaluated(here, run, "--data.root", tmp_path / split)
        assert alone["classes_trained_on"] == trained_on
        assert "parts" not in alone
        assert found["parts"][split][split] == alone["all"]
        assert found["parts"][split]["chance"] == alone["chance"]
    csv = here("evaluate", run, "--data.root", tmp_path / "both", "--format", "csv").stdout.splitlines()
    assert [line.split(",")[1] for line in csv if line.startswith("map@r")] == ["all", "unseen", "seen"]


def test_a_folder_of_save_model_is_a_model(run: Path, folder: Path, tmp_path: Path, here: Here) -> None:
    for name in ("model.safetensors", "model.json"):
        shutil.copy(run / name, tmp_path)
    found = evaluated(here, tmp_path, "--data.root", folder)
    assert found["all"] == evaluated(here, tmp_path / "model.safetensors", "--data.root", folder)["all"]
    assert "classes_trained_on" not in found


def test_the_recipe_or_a_flag_says_how_many_processes_load_images(
    copy: Path, folder: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = copy / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("workers: 0", "workers: 3"))
    asked: list[int] = []

    def embed(*arguments: Any, workers: int, **options: Any) -> torch.Tensor:
        asked.append(workers)
        return embed_images(*arguments, **options)

    monkeypatch.setattr(models, "embed_images", embed)
    evaluated(here, copy)
    evaluated(here, copy, "--batches.workers", "2")
    evaluated(here, copy, "--query", folder, "--gallery", folder)
    evaluated(here, copy / "model.safetensors", "--data.root", folder, "--batches.workers", "1")
    assert asked == [3, 2, 3, 1]


def test_ctrl_c_is_one_sentence_with_worker_processes(run: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(loader: Any, *_: Any, **__: Any) -> Any:
        yield next(iter(loader))
        raise KeyboardInterrupt

    monkeypatch.setattr("proxemic.runs.embed.tqdm", interrupted)
    flags = ["--batches.workers", "1", "--evaluation.batch_size", "2"]
    assert_refused(here("evaluate", run, *flags), ["Stopped at once"])


def test_what_is_seen_at_once_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "unfinished").mkdir()
    for name in ("file", "unfinished/recipe.yaml"):
        (tmp_path / name).touch()
    refused = {
        "evaluate nowhere": "does not exist",
        "evaluate .": "holds neither a run nor a model",
        "evaluate unfinished": "proxemic train --resume",
        "evaluate file --out x.txt": "x.txt",
        "verify .": "holds neither a run nor a model",
        "compare nothing/*": "No recipe is called",
    }
    code = f"import sys\nfrom proxemic.cli import main\nfor words in {list(refused)}:\n    main(words.split())\n"
    code += "assert 'torch' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    lines = [line for line in result.stderr.splitlines() if not FIRST_LINE.match(line)]
    for line, words in zip(lines, refused.values(), strict=True):
        assert words in line


@pytest.mark.parametrize("name", ["split.arrow", "classes.json", "recipe.yaml", "model.json", "model.safetensors"])
def test_a_damaged_file_of_a_run_is_named(name: str, copy: Path, here: Here) -> None:
    for content in (b"", b"{\xff", b"[1, 2]"):
        (copy / name).write_bytes(content)
        assert_refused(here("evaluate", copy), [name])


def test_a_table_of_open_metric_learning(run: Path, folder: Path, tmp_path: Path, here: Here) -> None:
    lines = ["label,path,split,is_query,is_gallery,category,sequence,x_1,x_2,y_1,y_2,category_int"]
    for number, place in enumerate(sorted(folder.glob("*/*.png"))):
        label, image = place.parent.name, int(place.stem)
        if label < "class 04":
            lines.append(f"{label},{place},train,,,,,,,,,0")
        else:
            box = "4,30,2.5,32" if number % 3 else ",,,"
            asks, category = image < 3, "odd" if int(label[-1]) % 2 else "even"
            lines.append(f"{label},{place},validation,{asks},{image > 0},{category},{label} {image // 2},{box},1")
    table = tmp_path / "oml.csv"
    table.write_text("\n".join(lines) + "\n")
    saved = tmp_path / "e.parquet"
    words = [run / "model.safetensors", "--data.root", table, "--by", "category", "--evaluation.map", "true"]
    result = here("evaluate", *words, "--json", "--save-embeddings", saved)
    assert result.returncode == 0, result.stderr
    assert result.stderr.splitlines() == [
        f"Evaluating {run / 'model.safetensors'}",
        f"{table} gives splits: its validation split, as there is no test, 48 of 72 images, is taken.",
        f"{table} has columns that are not used: category_int.",
    ]
    found = json.loads(result.stdout)
    assert (found["classes"], found["images"], found["queries"]) == (8, 48, 24)
    images = ImageSet.of(read_embeddings(saved))
    assert images.rows.names[1].endswith("1.png (4, 2, 30, 32)")
    asks, answers, numbers, embeddings = images.is_query, images.is_gallery, images.sequences, images.rows.embeddings
    assert asks is not None
    assert answers is not None
    assert numbers is not None
    assert embeddings is not None
    points = torch.nn.functional.normalize(embeddings.double())
    cosines = (points @ points.T).masked_fill((numbers[:, None] == numbers) | ~answers, -torch.inf)[asks]
    hits = (images.labels[cosines.argmax(1)] == images.labels[asks]).double()
    assert found["test"]["recall@1"] == pytest.approx(float(hits.mean()))
    odd = torch.tensor([images.class_names[label][-1] in "13579" for label in images.labels[asks].tolist()])
    assert found["categories"]["odd"]["test"]["recall@1"] == pytest.approx(float(hits[odd].mean()))
    assert {name: (part["classes"], part["queries"]) for name, part in found["categories"].items()} == {
        "even": (4, 12), "odd": (4, 12),
    }  # fmt: skip
    # Each class has five of the 40 gallery images; queries 0 and 1 ignore image 1, and query 2 ignores 2 and 3.
    assert found["categories"]["odd"]["chance"]["r_precision"] == pytest.approx((2 * 4 / 39 + 3 / 38) / 3)
    again = evaluated(here, saved, "--by", "category", "--evaluation.map", "true")
    assert again["categories"]["odd"]["all"] == found["categories"]["odd"]["test"]
    text = here("evaluate", saved, saved, "--by", "category").stdout
    assert "By category; the queries of each search all images" in text
    assert "A category of fewer than 20 classes has no honest interval." in text
    csv = here("evaluate", saved, "--by", "category", "--format", "csv").stdout.splitlines()
    assert csv[0].startswith("category,metric,")
    assert {line.partition(",")[0] for line in csv[1:]} == {"", "even", "odd"}
    assert evaluated(here, *words[:3], "--split", "train")["images"] == 24
    assert_refused(here("evaluate", run, "--by", "category"), ["--by category needs categories"])
