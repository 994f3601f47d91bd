"""Runs that several tests of ``proxemic analyze`` look at; each is trained once."""

from pathlib import Path

import pytest

from command_line import warm_proxemic

SOFTMAX = """\
extends: {tiny}
loss: {{class_path: proxemic.losses.NormalizedSoftmaxLoss}}
training: {{epochs: 1, loggers: []}}
"""
WARP = """\
extends: {tiny}
model: {{normalize: false}}
loss: {{class_path: proxemic.losses.WarpedSoftmaxLoss, init_args: {{alpha: 2.5, k1: 0.5, k2: 1.5}}}}
training: {{epochs: 3, loggers: [], callbacks: [{{class_path: proxemic.training.DistanceToProxy}}]}}
evaluation: {{distance: euclidean, nmi: true, start: false}}
"""


def train(recipe: Path | str, out: Path, *flags: str) -> Path:
    result = warm_proxemic("train", "--recipe", recipe, "--out", out, *flags)
    assert result.returncode == 0, result.stderr
    return out


@pytest.fixture(scope="session")
def softmax(tiny: Path) -> list[Path]:
    """Two seeds of a softmax loss."""
    recipe = tiny.parent / "softmax.yaml"
    recipe.write_text(SOFTMAX.format(tiny=tiny))
    return [train(recipe, tiny.parent / "softmax" / f"seed-{seed}", "--seed", str(seed)) for seed in (0, 1)]


@pytest.fixture(scope="session")
def mean_proxy(tiny: Path, softmax: list[Path]) -> list[Path]:
    """The same two seeds with a regulariser."""
    flags = ["--loss.regularizers", "[{class_path: proxemic.losses.MeanProxyNorm, init_args: {weight: 1}}]"]
    return [
        train(
            tiny.parent / "softmax.yaml", tiny.parent / "softmax-mean-proxy" / run.name, "--seed", run.name[-1], *flags
        )
        for run in softmax
    ]


@pytest.fixture(scope="session")
def warp(tiny: Path) -> list[Path]:
    """Two seeds of a warp, with AvgDTP."""
    recipe = tiny.parent / "warp.yaml"
    recipe.write_text(WARP.format(tiny=tiny))
    return [train(recipe, tiny.parent / "warp" / f"seed-{seed}", "--seed", str(seed)) for seed in (0, 1)]


@pytest.fixture(scope="session")
def pairwise(tiny: Path) -> Path:
    """Without proxies and validation classes, in the plane, with other preprocessing and Euclidean distances."""
    flags = ["--loss", "proxemic.losses.PairwiseLoss"]
    flags += ["--loss.loss", "pytorch_metric_learning.losses.MultiSimilarityLoss", "--batches.images_per_class", "2"]
    flags += ["--model.embedding_size", "2", "--model.normalize", "false", "--images.size=20", "--images.resize=24"]
    flags += ["--data.validation_fraction", "0", "--evaluation.select_on", "last", "--evaluation.distance", "euclidean"]
    return train(tiny, tiny.parent / "pairwise", "--training.epochs", "1", *flags)
