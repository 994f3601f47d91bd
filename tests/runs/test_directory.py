"""Information about a run in its directory."""

import json
from pathlib import Path
from typing import NoReturn

import pytest

from images import write_folder, write_recipe
from proxemic.errors import UserError, UserNote
from proxemic.runs.embed import load_embedder
from proxemic.training import RunDirectory, train


class Killed(Exception):
    """Stands for the end of the process after an epoch."""


def _end(_: object) -> NoReturn:
    raise Killed


def test_where_an_unfinished_run_has_stopped(tmp_path: Path) -> None:
    recipe, run = (
        write_recipe(tmp_path / "tiny.yaml", write_folder(tmp_path / "images")),
        RunDirectory(tmp_path / "run"),
    )
    assert run.stopped is None
    with pytest.raises(Killed):
        train(recipe, run.path, overrides={"training.epochs": 3}, on_epoch=_end)
    assert run.stopped == "stopped in epoch 2 of 3"
    for path in (run.path, run.model):
        with pytest.warns(UserNote, match=rf"{path} stopped in epoch 2 of 3: .* proxemic train --resume {run.path}\."):
            load_embedder(path)
    with pytest.raises(Killed):
        train(out=run.path, resume=True, on_epoch=_end)
    assert run.stopped == "stopped in epoch 3 of 3"
    train(out=run.path, resume=True)
    assert run.stopped is None
    load_embedder(run.path)  # without a warning, which is an error here
    run.metrics.unlink()
    assert run.stopped == "stopped after epoch 3 of 3, before it was evaluated"
    run.environment.write_text(json.dumps(json.loads(run.environment.read_text()) | {"epochs": "\x1b[31m"}))
    with pytest.raises(UserError, match=r"environment\.json is damaged \(epochs is "):
        _ = run.stopped
