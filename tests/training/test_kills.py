"""A run that is killed at any moment and resumed ends with the same bytes."""

import signal
from pathlib import Path

import pytest

import warm
from command_line import TERMINAL, Here
from proxemic.training import RunDirectory

# All that keeps something of its own: averages, proxies that move between epochs, measures, phases, interpolations.
FLAGS = [
    *("--loss", "SoftTripleLoss", "--loss.proxies_per_class", "3", "--training.epochs", "6"),
    *("--training.until_plateau.patience", "1", "--training.until_plateau.min_improvement", "1"),  # each of two epochs
    *("--training.start_proxies", "k_means", "--training.spread_after", "1"),
    *("--training.anneal_gamma.begin", "1.6", "--training.anneal_gamma.epochs", "2"),
    *("--training.average.decay", "0.9", "--training.interpolate", "[0.5, 0.9]", "--evaluation.start", "true"),
    *("--second_phase.epochs", "3", "--second_phase.optim.lr", "0.0005", "--training.checkpoint_minutes", "0"),
    *("--training.callbacks", "[proxemic.training.DistanceToProxy, proxemic.training.Snapshots]"),
]
# The n-th call of a function, and whether it is made before the kill.
MOMENTS = [
    ("callbacks.start.save_model", 1, False),
    ("callbacks.start.evaluate_starts", 1, False),  # the network is kept, but not evaluated
    ("callbacks.start.write_chosen", 1, True),
    ("callbacks.saving.SaveRun._save", 1, True),
    ("callbacks.saving.SaveRun._save", 3, False),  # the first epoch is evaluated, but not saved
    ("callbacks.saving.SaveRun._save", 3, True),  # and nothing else of it written
    ("callbacks.saving.SaveRun._save", 5, True),  # in the second epoch, in which proxies are spread
    ("callbacks.saving.SaveRun._write_history", 3, False),  # in the second phase
    ("callbacks.saving.SaveRun._save", 12, True),  # the last one
    ("results.interpolate", 1, True),
    ("results.write_json", 2, False),
]
KILLED = """
import os, sys
from importlib import import_module
from proxemic.cli import main

(path, name), number, after = sys.argv[1].rsplit(".", 1), int(sys.argv[2]), sys.argv[3] == "True"
try:
    owner = import_module(f"proxemic.training.{path}")
except ModuleNotFoundError:
    module, _, kind = path.rpartition(".")
    owner = getattr(import_module(f"proxemic.training.{module}"), kind)
function, calls = getattr(owner, name), 0

def die(*arguments, **keywords):
    global calls
    calls += 1
    if calls == number and not after:
        os.kill(os.getpid(), 9)
    result = function(*arguments, **keywords)
    if calls == number:
        os.kill(os.getpid(), 9)
    return result

setattr(owner, name, die)
sys.exit(main(sys.argv[4:]))
"""


@pytest.fixture(scope="module")
def whole(recipe: Path) -> Path:
    run = recipe.parent / "whole"
    result = warm.run("-m", "proxemic", "train", "--recipe", recipe, "--out", run, *FLAGS, environment=TERMINAL)
    assert result.returncode == 0, result.stderr
    return run


def contents(run: Path) -> dict[str, object]:
    """All files that do not depend on the clock, by name."""
    found: dict[str, object] = {}
    for path in sorted(run.rglob("*")):
        if path.name == "history.csv":
            found[path.name] = [{**row, "seconds": 0.0} for row in RunDirectory(run).read_history()]
        elif path.suffix in {".safetensors", ".json", ".tmp"} and path.name not in {"environment.json", "seconds.json"}:
            found[path.relative_to(run).as_posix()] = path.read_bytes()
    return found


@pytest.mark.parametrize(("name", "number", "after"), MOMENTS)
def test_kill_9_and_resume(
    name: str, number: int, after: bool, recipe: Path, whole: Path, tmp_path: Path, here: Here
) -> None:
    run = tmp_path / "killed"
    words = ["train", "--recipe", recipe, "--out", run, *FLAGS]
    killed = warm.run("-c", KILLED, name, str(number), str(after), *words, environment=TERMINAL)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (run / "metrics.json").exists()
    result = here("train", "--resume", run)
    assert result.returncode == 0, result.stderr
    ours, theirs = contents(run), contents(whole)
    assert ours.keys() == theirs.keys()
    assert [file for file in theirs if ours[file] != theirs[file]] == []
