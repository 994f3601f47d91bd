import copy
import math
import pickle
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection

from proxemic.errors import UserNote
from proxemic.metrics import RetrievalMetric, RetrievalResults, retrieval_metrics

pytestmark = pytest.mark.cpu
PROGRAM = runpy.run_path(str(Path(__file__).with_name("gathering.py")))
SETTINGS: dict[str, Any] = PROGRAM["SETTINGS"]
EMBEDDINGS, LABELS, IS_QUERY, IS_GALLERY = PROGRAM["samples"]()
SEQUENCES: Tensor = PROGRAM["SEQUENCES"]


def alone(*flags: Tensor) -> dict[str, float]:
    names = ("is_query", "is_gallery", "sequences")
    given: dict[str, Any] = dict(zip(names, flags, strict=False))
    roles = RetrievalResults(EMBEDDINGS.float(), LABELS, **given).roles
    return dict(retrieval_metrics(**roles, **SETTINGS))


def as_floats(values: dict[str, Tensor]) -> dict[str, float]:
    assert all(value.dtype == torch.float64 and value.shape == () for value in values.values())
    return {name: value.item() for name, value in values.items()}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "case",
    [
        "uneven", "after reset", "numbered", "on the CPU", "flags", "none on the second",
        "an empty batch on the first", "padded",
    ],
)  # fmt: skip
def test_two_processes_find_what_one_finds(together: list[dict[str, Any]], rank: int, case: str) -> None:
    assert together[rank]["metric"][case] == alone(*((IS_QUERY, IS_GALLERY, SEQUENCES) if case == "flags" else ()))


def test_sequences_count() -> None:
    assert alone(IS_QUERY, IS_GALLERY, SEQUENCES) != alone(IS_QUERY, IS_GALLERY)
    with pytest.raises(ValueError, match=r"sequences has torch.float32"):
        RetrievalMetric().update(EMBEDDINGS, LABELS, sequences=SEQUENCES.float())


def test_the_padding_is_there_and_would_count(together: list[dict[str, Any]]) -> None:
    assert sum(found["metric"]["padded rows"] for found in together) == len(LABELS) + 1
    assert together[0]["metric"]["padded, not numbered"] != alone()


def test_gathering_leaves_each_process_its_rows_and_fails_on_all_alike(together: list[dict[str, Any]]) -> None:
    assert [found["metric"]["rows left"] for found in together] == [70, 31]
    for found in together:
        assert found["metric"]["of different shapes"] == "the processes hold rows of different shapes, (4, 3), (4, 4)"
        assert "nothing to evaluate" in found["metric"]["nothing to evaluate"]


def collect(metric: RetrievalMetric, size: int = 16) -> RetrievalMetric:
    for batch in torch.arange(len(LABELS)).split(size):
        metric.update(EMBEDDINGS[batch], LABELS[batch])
    return metric


def test_batches_copies_and_resets() -> None:
    metric = collect(RetrievalMetric(**SETTINGS))
    for same in (metric, copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)), metric.clone()):
        assert as_floats(same.compute()) == alone()
    assert metric.latest is not None
    assert dict(metric.latest) == alone()
    assert (metric.latest.queries, metric.latest.left_out) == (len(LABELS), 0)
    assert metric.state_dict() == {}
    copied = copy.deepcopy(metric)
    metric.reset()
    assert metric.latest is None
    assert as_floats(copied.compute()) == alone()
    with (
        pytest.raises(ValueError, match="nothing to evaluate"),
        pytest.warns(UserWarning, match="before the ``update``"),
    ):
        metric.compute()
    metric.update(torch.eye(2)[[0, 0]], torch.tensor([3, 3]))
    assert as_floats(metric.compute())["map@r"] == 1.0


def test_numbered_samples_may_come_in_any_order_and_again() -> None:
    metric = RetrievalMetric(**SETTINGS)
    order = torch.randperm(len(LABELS), generator=torch.Generator().manual_seed(1))
    for batch in (order[:60], order[40:], order[:3]):
        metric.update(EMBEDDINGS[batch], LABELS[batch], batch.int(), IS_QUERY[batch], IS_GALLERY[batch])
    assert as_floats(metric.compute()) == alone(IS_QUERY, IS_GALLERY)
    assert metric.latest is not None
    # In the order of their numbers, like one call with all: also what is known query by query.
    assert torch.equal(metric.latest.labels, LABELS[IS_QUERY])


def test_no_conversion_loses_digits_or_labels() -> None:
    rows, labels = torch.tensor([[1 + k / 4096, 0.0] for k in (0, 3, 7, 8)]), torch.tensor([0, 0, 1, 1]) + 2**40
    expected = dict(retrieval_metrics(rows, labels, distance="euclidean"))
    for kind in (torch.float16, torch.bfloat16):
        assert dict(retrieval_metrics(rows.to(kind).float(), labels, distance="euclidean")) != expected
    metric = RetrievalMetric(distance="euclidean")
    inside = nn.ModuleList([metric])
    for convert in (metric.half, metric.bfloat16, inside.half, lambda: inside.to(torch.bfloat16)):
        metric.reset()
        metric.update(rows, labels)
        convert()
        assert as_floats(metric.compute()) == expected
    metric.reset()
    metric.update(rows, labels)
    metric.set_dtype(torch.float16)
    assert as_floats(metric.compute()) == expected


def test_what_is_collected_is_a_copy_without_a_graph() -> None:
    metric = RetrievalMetric(**SETTINGS)
    buffer = EMBEDDINGS.float().requires_grad_()
    labels = LABELS.clone()
    metric.update(buffer, labels)
    with torch.no_grad():
        buffer.zero_()
        labels.zero_()
    assert as_floats(metric.compute()) == alone()
    assert not metric.embeddings[0].requires_grad


def test_states_move_with_the_module() -> None:
    metric = collect(RetrievalMetric()).to("meta")
    assert {part.device.type for name in ("embeddings", "labels", "is_query") for part in getattr(metric, name)} == {
        "meta"
    }


def test_calling_it_only_collects() -> None:
    metric = RetrievalMetric(**SETTINGS)
    # The second batch, of classes with one image each, has nothing to find.
    alone_in_class = torch.stack([(label == LABELS).nonzero()[0, 0] for label in LABELS.unique()])
    rest = torch.ones(len(LABELS), dtype=torch.bool).index_fill_(0, alone_in_class, False).nonzero()[:, 0]
    for batch in (rest, alone_in_class):
        assert metric(EMBEDDINGS[batch], LABELS[batch], batch, IS_QUERY[batch], is_gallery=IS_GALLERY[batch]) is None
    assert as_floats(metric.compute()) == alone(IS_QUERY, IS_GALLERY)


def test_in_a_collection() -> None:
    metrics = {
        "cosine": RetrievalMetric(recall_at=(1,)),
        "euclidean": RetrievalMetric(recall_at=(1,), distance="euclidean"),
    }
    collection = MetricCollection(metrics)  # type: ignore[arg-type]
    collection.update(EMBEDDINGS, LABELS)
    collection(EMBEDDINGS[:5] + 1, LABELS[:5])  # called, not updated: each metric by itself
    collection.update(EMBEDDINGS[:3] - 1, LABELS[:3])
    rows = torch.cat([EMBEDDINGS, EMBEDDINGS[:5] + 1, EMBEDDINGS[:3] - 1]).float()
    labels = torch.cat([LABELS, LABELS[:5], LABELS[:3]])
    found = as_floats(collection.compute())
    for name in ("cosine", "euclidean"):
        expected = retrieval_metrics(rows, labels, recall_at=(1,), distance=name)
        assert {key: found[f"{name}_{key}"] for key in expected} == expected


def test_settings_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="ndcg_at"):
        RetrievalMetric(ndcg_at=(-3,))


ROWS, IDS = torch.eye(3), torch.arange(3)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((ROWS[0], IDS), r"shape \[3\], but must be floats \[batch, dim\]"),
        ((ROWS.long(), IDS), "torch.int64 .* must be floats"),
        ((ROWS, IDS[:2]), r"labels has shape \(2,\) but must be \[3\]"),
        ((ROWS, IDS, IDS[:2]), "indexes has shape"),
        ((ROWS, IDS, IDS - 1), "indexes holds numbers below 0"),
        ((ROWS, IDS, None, IDS, IDS), r"is_query has torch.int64 and shape \[3\], not bool \[3\]"),
        ((ROWS[:, :2], IDS), "2 dimensions, but earlier batches 3"),
    ],
)
def test_batches_that_do_not_fit(batch: tuple[Any, ...], words: str) -> None:
    metric = RetrievalMetric()
    metric.update(ROWS[:1], IDS[:1])
    with pytest.raises(ValueError, match=words):
        metric.update(*batch)
    assert {len(getattr(metric, name)) for name in ("embeddings", "labels", "indexes", "is_query", "is_gallery")} == {1}


def test_numbers_that_do_not_fit() -> None:
    metric = RetrievalMetric()
    metric.update(ROWS, IDS, IDS)
    metric.update(ROWS, IDS + 1, IDS)
    with pytest.raises(ValueError, match="an index came with two labels"):
        metric.compute()
    metric.reset()
    metric.update(ROWS, IDS, IDS)
    metric.update(ROWS, IDS)
    with pytest.raises(ValueError, match="with some batches but not with all"):
        metric.compute()


class Validated(LightningModule):
    """A user's module, with validation samples in which equal labels are far apart."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.metric = nn.Linear(4, 3), RetrievalMetric(recall_at=(1,), nmi=True)
        self.values: list[dict[str, float]] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.metric.update(self.net(batch[0]), batch[1])

    def on_validation_epoch_end(self) -> None:
        self.values.append(as_floats(self.metric.compute()))
        self.log_dict(self.metric.compute())
        self.metric.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.net.parameters(), lr=0.1)


@pytest.mark.filterwarnings(
    "ignore:.*does not have many workers", "ignore:.*LeafSpec.* is deprecated", "ignore:.*smaller than the logging"
)
@pytest.mark.parametrize(
    ("settings", "known"),
    [
        ({"fast_dev_run": True}, [False]),
        ({"limit_val_batches": 1, "num_sanity_val_steps": 0}, [False]),
        ({"num_sanity_val_steps": 2}, [False, True]),
    ],
)
def test_lightnings_short_validations_give_nan_with_one_warning(settings: dict[str, Any], known: list[bool]) -> None:
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(16, 4), torch.arange(16) % 8), 4)
    module = Validated()
    with pytest.warns(UserNote, match="metrics are NaN, as none of the") as warned:
        Trainer(
            accelerator="cpu", max_epochs=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False, **settings,
        ).fit(module, data, data)  # fmt: skip
    assert [item.category for item in warned].count(UserNote) == 1
    assert [{name: not math.isnan(value) for name, value in values.items()} for values in module.values] == [
        dict.fromkeys(("recall@1", "map@r", "r_precision", "nmi", "nmi_geometric", "ami"), item) for item in known
    ]


def test_batches_without_queries_or_gallery_give_nan() -> None:
    metric, nobody = RetrievalMetric(), torch.zeros(3, dtype=torch.bool)
    for roles in ({"is_query": nobody}, {"is_gallery": nobody}):
        metric.reset()
        metric.update(ROWS, IDS * 0, **roles)
        with pytest.warns(UserNote, match="no queries or there is no gallery"):
            assert metric.compute()["recall@1"].isnan()
        assert metric.latest is not None
        assert metric.latest.queries == 0


def test_the_errors_of_the_metrics_come_through() -> None:
    metric = RetrievalMetric()
    metric.update(ROWS * torch.nan, IDS)
    with pytest.raises(ValueError, match="queries"):
        metric.compute()
