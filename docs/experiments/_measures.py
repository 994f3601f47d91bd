"""Measures of finished runs, which are kept beside their test metrics."""

import statistics
from functools import partial
from pathlib import Path
from typing import Any, cast

from proxemic.analyze import forces
from proxemic.data.corruptions import CORRUPTIONS, Corruption
from proxemic.losses import WarpedSoftmaxLoss
from proxemic.metrics.proxies import average_distance_to_proxy
from proxemic.studies.corrupted import measure_corrupted
from proxemic.studies.finished import FinishedRun
from proxemic.training.callbacks.measures import as_compared


def distance_to_proxy(path: Path) -> dict[str, float]:
    """Measure the average distance of the training images, not augmented, to their proxy at the epoch that is kept."""
    run = FinishedRun(path)
    train = run.splits.train
    embeddings, proxies = as_compared(run.loss, run.embed(train))
    assert proxies is not None
    return {"avg_dtp": average_distance_to_proxy(embeddings, train.labels, proxies)}


def clusters(path: Path) -> dict[str, float]:
    """Measure the distance to the proxy, and how much the forces of a Euclidean loss align."""
    euclidean = FinishedRun(path).recipe.evaluation.distance == "euclidean"
    return distance_to_proxy(path) | (rise_of_alignment(path) if euclidean else {})


def rise_of_alignment(path: Path) -> dict[str, float]:
    """Measure how much the mean cosine between the forces on an embedding and on its proxy rises over the training.

    Source: Figure 4 of the warping paper. The run has a snapshot before the first and after the last epoch.
    """
    (training,) = forces([path], out=path / "forces").figures.values()
    return {"alignment": training[max(training)].mean_alignment - training[min(training)].mean_alignment}


def share_within_alpha(path: Path) -> dict[str, float]:
    """Measure the fraction of training images that end nearer to their proxy than the α of the warp."""
    run = FinishedRun(path)
    train, loss = run.splits.train, cast("WarpedSoftmaxLoss", run.loss)
    alpha = cast("partial[Any]", loss.f1).keywords["alpha"]  # that of the phase of the chosen epoch
    distances = (run.embed(train) - loss.proxies.detach()[train.labels, 0]).norm(dim=1)
    return {"within": (distances < alpha).float().mean().item()}


def recall_of_corrupted(path: Path) -> dict[str, float]:
    """Measure Recall@1 on corrupted test images, the mean over all corruptions with severity 3.

    The warping paper used about this severity (Table IV). Grey images have no hue to corrupt.
    """
    run = FinishedRun(path)
    grey = run.recipe.images.channels == 1
    made = [Corruption(name, severity=3) for name in CORRUPTIONS if not (grey and name == "hue-and-saturation")]
    _, *corrupted = measure_corrupted([run], made, "recall@1")[run.path]
    return {"corrupted": statistics.fmean(corrupted)}
