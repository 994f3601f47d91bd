"""One process of a search in two stages, whose trainings cost nothing."""

import csv
import json
from pathlib import Path

import pytest
import yaml
from PIL import Image

from images import write_folder, write_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.studies.tuning.directory import TuningDirectory, TuningOptions
from proxemic.studies.tuning.stages import StageSearch
from proxemic.studies.tuning.worker import TuningWorker

SPACE = [{"search": {"optim.lr": {"factor": 10, "log": True}}}, {"search": {"optim.loss_lr": {"low": 0.1, "high": 1}}}]


@pytest.mark.parametrize("last", [0.25, 0.75])
def test_an_earlier_stage_that_was_better_is_noted(
    last: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", write_folder(tmp_path / "images", classes=1, images=1))
    directory = TuningDirectory(tmp_path / "out")
    options = TuningOptions(str(recipe), [], SPACE, "mine.yaml", 3, "tpe", "none", None, "out", 0)
    directory.begin(options, read_recipe(recipe).yaml)
    monkeypatch.setattr(StageSearch, "objective", lambda stage, _: {1: 0.5, 2: last}[stage.number])
    lines: list[str] = []
    worker = TuningWorker(directory.path, None, lines.append)
    worker.make_trials()
    best, finished = worker.finish()
    assert [len(stage) for stage in finished] == [2, 1]
    assert (best.value, best.parameters["optim.loss_lr"]) == (last, finished[1][0].parameters["optim.loss_lr"])
    assert lines[2].startswith(
        f"trial 2-0  map@r {100 * last:.2f}  (best {100 * last:.2f}, trial 2-0)  1 of 1, 0 s left"
    )
    note = ["NOTE: stage 1 reached map@r 50.00, more than the last stage's 25.00."] if last < 0.5 else []
    assert lines[3:] == note
    content = yaml.safe_load(directory.best_recipe.read_text())
    assert content["optim"]["lr"] == pytest.approx(worker.best[0].parameters["optim.lr"])
    assert json.loads((directory.path / "best.json").read_text())["trial"] == "2-0"
    with (directory.path / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["stage"], row["trial"], row["optim.loss_lr"] != "") for row in rows] == [
        ("1", "0", False),
        ("1", "1", False),
        ("2", "0", True),
    ]
    for plot in ("importance.png", "slices.png"):  # also of a stage whose only trial tells of no importance
        with Image.open(directory.path / plot) as picture:
            picture.verify()
