"""Runs of recipes, in worker processes or in this one."""

from dataclasses import replace
from pathlib import Path

import pytest

import warm
from images import write_folder, write_recipe
from proxemic.errors import UserError
from proxemic.protocols.runs.jobs import Job, run_job
from proxemic.protocols.runs.overrides import as_flags
from proxemic.recipes.reader import read_recipe

OVERRIDES = {"training.epochs": 1, "evaluation.untrained": False, "training.loggers": []}


FLAGS = as_flags(OVERRIDES)


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two, on one folder of images."""
    folder = tmp_path_factory.mktemp("compare")
    first = write_recipe(folder / "first.yaml", write_folder(folder / "images"))
    text = first.read_text()
    assert "AllPairMultiProxyAnchorLoss" in text
    (folder / "second.yaml").write_text(text.replace("AllPairMultiProxyAnchorLoss", "MultiProxyAnchorLoss"))
    return [str(first), str(folder / "second.yaml")]


EARLY = """
import os, signal, torch
from proxemic.protocols.runs import jobs

os.setpgid = lambda *_: None  # this process leads a group already
torch.set_num_threads = lambda count: signal.raise_signal(signal.SIGINT)  # as soon as there is torch
jobs._begin_worker()
"""


def test_a_worker_that_begins_leaves_ctrl_c_to_its_parent() -> None:
    done = warm.run("-c", EARLY)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_has_the_threads_that_its_recipe_names(
    recipes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    monkeypatch.setattr("proxemic.training.train", lambda recipe, *_, **__: found.append(recipe.training.threads) or {})
    for flags in ((), ("--training.threads", "2")):
        run_job(Job(Path(recipes[0]), flags, tmp_path / "run"))
    assert found == [1, 2]
    with pytest.raises(ValueError, match=r"training\.threads is 0, but must be at least 1"):
        run_job(Job(Path(recipes[0]), ("--training.threads", "0"), tmp_path / "run"))


def test_a_run_that_an_earlier_version_began_goes_on(
    recipes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed = []
    monkeypatch.setattr("proxemic.training.train", lambda *_, resume, **__: resumed.append(resume) or {})
    job = Job(Path(recipes[0]), FLAGS, tmp_path / "run")
    text = read_recipe(job.recipe, job.flags).yaml
    assert "  threads: null\n" in text
    job.out.mkdir()
    (job.out / "recipe.yaml").write_text(text.replace("  threads: null\n", ""))
    run_job(job)
    assert resumed == [True]
    with pytest.raises(UserError, match="begun with another recipe"):
        run_job(replace(job, flags=(*FLAGS, "--training.threads", "2")))
