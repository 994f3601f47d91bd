"""Computes results by two processes; the program of the fixture `together`."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2]))
N, CLASSES = 101, 9
SETTINGS: dict[str, Any] = {"recall_at": (1, 5), "ndcg_at": (10,), "map_at": (3,), "precision_at": (4,)}

SEQUENCES = torch.arange(N) % 9 - 2  # below 0: in none


def samples() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Make embeddings with many ties, labels beyond 2**24 and flags, for `SEQUENCES`."""
    rng = torch.Generator().manual_seed(0)
    embeddings = torch.randint(-2, 3, (N, 6), generator=rng).half()
    embeddings[:, 0] = 3.0
    labels = 2**40 + torch.randint(CLASSES, (N,), generator=rng)
    return embeddings, labels, torch.rand(N, generator=rng) < 0.6, torch.rand(N, generator=rng) < 0.7


def metric_cases(rank: int) -> dict[str, Any]:
    from torch.utils.data import DistributedSampler

    from proxemic.metrics import RetrievalMetric

    embeddings, labels, is_query, is_gallery = samples()
    found: dict[str, Any] = {}

    def evaluate(
        mine: Tensor | range, metric: RetrievalMetric, *, numbered: bool = False, flags: bool = False
    ) -> dict[str, float]:
        for batch in torch.as_tensor(list(mine), dtype=torch.int64).split(16):
            roles = (is_query[batch], is_gallery[batch], SEQUENCES[batch]) if flags else ()
            metric.update(embeddings[batch], labels[batch], batch if numbered else None, *roles)
        return {name: value.item() for name, value in metric.compute().items()}

    halves = (range(70), range(70, N))
    metric = RetrievalMetric(**SETTINGS)
    found["uneven"] = evaluate(halves[rank], metric)
    # Gathering leaves each process its own rows, and does not count those of others twice.
    found["rows left"] = sum(map(len, metric.embeddings))
    metric.reset()
    found["after reset"] = evaluate(halves[rank], metric)
    found["numbered"] = evaluate(halves[rank], RetrievalMetric(**SETTINGS), numbered=True)
    found["on the CPU"] = evaluate(halves[rank], RetrievalMetric(**SETTINGS, compute_on_cpu=True))
    found["flags"] = evaluate(halves[rank], RetrievalMetric(**SETTINGS), flags=True)
    found["none on the second"] = evaluate(range(N) if rank == 0 else [], RetrievalMetric(**SETTINGS))  # type: ignore[arg-type]
    metric = RetrievalMetric(**SETTINGS)
    metric.update(torch.empty(0, 6), torch.empty(0, dtype=torch.int64))
    found["an empty batch on the first"] = evaluate(range(N) if rank == 1 else [], metric)  # type: ignore[arg-type]
    sampler = DistributedSampler(range(N), 2, rank, shuffle=True)  # type: ignore[arg-type]
    padded = torch.tensor(list(sampler))
    found["padded rows"] = len(padded)
    found["padded"] = evaluate(padded, RetrievalMetric(**SETTINGS), numbered=True)
    found["padded, not numbered"] = evaluate(padded, RetrievalMetric(**SETTINGS))
    metric = RetrievalMetric()
    metric.update(torch.eye(4)[:, : 3 + rank], torch.zeros(4, dtype=torch.int64))
    for name, wrong in (("of different shapes", metric), ("nothing to evaluate", RetrievalMetric())):
        try:
            wrong.compute()
        except ValueError as error:
            found[name] = str(error)
    return found


def training_cases(folder: Path) -> dict[str, Any]:
    """Train a user's own module for two epochs, evaluated by the callback and in its own validation."""
    from lightning.pytorch import Trainer, seed_everything
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
    from torch.utils.data import DataLoader

    from evaluated import CONFIG, PREPROCESSING, Module, images
    from proxemic.data import EmbeddingDataset
    from proxemic.metrics import RetrievalCallback, RetrievalMetric
    from proxemic.runs.embed import embed_images
    from proxemic.runs.evaluate import evaluate_embeddings

    pictures = images()

    class Numbered(EmbeddingDataset):
        def __getitems__(self, keys: Any) -> list[Any]:
            return [(*item, key) for item, key in zip(super().__getitems__(keys), keys, strict=True)]

    class Validated(Module):
        def __init__(self) -> None:
            super().__init__()
            self.metric = RetrievalMetric(recall_at=(1, 2), ndcg_at=(3,))
            self.alone: list[dict[str, float]] = []
            self.evaluated: list[dict[str, float]] = []

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            batch, labels, indexes = batch
            self.metric.update(self(batch), labels, indexes)

        def on_validation_epoch_end(self) -> None:
            self.log_dict(self.metric.compute(), sync_dist=True, reduce_fx="max")  # type: ignore[arg-type]
            self.metric.reset()

        def on_train_epoch_end(self) -> None:
            assert evaluate.latest is not None
            self.evaluated.append(dict(evaluate.latest))
            embeddings = embed_images(self, pictures, PREPROCESSING, batch_size=16)
            self.alone.append(dict(evaluate_embeddings(embeddings, pictures, CONFIG)))

    seed_everything(0, verbose=False)
    evaluate = RetrievalCallback(pictures, PREPROCESSING, CONFIG)
    stopping = EarlyStopping("validation/map@r", patience=9, mode="max")
    best = ModelCheckpoint(folder / "best", monitor="validation/map@r", mode="max", save_on_train_epoch_end=True)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        limit_val_batches=0,
        callbacks=[best, stopping, evaluate],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    module = Validated()
    trainer.fit(module, DataLoader(EmbeddingDataset(pictures, PREPROCESSING.evaluation()), 5, shuffle=True))
    found: dict[str, Any] = {"evaluated": module.evaluated, "alone": module.alone}
    found["logged"] = {name: value.item() for name, value in trainer.callback_metrics.items()}
    assert best.best_model_score is not None
    found["best"] = float(best.best_model_score)
    found["stopping"] = float(stopping.best_score)
    trainer.limit_val_batches = 1.0
    odd = pictures.select(range(49))  # so that one comes twice
    numbered = Numbered(odd, PREPROCESSING.evaluation())
    found["validated"] = trainer.validate(module, DataLoader(numbered, 7), verbose=False)[0]
    embeddings = embed_images(module, odd, PREPROCESSING)
    found["validated alone"] = dict(evaluate_embeddings(embeddings, odd, replace(CONFIG, own_metrics=None)))
    return found


def evaluated_where_one_diverges(rank: int) -> list[str]:
    """Return each process's error if the embeddings of the second one are not finite."""
    from types import SimpleNamespace

    from evaluated import CONFIG, PREPROCESSING, images
    from proxemic.errors import TrainingDiverged
    from proxemic.metrics import RetrievalCallback

    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    with torch.no_grad():
        module[1].weight.mul_(float("nan") if rank else 1.0)  # type: ignore[operator]
    evaluate = RetrievalCallback(images(), PREPROCESSING, CONFIG)
    trainer: Any = SimpleNamespace(global_rank=rank, world_size=2, current_epoch=0)
    try:
        evaluate.evaluate(trainer, module)  # type: ignore[arg-type]
    except TrainingDiverged as error:
        return [str(error)]
    return []


if __name__ == "__main__":
    import warnings

    from processes import write

    warnings.filterwarnings("error", ".*sync_dist.*")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    found = {
        "metric": metric_cases(rank),
        "training": training_cases(Path(sys.argv[1])),
        "diverged": evaluated_where_one_diverges(rank),
    }
    write(found)
    torch.distributed.destroy_process_group()
