"""Embeddings of many images."""

from dataclasses import asdict

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from proxemic.data import EmbeddingDataset, ImageSet, Preprocessing
from proxemic.metrics import RetrievalMetrics, retrieval_metrics
from proxemic.training.data_module import ignore_interrupts
from proxemic.training.recipe import EvaluationConfig

__all__ = ["embed_images", "evaluate_embeddings"]


@torch.no_grad()
def embed_images(
    model: nn.Module,
    images: ImageSet,
    preprocessing: Preprocessing,
    *,
    batch_size: int = 256,
    workers: int = 0,
    description: str = "embedding",
) -> Float[Tensor, "images dim"]:
    """Embed every image in order, in evaluation mode, on the model's device; the model's mode is put back.

    Args:
        model: From images ``[B, C, H, W]`` to embeddings ``[B, D]``.
        images: N images.
        preprocessing: What each goes through.
        batch_size: Images a batch; does not change the result beyond rounding.
        workers: Processes that load images.
        description: What the progress bar says; it shows on terminals only.

    Returns:
        ``[N, D]`` float32 on the CPU.
    """
    loader = DataLoader(
        EmbeddingDataset(images, preprocessing.evaluation()),
        batch_size=batch_size,
        num_workers=workers,
        worker_init_fn=ignore_interrupts,
    )
    device = next(model.parameters()).device
    training, embeddings = model.training, []
    model.eval()
    try:
        for batch, _ in tqdm(loader, description, leave=False, disable=None):
            embeddings.append(model(batch.to(device)).float().cpu())
    finally:
        model.train(training)
    return torch.cat(embeddings)


def evaluate_embeddings(
    embeddings: Float[Tensor, "images dim"], images: ImageSet, config: EvaluationConfig
) -> RetrievalMetrics:
    """Retrieval metrics of embedded images: all against all, or the set's queries against its gallery."""
    keywords = {key: value for key, value in asdict(config).items() if key in _METRIC_KEYWORDS}
    if images.is_query is None or images.is_gallery is None:
        return retrieval_metrics(embeddings, images.labels, **keywords)
    query, gallery = images.is_query, images.is_gallery
    place = torch.where(gallery, gallery.long().cumsum(0) - 1, -1)
    return retrieval_metrics(
        embeddings[query],
        images.labels[query],
        embeddings[gallery],
        images.labels[gallery],
        exclude=place[query],
        **keywords,
    )


_METRIC_KEYWORDS = {"distance", "recall_at", "precision_at", "map_at", "ndcg_at"}
