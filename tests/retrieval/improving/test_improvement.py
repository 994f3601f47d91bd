"""Heads over stored features: whitening from its definition, training that helps, and the choice between them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from proxemic.data import Preprocessing
from proxemic.metrics import retrieval_metrics
from proxemic.models import save_model
from proxemic.retrieval import Embedder, Improvement, improve, trained_head, whitened_head
from proxemic.retrieval.improving.improvement import _Hits

pytestmark = pytest.mark.cpu

CLASSES, DIM = 20, 32


def draw(per_class: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows whose classes differ in the last eight numbers, and which vary most in the first four."""
    centres = torch.randn(CLASSES, 8, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(CLASSES).repeat(per_class)
    rows = torch.randn(len(labels), DIM, generator=generator)
    rows[:, :4] *= 10
    rows[:, 4:-8] *= 1.5
    rows[:, -8:] = centres[labels] * 2 + 0.5 * rows[:, -8:]
    return rows, labels


def recall(rows: Tensor, labels: Tensor) -> float:
    return retrieval_metrics(rows, labels, recall_at=(1,))["recall@1"]


@pytest.fixture(scope="module", autouse=True)
def _few_steps() -> Iterator[None]:
    """They are enough here, and 200 of each of seven heads take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proxemic.retrieval.improving.improvement._LEAST_STEPS", 50)
        yield


@pytest.fixture(scope="module")
def improvement() -> Improvement:
    features, labels = draw(12, seed=1)
    labels[6 * CLASSES :] = -1
    return improve(features, labels)


def test_whitening_equals_its_definition() -> None:
    features = draw(5, seed=2)[0]
    unit = normalize(features).double().numpy()
    centred = unit - unit.mean(0)
    variances, vectors = np.linalg.eigh(centred.T @ centred / (len(unit) - 1))
    first = np.argsort(-variances)[:10]
    expected = centred @ vectors[:, first] / np.sqrt(variances[first] + variances.mean())
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = whitened_head(features, 10)(features).detach().double().numpy()
    # A principal component has two signs; products of rows have none.
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-5)
    assert whitened_head(features, 512)(features).shape == (len(features), DIM)


def test_a_trained_head_finds_new_rows_of_its_classes(improvement: Improvement) -> None:
    assert improvement.kept == "trained 3/4"
    assert improvement.head is not None
    assert improvement.per_class == 6
    recalls = improvement.on_pictures
    assert recalls["trained 3/4"] > recalls["whitened"] > recalls["stock"]
    new, labels = draw(6, seed=3)
    with torch.no_grad():
        vectors = improvement.head(new)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(new)))
    assert recall(vectors, labels) > recall(new, labels) + 0.2


def test_a_head_is_a_model_that_can_be_saved(improvement: Improvement, tmp_path: Path) -> None:
    assert improvement.head is not None
    save_model(tmp_path / "head", improvement.head, Preprocessing().as_dict())
    features = draw(2, seed=4)[0]
    with torch.no_grad():
        expected = improvement.head(features)
    torch.testing.assert_close(Embedder.load(tmp_path / "head").embed(features), expected)


def test_few_labels_move_the_head_half_of_the_way() -> None:
    features, labels = draw(4, seed=5)
    labels[2 * CLASSES :] = -1
    found = improve(features, labels)
    assert [*found.on_pictures] == [*found.on_classes] == ["stock", "whitened", "trained 1/2"]


def test_nothing_is_kept_that_loses() -> None:
    generator = torch.Generator().manual_seed(6)
    centres = torch.eye(10).repeat_interleave(8, dim=0)
    features = centres + 0.01 * torch.randn(80, 10, generator=generator)  # already perfect
    found = improve(features, torch.arange(10).repeat_interleave(8))
    assert (found.kept, found.head) == ("stock", None)
    assert found.on_pictures["stock"] == found.on_classes["stock"] == 1


def test_a_gain_is_counted_in_the_standard_deviations_of_mcnemar() -> None:
    hits = _Hits()
    # Nine queries gain, four lose, and seven stay: (9 - 4) / 20 of the queries, (9 - 4) / sqrt(9 + 4) deviations.
    before, after = torch.zeros(20, dtype=torch.bool), torch.zeros(20, dtype=torch.bool)
    after[:9], before[9:13] = True, True
    hits._of = {"stock": [before[:5], before[5:]], "whitened": [after[:5], after[5:]]}
    assert hits.gain("whitened", "stock") == pytest.approx((5 / 20, 5 / 13**0.5))


def test_many_rows_are_whitened_unless_that_surely_loses() -> None:
    features, labels = draw(30, seed=9)
    labels[2 * CLASSES :] = -1
    assert len(features) >= 500
    assert improve(features, labels).kept != "stock"


def test_the_same_rows_and_seed_give_the_same_head_and_leave_its_start_as_it_is() -> None:
    features, labels = draw(3, seed=7)
    start = whitened_head(features)
    before, heads = [value.clone() for value in start.parameters()], [trained_head(start, features, labels)]
    torch.rand(1)  # what torch draws meanwhile is nothing to it
    heads.append(trained_head(start, features, labels))
    assert all(map(torch.equal, before, start.parameters()))
    assert all(map(torch.equal, *(head.parameters() for head in heads)))
    assert not all(map(torch.equal, before, heads[0].parameters()))


def test_one_label_for_each_class_is_too_little() -> None:
    features, labels = draw(1, seed=8)
    with pytest.raises(ValueError, match="fewer than two classes have two labelled samples each: label more of them"):
        improve(features, labels)
