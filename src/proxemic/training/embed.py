"""Embeddings of many images."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from proxemic.data import EmbeddingDataset, ImageSet, Preprocessing, RowLabels
from proxemic.metrics import RetrievalMetrics, retrieval_metrics
from proxemic.models import EmbeddingModel, load_model
from proxemic.training.data_module import leave_signals
from proxemic.training.own_metrics import compute_own_metrics
from proxemic.training.recipe import EvaluationConfig
from proxemic.training.retrieval_metric import gather_rows, split_roles

__all__ = [
    "embed_images",
    "evaluate_embeddings",
    "join_shares",
    "load_embedder",
    "metric_settings",
    "pick_device",
    "share_of",
]


def load_embedder(path: Path, backbone: type[nn.Module] | None = None) -> tuple[EmbeddingModel, Preprocessing]:
    """Load the model of a run, and what its images go through, on the CPU and in evaluation mode.

    Args:
        path: The directory of the run, or its `model.safetensors`.
        backbone: As in `load_model`.

    Raises:
        ValueError: Where a file is missing, malformed, or not of this model.
    """
    model, found = load_model(path, backbone)
    try:
        return model, Preprocessing(**found)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the preprocessing that model.json of {path} says cannot be done here: {error}") from error


@torch.no_grad()
def embed_images(
    model: nn.Module,
    images: ImageSet,
    preprocessing: Preprocessing,
    *,
    batch_size: int = 256,
    workers: int = 0,
    description: str = "embedding",
    rank: int = 0,
    world: int = 1,
) -> Float[Tensor, "images dim"]:
    """Embed every image in order, in evaluation mode, on the model's device; the modes of its parts are put back.

    Args:
        model: From images ``[B, C, H, W]`` to embeddings ``[B, D]``; it is given images of the type of its first
            floating-point parameter.
        images: N images.
        preprocessing: What each goes through.
        batch_size: Images a batch; does not change the result beyond rounding.
        workers: Processes that load images.
        description: What the progress bar says; it shows on terminals only.
        rank: Which of the processes this is that share the work, each with a copy of the model.
        world: How many they are; each embeds the images of `share_of`, in the batches that one alone would make.

    Returns:
        ``[N, D]`` float32 on the CPU; of this process's share, ``[0, 0]`` where that is empty.
    """
    loader = DataLoader(
        EmbeddingDataset(images, preprocessing.evaluation()),
        batch_sampler=[batch.tolist() for batch in _batches(len(images), batch_size)[rank::world]],
        num_workers=workers,
        worker_init_fn=leave_signals,
        generator=torch.Generator(),  # the loader draws a seed: not from the generator that training draws from
    )
    device = next(model.parameters()).device
    dtype = next((part.dtype for part in model.parameters() if part.is_floating_point()), None)
    modes = [(part, part.training) for part in model.modules()]
    embeddings = []
    model.eval()
    try:
        for batch, _ in tqdm(loader, description, leave=False, disable=True if rank else None):
            embeddings.append(model(batch.to(device, dtype)).float().cpu())
    finally:
        for part, mode in modes:
            part.training = mode
    return torch.cat(embeddings) if embeddings else torch.empty(0, 0)


def pick_device(accelerator: str) -> torch.device:
    """The device that a recipe's ``training.accelerator`` means on this machine.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if accelerator == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    return torch.device(accelerator)


def share_of(count: int, batch_size: int, rank: int, world: int) -> Int64[Tensor, " share"]:
    """Give the numbers of the images that process ``rank`` of ``world`` embeds: every ``world``-th batch.

    >>> share_of(10, 2, rank=1, world=3).tolist()
    [2, 3, 8, 9]
    """
    return torch.cat([torch.empty(0, dtype=torch.int64), *_batches(count, batch_size)[rank::world]])


def join_shares(
    share: Float[Tensor, "share dim"], count: int, batch_size: int, world: int
) -> Float[Tensor, "images dim"]:
    """The embeddings of all images, in order, from those that each of the processes made, of `share_of`."""
    if world == 1:
        return share
    shares = [share_of(count, batch_size, rank, world) for rank in range(world)]
    return torch.cat(gather_rows(share))[torch.cat(shares).argsort()]


def _batches(count: int, batch_size: int) -> list[Int64[Tensor, " batch"]]:
    return list(torch.arange(count).split(batch_size))


def evaluate_embeddings(
    embeddings: Float[Tensor, "rows dim"], rows: ImageSet | RowLabels, config: EvaluationConfig
) -> RetrievalMetrics:
    """Retrieval metrics of embeddings: all against all, or the rows that ask against those that answer.

    A row does not see those of its sequence.

    Args:
        embeddings: A row each.
        rows: The images that were embedded, or what else is known of the rows.
        config: What to compute.

    Raises:
        ValueError: If there are no labels; and as `retrieval_metrics`.
    """
    if rows.labels is None:
        raise ValueError("the embeddings have no labels to judge them by: give them with --labels FILE.")
    sequences = None if rows.sequences is None else rows.sequences.numbers
    found = retrieval_metrics(
        **split_roles(embeddings, rows.labels, rows.is_query, rows.is_gallery, sequences), **metric_settings(config)
    )
    found.update(compute_own_metrics(config, embeddings, rows.labels))
    return found


def metric_settings(config: EvaluationConfig) -> dict[str, Any]:
    """Give the keywords of `retrieval_metrics`, and of `RetrievalMetric`, that a recipe sets."""
    return {key: value for key, value in asdict(config).items() if key in _METRIC_KEYWORDS}


_METRIC_KEYWORDS = {"distance", "recall_at", "precision_at", "map_at", "ndcg_at", "nmi", "average"}
