"""Which runs may be compared on corrupted pictures; what is measured is tested with the command."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tqdm import tqdm

from proxemic.data import ArrayPixels, ImageSet
from proxemic.errors import UserError
from proxemic.studies import corrupted
from proxemic.studies.corrupted import check_same_test
from proxemic.training import EvaluationConfig

PIXELS, NAMES = ArrayPixels(np.zeros((4, 8, 8), dtype=np.uint8)), ["a", "b", "a", "b"]
IMAGES = ImageSet.from_names(PIXELS, NAMES)
ASKS = torch.tensor([True, False, True, False])


def run(path: str, **fields: Any) -> Any:
    return SimpleNamespace(path=Path(path), **fields)


@pytest.mark.parametrize(("metric", "clusters"), [("recall@1", False), ("nmi", True), ("ami", True)])
def test_clusters_are_sought_only_for_the_metrics_of_them(
    metric: str, clusters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def evaluate(_: object, __: object, config: EvaluationConfig) -> dict[str, float]:
        asked.append(config.nmi)
        return {metric: 0.25}

    monkeypatch.setattr(corrupted, "evaluate_embeddings", evaluate)
    monkeypatch.setattr(corrupted, "_embed", lambda *_: [torch.zeros(4, 2)])
    bars: list[Any] = []
    monkeypatch.setattr(corrupted, "tqdm", lambda **settings: bars.append(tqdm(**settings)) or bars[-1])
    recipe = SimpleNamespace(evaluation=EvaluationConfig(nmi=True), data=None, cache=None, images=None)
    one: Any = object()
    assert corrupted.measure_corrupted([run("a", test=IMAGES, recipe=recipe)], [one], metric) == {Path("a"): [0.25] * 2}
    assert asked == [clusters] * 2
    assert [bar.total for bar in bars] == [2]


@pytest.mark.parametrize(
    "changes",
    [
        {"class_names": ("a", "c")},
        {"labels": torch.tensor([0, 1, 1, 0])},
        {"rows": ImageSet.from_names(PIXELS, NAMES, ASKS, ~ASKS).rows},
    ],
)
def test_runs_on_other_classes_labels_or_roles_are_refused(changes: dict[str, Any]) -> None:
    same = replace(IMAGES, labels=IMAGES.labels.clone())
    check_same_test([run("a", test=IMAGES), run("b", test=same)])
    with pytest.raises(UserError, match="a and c are evaluated on different test images"):
        check_same_test([run("a", test=IMAGES), run("b", test=same), run("c", test=replace(IMAGES, **changes))])
