"""The page on extending: its modules by a recipe and from Python, and a run of them that is interrupted and resumed."""

import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from safetensors.torch import load_file

from command_line import Here, assert_refused
from images import TINY_RECIPE, write_folder
from proxemic.recipes.flags import merge
from proxemic.training import RunDirectory
from stopping import interrupted_at

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text()
BLOCKS = re.findall(r"```(python|yaml)\n(.*?)```", PAGE, re.DOTALL)
MODULES = {code.split("\n", 1)[0][2:]: code for language, code in BLOCKS if code.startswith("# mine/")}
USES = [code for language, code in BLOCKS if language == "python" and not code.startswith("# mine/")]
PARTS: list[Any] = [yaml.safe_load(code) for language, code in BLOCKS if language == "yaml"]
LOSSES = {part["loss"]["class_path"].split(".")[-1]: part for part in PARTS if "loss" in part}
ELSE = [part for part in PARTS if "loss" not in part]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, with the modules of the page, and the images that they are tried on."""
    for name, code in MODULES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(code)
    photos = sorted(write_folder(tmp_path / "photos").glob("*/*.png"))
    images = np.stack([np.asarray(Image.open(photo).convert("L")) for photo in photos])
    np.savez(tmp_path / "images.npz", images=images, labels=[photo.parent.name for photo in photos])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def write_recipe(name: str, *parts: Any) -> str:
    recipe: Any = yaml.safe_load(TINY_RECIPE.format(root="photos", accelerator="cpu"))
    recipe["training"]["epochs"] = 2
    for part in parts:
        recipe = merge(recipe, part)
    Path(f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    return f"{name}.yaml"


class Wandb(ModuleType):
    """What the page uses of Weights & Biases, with its signatures; it refuses a step that is before the last one."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: dict[str, dict[float, dict[str, float]]] = {}

    def init(self, *, project: str, id: str, resume: str) -> SimpleNamespace:  # noqa: A002
        assert (project, resume) == ("birds", "allow")
        logged = self.runs.setdefault(id, {})

        def log(data: dict[str, Any], step: int | None = None) -> None:
            assert step is not None
            assert step >= max(logged, default=0)
            logged.setdefault(step, {}).update(data)

        return SimpleNamespace(log=log)


@pytest.fixture(autouse=True)
def wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_from_python(folder: Path) -> None:
    for code in USES:
        exec(code, {})
    assert "loss.FocalLoss" in (folder / "runs" / "mine" / "recipe.yaml").read_text()


def test_from_recipes(
    folder: Path, wandb: Wandb, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, run, stopped = Here(capsys, monkeypatch), folder / "runs" / "mine", folder / "runs" / "stopped"
    recipe = write_recipe("all", LOSSES["FocalLoss"], *ELSE)
    result = here("train", "--recipe", recipe, "--out", run)
    assert result.returncode == 0, result.stderr
    metrics = json.loads((run / "metrics.json").read_text())
    assert 0 < metrics["test"]["balance"] < 1
    assert 0 < metrics["validation"]["balance"] < 1
    assert 0 < metrics["test"]["largest coordinate"] < 1
    assert metrics["measured"]["proxy_length"] > 0
    rows = RunDirectory(run).read_history()
    logged = wandb.runs.pop("proxy-anchor-1")
    assert [*logged] == [row["step"] for row in rows]
    assert [logged[row["step"]]["validation/balance"] for row in rows] == [row["balance"] for row in rows]
    assert all(row["lr/proxies"] > 0 for row in logged.values())

    with interrupted_at(2):
        assert_refused(here("train", "--recipe", recipe, "--out", stopped), ["after step 2"])
    result = here("train", "--resume", stopped)
    assert result.returncode == 0, result.stderr
    for name in ("model.safetensors", "loss.safetensors", "metrics.json"):
        assert (stopped / name).read_bytes() == (run / name).read_bytes()
    assert wandb.runs.pop("proxy-anchor-1") == logged

    result = here("evaluate", run, "--json", "--resamples", "0")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["test"] == metrics["test"]


def test_losses_from_recipes(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    here = Here(capsys, monkeypatch)
    for name in ("SupCon", "ProxyAnchorLoss"):
        result = here("train", "--recipe", write_recipe(name, LOSSES[name]), "--out", folder / "runs" / name)
        assert result.returncode == 0, result.stderr
    found = load_file(folder / "runs" / "SupCon" / "loss.safetensors")["loss.log_temperature"]
    assert abs(found.exp() - 0.2) > 1e-3  # it is trained
    assert_refused(here("analyze", "gap", folder / "runs" / "SupCon"), ["the loss is SupCon"])
