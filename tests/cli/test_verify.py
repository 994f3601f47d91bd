"""``proxemic verify`` on a run that was trained on a record file: its figures, by definition; faults in a sentence."""

import doctest
import json
import os
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from command_line import Here, assert_refused, warm_proxemic
from data.record_writer import draw_people, encode, write_faces, write_pack
from proxemic.data import Preprocessing
from proxemic.data.faces import read_face_pack
from proxemic.errors import UserError
from proxemic.models import load_model
from proxemic.published import published_figures
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.runs.embed import embed_images
from proxemic.studies.jobs import Job, run_job
from verification import by_definition

RECIPE = """\
data: {{class_path: proxemic.data.RecordFaces, init_args: {{root: {root}}}}}
images: {{size: 32, resize: null, mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}}
augment: {{horizontal_flip: 0.5}}
batches: {{size: 32}}
model: {{backbone: convnet, embedding_size: 16, width: 8, normalize: false}}
loss:
  class_path: proxemic.losses.WarpedSoftmaxLoss
  init_args: {{temperature: 3.15, alpha: 15.75, k1: 0.3, k2: 1.075}}
optim: {{optimizer: torch.optim.AdamW, lr: 0.002, loss_lr: 0.02}}
training: {{epochs: 2, accelerator: cpu}}
evaluation: {{select_on: last, distance: euclidean}}
published: [{{paper: realigned-softmax-warping, table: V, method: Warped-Softmax}}]
"""


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training set in records, and packs of people that are not in it."""
    root = write_faces(tmp_path_factory.mktemp("verify") / "faces", draw_people(24, 12))
    strangers = draw_people(20, 6, seed=1)
    write_pack(root / "lfw.bin", strangers, pairs=200)
    for seed, name in enumerate(("cfp_fp", "agedb_30", "calfw", "cplfw"), start=1):
        write_pack(root / f"{name}.bin", strangers, pairs=111, seed=seed)
    return root


@pytest.fixture(scope="module")
def run(faces: Path) -> Path:
    recipe = faces.parent / "faces.yaml"
    recipe.write_text(RECIPE.format(root=faces))
    result = warm_proxemic("train", "--recipe", recipe, "--out", faces.parent / "run")
    assert result.returncode == 0, result.stderr
    assert (
        "There are no test classes: evaluate the run on pairs of faces with proxemic verify"
        in result.stdout + result.stderr
    )
    return faces.parent / "run"


def oracle(run: Path, pack: Path, distance: str, flip: bool) -> tuple[float, float, list[float]]:
    """Mean and standard deviation of the folds' accuracies, and these, from the definition."""
    model, preprocessing = load_model(run)
    transform = Preprocessing(**preprocessing).evaluation()
    pairs = read_face_pack(pack)
    pictures = [pairs.images().pictures[place] for place in range(len(pairs.pixels))]
    with torch.no_grad():
        found = model(torch.stack([transform(picture) for picture in pictures]))
        if flip:
            mirrored = [picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for picture in pictures]
            found = found + model(torch.stack([transform(item) for item in mirrored]))
    blocks = np.array_split(np.arange(len(pairs)), 10)
    folds = np.repeat(np.arange(10), [len(block) for block in blocks])
    first, second, same = pairs.first.numpy(), pairs.second.numpy(), pairs.same.numpy()
    accuracies = by_definition(found.numpy(), first, second, same, folds, distance)
    return float(np.mean(accuracies)), float(np.std(accuracies)), accuracies


@pytest.mark.parametrize(
    ("words", "distance", "flip"),
    [
        ([], "euclidean", True),
        (["--no-flip"], "euclidean", False),
        (["--distance", "cosine", "--workers", "2"], "cosine", True),
    ],
)
def test_the_figures_are_those_of_the_definition(
    run: Path,
    faces: Path,
    here: Here,
    words: list[str],
    distance: str,
    flip: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def embed(*arguments: Any, workers: int, **options: Any) -> torch.Tensor:
        asked.append(workers)
        return embed_images(*arguments, **options)

    monkeypatch.setattr("proxemic.runs.embed.embed_images", embed)
    result = here("verify", run, "--sets", "lfw,cfp_fp", "--format", "json", *words)
    assert result.returncode == 0, result.stderr
    assert asked == [2 if "--workers" in words else 0] * 2
    found = json.loads(result.stdout)
    assert json.loads((run / "verification.json").read_text()) == found
    assert (found["distance"], found["flip"], found["data"]) == (distance, flip, str(faces))
    for name in ("lfw", "cfp_fp"):
        mean, std, accuracies = oracle(run, faces / f"{name}.bin", distance, flip)
        assert found["sets"][name]["accuracies"] == pytest.approx(accuracies)
        assert found["sets"][name]["accuracy"] == pytest.approx(mean)
        assert found["sets"][name]["std"] == pytest.approx(std)
    assert found["sets"]["lfw"]["accuracy"] > 0.65, "200 pairs by chance: 0.5 ± 0.035"
    assert found["sets"]["cfp_fp"]["pairs"] == 111


def test_beside_the_papers_table(run: Path, here: Here) -> None:
    result = here("verify", run, "--sets", "lfw", "--against", "paper")
    assert result.returncode == 0, result.stderr
    accuracy = json.loads((run / "verification.json").read_text())["sets"]["lfw"]["accuracy"]
    place = "realigned-softmax-warping, table V, Warped-Softmax"
    assert f"| lfw accuracy | {100 * accuracy:.2f} | 99.85 | {place} | [1] |" in result.stdout
    assert "backbone: ours convnet, theirs ResNet-100" in result.stdout


def test_a_model_alone(run: Path, faces: Path, here: Here, tmp_path: Path) -> None:
    for name in ("model.safetensors", "model.json"):
        shutil.copy(run / name, tmp_path)
    result = here("verify", tmp_path / "model.safetensors", "--data", faces, "--sets", "lfw", "--format", "markdown")
    assert result.returncode == 0, result.stderr
    assert f"| LFW | 200 | {100 * oracle(run, faces / 'lfw.bin', 'cosine', True)[0]:.2f} ± " in result.stdout
    assert "mean" not in result.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "model.json"}
    assert_refused(here("verify", tmp_path / "model.safetensors", "--sets", "lfw"), ["--data is missing"])
    result = here("verify", tmp_path / "model.safetensors", "--against", "paper")
    assert_refused(result, ["--against needs the recipe of a run"])


def write_own_pairs(folder: Path) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Write images and pairs.csv; return the images' names, and the two places and the truth of each pair."""
    names = [f"{number:02d}.png" for number in range(24)]
    faces = [face for person in draw_people(8, 3, seed=3) for face in person]
    for name, face in zip(names, faces, strict=True):
        (folder / name).write_bytes(face)
    first, second = np.triu_indices(24, 1)
    same = first // 3 == second // 3
    kept = same | ((first + second) % 5 == 0)
    first, second, same = first[kept], second[kept], same[kept]
    lines = [f"{names[a]},{names[b]},{item}" for a, b, item in zip(first, second, same.tolist(), strict=True)]
    (folder / "pairs.csv").write_text("\n".join(["first,second,same", *lines]))
    return names, first, second, same


BLACK = encode(Image.new("RGB", (32, 32)))


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("marker",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps(([BLACK, Evil()], [True])), ["lfw.bin is refused", "mkdir"]),
        (pickle.dumps(([BLACK] * 40, [True] * 20)), ["lfw cannot be evaluated", "20 of 20 pairs", "both kinds"]),
    ],
)
def test_a_pack_that_cannot_be_evaluated(
    run: Path, here: Here, tmp_path: Path, content: bytes, words: list[str]
) -> None:
    before = (run / "verification.json").exists()
    (tmp_path / "lfw.bin").write_bytes(content)
    result = here("verify", run, "--data", tmp_path, "--sets", "lfw")
    notes = [line for line in result.stderr.splitlines() if "was published with" in line]
    result.stderr = "\n".join(line for line in result.stderr.splitlines() if line not in notes)
    assert_refused(result, words)
    assert (run / "verification.json").exists() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sets", "lfw", "--pairs", "p.csv"], ["--sets names published sets, and --pairs is a table of your own"]),
        (["--sets", "lfw,ijbc"], ["'ijbc' is not a known set", "agedb_30"]),
        (["--against", "paper", "--format", "json"], ["--against prints for people", "--format is json"]),
        (["--sets", "calfw", "--data", "{run}"], ["calfw is not in", "no calfw.bin"]),
        (["--out", "{run}/metrics.json"], ["metrics.json is read by this command"]),
    ],
)
def test_wrong_words(run: Path, here: Here, words: list[str], said: list[str]) -> None:
    assert_refused(here("verify", run, *(word.format(run=run) for word in words)), said)


def with_preprocessing(run: Path, folder: Path, **values: object) -> None:
    """Copy the model of a run, with another preprocessing."""
    for name in ("model.safetensors", "model.json"):
        shutil.copy(run / name, folder)
    description = json.loads((folder / "model.json").read_text())
    description["preprocessing"] |= values
    (folder / "model.json").write_text(json.dumps(description))


def test_a_preprocessing_that_does_not_fit(run: Path, faces: Path, here: Here, tmp_path: Path) -> None:
    with_preprocessing(run, tmp_path, channels=1, mean=[0.5], std=[0.5])
    result = here("verify", tmp_path / "model.safetensors", "--data", faces, "--sets", "lfw")
    assert result.returncode == 2
    assert re.search("1 channels .* 3", result.stderr.splitlines()[-1])


def test_what_needs_test_classes_says_so(run: Path, here: Here, tmp_path: Path) -> None:
    told = {"epoch": 2, "kept": "epoch", "selected_on": "last", "seed": 0, "split": "nothing held out"}
    assert json.loads((run / "metrics.json").read_text()) == told | {"train_classes": 24, "train_images": 288}
    assert not (run / "gallery.png").exists()
    recipe = run / "recipe.yaml"
    assert_refused(here("evaluate", run), ["have no test classes", "proxemic verify RUN"])
    assert_refused(here("analyze", "map", run, "--out", tmp_path / "map"), ["have no test classes", "verify RUN"])
    words = ("--recipe", recipe, "--out", tmp_path / "new", "--evaluation.select_on", "test")
    assert_refused(here("train", *words), ["no test classes to select the epoch on", "select_on last"])
    # Commands that compare runs start each run like this, in its own process.
    with pytest.raises(UserError, match=r"have no test classes .* proxemic verify RUN"):
        run_job(Job(recipe, (), tmp_path / "job"))
    assert list(tmp_path.iterdir()) == []


def test_the_epoch_may_be_chosen_on_identities(faces: Path, here: Here, tmp_path: Path) -> None:
    recipe = yaml.safe_load(RECIPE.format(root=faces))
    recipe["data"]["init_args"]["validation_fraction"] = 0.25
    recipe["evaluation"] |= {"select_on": "validation", "start": False}
    recipe["training"]["epochs"] = 1
    (tmp_path / "faces.yaml").write_text(yaml.safe_dump(recipe))
    result = warm_proxemic("train", "--recipe", tmp_path / "faces.yaml", "--out", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert "Validation, which selected epoch 1" in result.stdout
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert "test" not in found
    assert f"{100 * found['validation']['map@r']:.2f}" in result.stdout


def test_records_that_cannot_be_read(faces: Path, here: Here, tmp_path: Path) -> None:
    (tmp_path / "faces.yaml").write_text(RECIPE.format(root=tmp_path))
    words = ("train", "--recipe", tmp_path / "faces.yaml", "--out", tmp_path / "run")
    shutil.copy(faces / "train.idx", tmp_path)
    (tmp_path / "train.rec").write_bytes((faces / "train.rec").read_bytes()[:-4])
    assert_refused(here(*words), ["train.rec is damaged"])
    assert not (tmp_path / "run").exists()


def test_the_page_of_faces(run: Path, faces: Path, here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "faces.md"
    assert doctest.testfile(str(page), module_relative=False) == (0, 2)
    text = page.read_text()
    for folder, target in (("runs/faces", run), ("data/faces_emore", faces)):
        (tmp_path / folder).parent.mkdir()
        (tmp_path / folder).symlink_to(target)
    (tmp_path / "photos").mkdir()
    write_own_pairs(tmp_path / "photos")
    (tmp_path / "photos" / "pairs.csv").rename(tmp_path / "pairs.csv")
    commands = re.findall(r"^proxemic (verify .*?)(?:  +#.*)?$", text, re.MULTILINE)
    assert len(commands) == 4
    for words in commands:
        result = here(*words.split(), cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    assert (tmp_path / "lfw.csv").exists()
    for recipe in re.findall(r"--recipe (\S+)", text):
        assert read_recipe(find_recipe(recipe)).recipe.data.has_test is False
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if ">>>" not in block)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["found"].accuracy.mean == pytest.approx(oracle(run, faces / "lfw.bin", "euclidean", True)[0])
    for figure in published_figures(dataset="lfw"):
        assert figure.metric == "accuracy"
