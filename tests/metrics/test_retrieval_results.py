"""RetrievalResults, from embeddings to metrics, tables and plots."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from proxemic.metrics import RetrievalResults, retrieval_metrics


@pytest.fixture
def rows() -> dict[str, Any]:
    """Embeddings with all columns that Open Metric Learning knows."""
    rng = np.random.default_rng(0)
    return {
        "embeddings": torch.tensor(rng.normal(size=(12, 4)), dtype=torch.float32),
        "labels": ["a", "b", "c"] * 4,
        "is_query": [True] * 6 + [False] * 6,
        "is_gallery": [False] * 3 + [True] * 9,
        "sequence": [None, None, None, "s", "t", "u", "s", "t", "u", None, None, None],
        "category": ["even", "odd", "odd"] * 4,
    }


def results(rows: dict[str, Any], **options: Any) -> Any:
    return RetrievalResults.of(**rows, **options)


def test_metrics_come_from_embeddings_and_their_columns(rows: dict[str, Any]) -> None:
    found = results(rows).metrics(recall_at=(1, 2), map_at=(2,))
    similar = torch.nn.functional.normalize(rows["embeddings"].double(), dim=1)
    similar = similar @ similar.T
    right = []
    for query in range(6):
        gallery = [
            row
            for row in range(3, 12)
            if row != query and (rows["sequence"][query] is None or rows["sequence"][query] != rows["sequence"][row])
        ]
        best = max(gallery, key=lambda row: float(similar[query, row]))
        right.append(rows["labels"][best] == rows["labels"][query])
    assert found["recall@1"] == pytest.approx(sum(right) / 6)
    assert {"recall@2", "map@2", "map@r"} <= {*found}


def test_metrics_come_by_category(rows: dict[str, Any]) -> None:
    by = results(rows).metrics(recall_at=(1,), by="category")
    assert {*by} == {"even", "odd"}
    assert 0 <= by["even"]["recall@1"] <= 1


def test_the_same_object_has_a_table_and_a_plot(rows: dict[str, Any], tmp_path: Path) -> None:
    found = results(rows, k=3)
    assert found.neighbours.shape == (6, 3)
    assert "recall@1" in found.table().text()
    found.plot(tmp_path / "found.png")
    assert (tmp_path / "found.png").exists()


def test_labels_may_be_texts(rows: dict[str, Any]) -> None:
    by_text = retrieval_metrics(rows["embeddings"], rows["labels"])
    numbers = torch.tensor([ord(label) for label in rows["labels"]])
    assert by_text == retrieval_metrics(rows["embeddings"], numbers)


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*smaller than the logging interval")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated")
@pytest.mark.parametrize("is_loader", [False, True], ids=["Dataset", "DataLoader"])
def test_the_callback_takes_any_data(is_loader: bool) -> None:
    from lightning.pytorch import LightningModule, Trainer

    from proxemic.metrics import RetrievalCallback

    class Net(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.layer(images)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return self(batch[0]).square().mean()

        def validation_step(self, *_: Any) -> None:
            pass

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    data = TensorDataset(torch.randn(8, 4), torch.arange(8) % 2)
    loader = DataLoader(data, batch_size=4)
    callback: Any = RetrievalCallback
    trainer = Trainer(
        max_epochs=1,
        callbacks=[callback(loader if is_loader else data)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(Net(), loader, loader)
    assert any("recall@1" in name for name in trainer.callback_metrics)
