"""A run that is killed at any moment and resumed ends with the same bytes.

`kill -9` leaves the files as they are at that moment. So one run copies its directory at many moments, and each copy is
resumed. `test_loop.py` kills a process.
"""

from pathlib import Path

import pytest

import warm
from command_line import TERMINAL, Here
from proxemic.training import RunDirectory

# All that keeps something of its own: averages, proxies that move between epochs, measures, phases.
FLAGS = [
    *("--loss", "SoftTripleLoss", "--loss.proxies_per_class", "3", "--training.epochs", "6"),
    *("--training.until_plateau.patience", "1", "--training.until_plateau.min_improvement", "1"),  # each of two epochs
    *("--training.start_proxies", "k_means", "--training.spread_after", "1"),
    *("--training.anneal_gamma.begin", "1.6", "--training.anneal_gamma.epochs", "2"),
    *("--training.average.decay", "0.9", "--evaluation.start", "true"),
    *("--second_phase.epochs", "3", "--second_phase.optim.lr", "0.0005", "--training.checkpoint_minutes", "0"),
    *("--training.callbacks", "[proxemic.training.DistanceToProxy, proxemic.training.Snapshots]"),
]
# The n-th call of a function, and whether it is made before the kill.
MOMENTS = [
    ("loop.save_model", 1, False),
    ("loop.evaluate_starts", 1, False),  # the network is kept, but not evaluated
    ("loop.write_chosen", 1, True),
    ("loop.Training.save", 1, True),
    ("loop.Training.save", 3, False),  # the first epoch is evaluated, but not saved
    ("loop.Training.save", 3, True),  # and nothing else of it written
    ("loop.Training.save", 5, True),  # in the second epoch, in which proxies are spread
    ("loop.Training.save", 6, True),  # the first phase has just ended
    ("loop.Training.write_history", 3, False),  # in the second phase
    ("loop.Training.save", 12, True),  # the last one
    ("results.write_json", 2, False),
]
COPIED = f"""
import shutil, sys
from collections import Counter
from importlib import import_module
from proxemic.cli import main

moments, run, calls = {MOMENTS}, sys.argv[sys.argv.index("--out") + 1], Counter()

def watch(path, name):
    module, _, kind = path.partition(".")
    owner = import_module(f"proxemic.training.{{module}}")
    owner = getattr(owner, kind) if kind else owner
    function = getattr(owner, name)

    def copying(*arguments, **keywords):
        calls[path, name] += 1
        for number, moment in enumerate(moments):
            if moment == (f"{{path}}.{{name}}", calls[path, name], False):
                shutil.copytree(run, f"{{run}}-{{number}}")
        result = function(*arguments, **keywords)
        for number, moment in enumerate(moments):
            if moment == (f"{{path}}.{{name}}", calls[path, name], True):
                shutil.copytree(run, f"{{run}}-{{number}}")
        return result

    setattr(owner, name, copying)

for moment in dict.fromkeys(name for name, *_ in moments):
    watch(*moment.rsplit(".", 1))
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def whole(recipe: Path) -> Path:
    """The uninterrupted run, with a numbered copy for each moment beside it."""
    run = recipe.parent / "whole"
    result = warm.run("-c", COPIED, "train", "--recipe", recipe, "--out", run, *FLAGS, environment=TERMINAL)
    assert result.returncode == 0, result.stderr
    return run


def contents(run: Path) -> dict[str, object]:
    """Return the content of all files that do not depend on the clock, by name."""
    found: dict[str, object] = {}
    for path in sorted(run.rglob("*")):
        if path.name == "history.csv":
            found[path.name] = [{**row, "seconds": 0.0} for row in RunDirectory(run).read_history()]
        elif path.suffix in {".safetensors", ".json", ".tmp"} and path.name not in {"environment.json", "seconds.json"}:
            found[path.relative_to(run).as_posix()] = path.read_bytes()
    return found


@pytest.mark.parametrize("number", range(len(MOMENTS)), ids=[f"{name}-{nth}-{after}" for name, nth, after in MOMENTS])
def test_a_run_killed_at_any_moment_ends_with_the_same_bytes(number: int, whole: Path, here: Here) -> None:
    run = whole.with_name(f"whole-{number}")
    assert not (run / "metrics.json").exists()
    result = here("train", "--resume", run)
    assert result.returncode == 0, result.stderr
    ours, theirs = contents(run), contents(whole)
    assert ours.keys() == theirs.keys()
    assert [file for file in theirs if ours[file] != theirs[file]] == []
