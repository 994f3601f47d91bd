"""Means over seeds of `proxemic.analyze.toy`, and embeddings on a line; the rest as a user runs it: tests/cli."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from comparisons import interval
from proxemic.analysis.toy import Scene
from proxemic.analyze._toy import _mean_tables, _means, _projection
from proxemic.protocols.runs.groups import repetitions


def test_seeds_have_means_and_pairs() -> None:
    runs: Any = [
        SimpleNamespace(path=Path(f"{name}/{seed}"), name=name, setting=name, seed=seed)
        for name in ("plain", "warped")
        for seed in (0, 1)
    ]
    ratios = dict(zip((run.path for run in runs), (3.0, 5.0, 4.0, 8.0), strict=True))
    separations = {path: {"ratio": ratio} for path, ratio in ratios.items()}
    means = _means(repetitions(runs), separations)
    pairs = {"plain: mean": (3, 5), "warped: mean": (4, 8), "warped less plain, paired": (1, 3)}
    for (title, pair), table in zip(pairs.items(), _mean_tables(means), strict=True):
        mean, half = interval(*pair)
        assert table.title.startswith(title)
        assert table.rows == [[f"{mean:.3f} ± {half:.3f}"]]
    assert _means(repetitions(runs[::2]), separations) == {}, "one seed alone has no mean"


def test_one_dimension_is_drawn_as_a_line() -> None:
    scene = Scene(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1]), torch.tensor([[[1.0]], [[3.0]]]))
    flatten, note = _projection(scene)
    assert note == "1 dimension, drawn as a line."
    flat = flatten(scene)
    assert flat.embeddings.tolist() == [[1.0, 0.0], [3.0, 0.0]]
    assert flat.proxies is not None
    assert flat.proxies.tolist() == [[[1.0, 0.0]], [[3.0, 0.0]]]
