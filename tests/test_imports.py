"""Imports change no global state, and import no more than they need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from images import write_folder
from shelves import write_model

# Import other libraries first: their changes of global state do not count.
CODE = """
import importlib.util, os, pkgutil, random, signal, sys, threading, warnings

import numpy, torch

for name in ("kornia", "lightning.pytorch", "matplotlib.pyplot", "optuna", "pyarrow", "pymilvus",
             "rich.console", "scipy.stats", "sklearn.cluster", "tensorboard", "timm", "torch._dynamo",
             "torch._inductor.config", "torchvision.transforms.v2", "pytorch_metric_learning.losses",
             "pytorch_metric_learning.miners"):
    importlib.import_module(name)


def state():
    places = (sys.modules["torch.optim.optimizer"], torch.nn.modules.module)
    found = {f"{place.__name__}.{name}": len(hooks) for place in places for name, hooks in vars(place).items()
             if name.startswith("_global") and hasattr(hooks, "__len__")}
    assert len(found) >= 8, found
    return found | {
        "torch's generator": torch.get_rng_state().tolist(),
        "NumPy's generator": str(numpy.random.get_state(legacy=False)),
        "Python's generator": random.getstate(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "precision of products": torch.get_float32_matmul_precision(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads of torch": torch.get_num_threads(),
        "threads": threading.active_count(),
        "start method": torch.multiprocessing.get_start_method(allow_none=True),
        "warnings": [*warnings.filters],
        "signals": {each: signal.getsignal(each) for each in signal.valid_signals()},
        "environment": dict(os.environ),
        "excepthook": sys.excepthook,
        "path": [*sys.path],
    }


import proxemic

before, imported = state(), 0
for module in pkgutil.walk_packages(proxemic.__path__, "proxemic."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
        imported += 1
        after = state()
        for name in before:
            assert after[name] == before[name], (module.name, name, before[name], after[name])
print(imported)
"""


@pytest.mark.slow
def test_importing_every_module_changes_no_global_state() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 150


LIGHT = """
import sys

def imports_none(*names):
    assert not {*names} & {*sys.modules}, {*names} & {*sys.modules}

import proxemic.retrieval
imports_none("faiss", "psycopg", "pymilvus", "ray", "transformers")
import proxemic.recipes.reader, proxemic.studies.evaluation
imports_none("matplotlib", "scipy", "sklearn", "timm", "torch._dynamo")
from proxemic.analyze import characteristics, forces, gap, gradients, landscape, theorems
imports_none("torchvision")
import proxemic.training.loop, proxemic.training.results
imports_none("lightning", "torchmetrics")
"""


def test_galleries_recipes_and_analyses_import_no_more_than_they_need() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


SEARCH = """
import os, sys

listed = []
sys.addaudithook(lambda event, args: listed.append(os.fspath(args[0])) if event == "os.scandir" else None)
from proxemic.cli import main

main(sys.argv[1:])
photos = sys.argv[2]
if not os.path.exists(f"{photos}/gallery.sqlite"):
    assert sorted(folder for folder in listed if folder.startswith(photos)) == [
        photos, *(f"{photos}/class 0{number}" for number in range(6))
    ]
unwanted = {"lightning", "matplotlib", "onnx", "pandas", "rich", "scipy", "sklearn", "timm", "torch", "torchvision"}
unwanted |= {f"proxemic.{room}" for room in ("analysis", "losses", "metrics", "recipes", "studies", "training")}
assert not unwanted & {*sys.modules}, unwanted & {*sys.modules}
"""


@pytest.mark.parametrize("source", ["photos", "shop"])
def test_a_second_search_lists_the_folder_once_and_imports_nothing_heavy(tmp_path: Path, source: str) -> None:
    """For a picture that is known and one that is not, in a plain folder and in a gallery."""
    pytest.importorskip("onnxruntime")
    photos, model = write_folder(tmp_path / "photos", classes=6, images=6), write_model(tmp_path / "model")
    new = write_folder(tmp_path / "new", classes=1, images=1, noise=20) / "class 00" / "0.png"
    environment = os.environ | {"PROXEMIC_CACHE": str(tmp_path / "cache"), "PROXEMIC_CACHE_GB": "1"}

    def run(code: str, *words: str | Path) -> str:
        command = [sys.executable, "-c", code, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stderr

    plain = "from proxemic.cli import main; import sys; main(sys.argv[1:])"
    known = photos / "class 00" / "0.png"
    if source == "shop":
        run(plain, "gallery", "create", tmp_path / "shop", photos, "--model", model)
    run(plain, "search", tmp_path / source, known, "--model", model)
    for query in (known, new):
        said = run(SEARCH, "search", tmp_path / source, query, "--model", model)
        assert ("ONNX Runtime" in said) == (query == new)


TRAINING = """
import sys

from proxemic.cli import main
from proxemic.training import Callback

HEAVY = {"lightning", "pandas", "scipy", "sklearn", "transformers"}


def imports_none(names):
    assert not names & {*sys.modules}, names & {*sys.modules}


class Watch(Callback):
    def on_step_end(self, training, loss):
        imports_none(HEAVY | {"matplotlib"})


if __name__ == "__main__":
    main(sys.argv[1:])
    # The curves of a run are drawn by matplotlib.
    imports_none(HEAVY if sys.argv[1] == "train" else HEAVY | {"matplotlib"})
    print("Imported no more.")
"""


@pytest.mark.slow
def test_training_evaluation_and_report_import_no_more_than_they_need(tmp_path: Path) -> None:
    (tmp_path / "watching.py").write_text(TRAINING)
    classes = [f"--data.{part}_classes=24" for part in ("train", "test")]
    callbacks = "--training.callbacks=[{class_path: watching.Watch}]"
    for asked in (
        ["train", "--recipe", "glyphs-small", "--out", "run", "--training.epochs", "1", callbacks, *classes],
        ["evaluate", "run"],
        ["report", "run"],
    ):
        done = subprocess.run([sys.executable, "watching.py", *asked], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith("Imported no more.\n"), done.stdout + done.stderr
        assert "was not written" not in done.stdout
