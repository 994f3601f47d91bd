"""The guides from other libraries: that they name all that these have, and that both scripts of each print the same."""

import ast
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytorch_metric_learning
from pytorch_metric_learning import losses, miners

import proxemic
import warm
from environments import run_uv, uv
from proxemic.losses import PairwiseLoss, from_pytorch_metric_learning

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "migrating"
SCRIPTS = FOLDER / "scripts"
# Not metrics.md, which compares definitions.
PAGES = {path.stem: path.read_text() for path in FOLDER.glob("*.md") if path.stem != "metrics"}
PML, OML = "pytorch-metric-learning", "open-metric-learning"
CODE = re.compile(r"`([^`]+)`")


def table(page: str) -> Iterator[tuple[str, str]]:
    """Yield the names there and the names here of each row."""
    for line in PAGES[page].splitlines():
        if line.startswith("| ") and not line.startswith("|---"):
            theirs, ours, _ = (cell.strip() for cell in line.strip("|").split("|"))
            yield theirs, ours


def named(page: str) -> dict[str, str]:
    """Map each name there to the name here."""
    found = [(name.partition("(")[0], ours) for theirs, ours in table(page) for name in CODE.findall(theirs)]
    twice = {name for name, _ in found if [other for other, _ in found].count(name) > 1}
    assert not twice - {"precision_at_k", "r_precision"}, twice
    return dict(found)


def defined(module: ModuleType) -> set[str]:
    classes_and_functions = (
        item for item in vars(module).items() if inspect.isclass(item[1]) or inspect.isfunction(item[1])
    )
    return {name for name, item in classes_and_functions if item.__module__ == module.__name__ and name[0] != "_"}


def test_every_name_of_pytorch_metric_learning_has_a_row() -> None:
    known = set[str]()
    for room in pkgutil.iter_modules(pytorch_metric_learning.__path__, "pytorch_metric_learning."):
        package = importlib.import_module(room.name)
        if room.name.endswith(".utils"):
            for helper in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
                known |= defined(importlib.import_module(helper.name))
        else:
            known |= {name for name, var in vars(package).items() if inspect.isclass(var)}
    names = named(PML)
    assert not known - names.keys()
    assert names.keys() - known == {
        "precision_at_1", "mean_average_precision_at_r", "NMI", "AMI",  # as strings
    }  # fmt: skip


# Losses that are no losses of their own, or that take others.
ABSTRACT = {
    "BaseLossWrapper", "BaseMetricLossFunction", "CrossBatchMemory", "EmbeddingRegularizerMixin", "GenericPairLoss",
    "MultipleLosses", "SelfSupervisedLoss", "WeightRegularizerMixin",
}  # fmt: skip
LOSSES = sorted({name for name, var in vars(losses).items() if inspect.isclass(var)} - ABSTRACT)
CLASSES: dict[str, Any] = {"num_classes": 4, "embedding_size": 8}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "CosFaceLoss": CLASSES,
    "SubCenterArcFaceLoss": CLASSES,
    "RankedListLoss": {"margin": 1.0, "Tn": 1.0},
    "P2SGradLoss": {"num_classes": 4, "descriptors_dim": 8},
    "ManifoldLoss": {"l": 8},
}
OF_ITS_OWN = {
    *("DynamicSoftMarginLoss", "LargeMarginSoftmaxLoss", "ManifoldLoss", "P2SGradLoss", "SphereFaceLoss", "VICRegLoss")
}


@pytest.mark.filterwarnings("ignore")  # what PML does is for PML to mend
@pytest.mark.parametrize("name", LOSSES)
def test_what_the_table_says_of_a_loss_holds(name: str) -> None:
    kind, ours = getattr(losses, name), named(PML)[name]
    taken = inspect.signature(kind).parameters
    loss = kind(**ARGUMENTS.get(name) or {key: value for key, value in CLASSES.items() if key in taken})
    if ours == f"`PairwiseLoss(loss={name}())`":
        PairwiseLoss(**CLASSES, loss=loss)
        return
    with pytest.raises(ValueError, match="loss is "):
        PairwiseLoss(**CLASSES, loss=loss)
    if name in OF_ITS_OWN:
        with pytest.raises(ValueError, match="only these can be converted"):
            from_pytorch_metric_learning(loss)
    else:
        assert ours.startswith(f"`{type(from_pytorch_metric_learning(loss)).__name__}")


def test_the_miners() -> None:
    for name in (name for name, var in vars(miners).items() if inspect.isclass(var)):
        if f"PairwiseLoss(miner={name}())" in named(PML)[name]:
            miner = getattr(miners, name)()
            PairwiseLoss(4, 8, loss=losses.TripletMarginLoss(), miner=miner)
        else:
            assert name in ("BaseMiner", "EmbeddingsAlreadyPackagedAsTriplets")


@pytest.mark.parametrize("page", PAGES)
def test_what_is_used_here_exists(page: str) -> None:
    packages = [
        getattr(proxemic, name)
        for name in ("data", "losses", "metrics", "models", "retrieval", "training", "distributed", "analysis")
    ]
    public = {name for package in packages for name in package.__all__}
    keys = {"batches", "optim", "model", "loss", "training", "images", "augment", "seed"}  # of recipes
    options = {"distance", "reduction", "weights", "recall_at", "map", "map@r", "mrr", "nmi", "weight_decay"}
    options |= {"build_index", '"ivfpq"'}
    for _, ours in table(page):
        for code in CODE.findall(ours):
            name = re.split(r"[\s(=.]", code)[0]
            if code.startswith("proxemic."):
                assert callable(eval(code.partition("(")[0], {"proxemic": proxemic})), code
            elif not code.startswith(("Gallery.", "proxemic ")):
                assert name in public | keys | options, code


@pytest.mark.parametrize("page", PAGES)
def test_the_page_shows_the_scripts_and_its_links_lead_somewhere(page: str) -> None:
    shown = re.findall(r"`docs/migrating/(scripts/\w+\.py)`\n\n```python\n(.*?)```", PAGES[page], re.DOTALL)
    assert [path.removesuffix(".py").rpartition("_")[2] for path, _ in shown] == ["before", "after"]
    for path, code in shown:
        assert code == (FOLDER / path).read_text()
    for link in re.findall(r"\]\(([\w./-]+)", PAGES[page]):
        assert (FOLDER / link).exists(), link


def figures(printed: str) -> list[tuple[str, float | str]]:
    """Return the lines without numbers."""
    lines = (line.rpartition(": ") for line in printed.splitlines())
    return [(name, float(value) if re.fullmatch(r"[\d.]+", value) else value) for name, _, value in lines]


def assert_same(before: str, after: str) -> None:
    theirs, ours = figures(before), figures(after)
    assert len(ours) >= 6
    for (name, value), (other_name, other) in zip(theirs, ours, strict=True):
        assert name == other_name
        assert other == (pytest.approx(value, rel=1e-3, abs=1e-3) if isinstance(value, float) else value), name


def run(script: str, folder: Path) -> str:
    ran = warm.run(SCRIPTS / f"{script}.py", cwd=folder)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def test_pytorch_metric_learning_before_and_after(tmp_path: Path) -> None:
    before, after = (run(f"pytorch_metric_learning_{when}", tmp_path) for when in ("before", "after"))
    assert_same(before, after)


@pytest.fixture(scope="module")
def oml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with OML and NumPy 1, and torch and torchvision of this one, which uv need not install again."""
    if uv() is None or sys.version_info >= (3, 13):
        pytest.skip("OML takes uv, to make an environment, and Python 3.12 or earlier, for NumPy 1")
    folder = tmp_path_factory.mktemp("oml")
    (folder / "not.txt").write_text("torch; sys_platform == 'none'\ntorchvision; sys_platform == 'none'\n")
    python = folder / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
    words = ["pip", "install", "--quiet", "--python", python, "--override", folder / "not.txt"]
    try:
        run_uv("venv", "--quiet", "--python", sys.executable, folder / "env")
        run_uv(*words, "open-metric-learning==4.0.0", "omegaconf")  # the second is missing among what it requires
    except AssertionError as error:
        pytest.skip(f"OML could not be installed: {error}")
    (site,) = (folder / "env").glob("[lL]ib/**/site-packages")
    (site / "torch_of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_open_metric_learning_before_and_after(oml: Path, tmp_path: Path) -> None:
    assert run("open_metric_learning_data", tmp_path) == ""
    environment = {**os.environ, "NO_ALBUMENTATIONS_UPDATE": "1", "PYTHONPATH": "", "PYTHONWARNINGS": "ignore"}
    script = SCRIPTS / "open_metric_learning_before.py"
    before = subprocess.run([oml, script], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300)
    assert before.returncode == 0, before.stderr
    assert_same(before.stdout, run("open_metric_learning_after", tmp_path))


def test_open_metric_learning_after_alone(tmp_path: Path) -> None:
    run("open_metric_learning_data", tmp_path)
    printed = dict(figures(run("open_metric_learning_after", tmp_path)))
    # The output of OML when this was written.
    expected = {"loss of epoch 0": 6.8380, "loss of epoch 2": 0.8716, "Recall@1": 0.9175, "MAP@5 over the hits": 0.9271}
    assert {name: printed[name] for name in expected} == pytest.approx(expected, abs=0.02)


def test_every_name_of_open_metric_learning_has_a_row(oml: Path) -> None:
    (package,) = oml.parents[1].glob("[lL]ib/**/site-packages/oml")
    known = set[str]()
    for path in package.rglob("*.py"):
        if "external" in path.as_posix():
            continue
        body = ast.parse(path.read_text()).body
        public = [
            item.value for item in body if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "__all__"
        ]
        kinds = (ast.ClassDef, ast.FunctionDef)
        names = ast.literal_eval(public[0]) if public else [item.name for item in body if isinstance(item, kinds)]
        known |= {name for name in names if not re.match(r"_|T[A-Z][a-z]", name) or name.startswith("Tr")}
    internal = {"WarningDDP", "check_model_type", "resnet50_projector"}
    names = named(OML)
    assert not known - names.keys() - internal
    assert not names.keys() - known - {"TripletLoss"}
