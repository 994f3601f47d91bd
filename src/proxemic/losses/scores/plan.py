"""Choice of how the scores are computed: how many classes at once, and what is kept for the backward."""

from dataclasses import dataclass

import torch
from torch import Tensor

from proxemic.losses.scores.scoring import Scoring

_ONE_CHUNK = 2**18  # scores, on a CPU
_KEPT = 2**25  # scores, on a CPU
_AT_ONCE = 2**27  # scores, on a GPU: 512 MiB
_SHARE = 32  # a GPU whose memory is smaller than 16 GiB holds fewer: 1/32 of it


@dataclass(frozen=True)
class Plan:
    """How the scores of all classes are computed.

    Args:
        chunk: Number of classes whose scores are computed at once.
        keep: Whether all ``batch · classes · proxies`` similarities are kept for the backward.
        keep_weights: Whether the weights that pooling gave the proxies are kept as well.
        dense: Whether all scores are computed at once by ordinary autograd.
    """

    chunk: int
    keep: bool
    keep_weights: bool = False
    dense: bool = False

    @classmethod
    def of(
        cls, scoring: Scoring, batch: int, classes: int, proxies: int, dim: int, memory: int | None = None
    ) -> "Plan":
        """Return the fastest plan for the sizes B, C, K and D (float32).

        On a CPU the data of a chunk fit its cache, and at most 128 MiB of scores are kept. On a GPU, which has
        ``memory`` bytes in total, all scores are computed at once if they take at most 512 MiB; otherwise each chunk
        takes that much. The plan does not depend on how much of the GPU is free, and so neither do the last digits.

        >>> Plan.of(Scoring(scale=20.0), 180, 100, 10, 512)  # CUB: one chunk
        Plan(chunk=100, keep=True, keep_weights=True, dense=False)
        >>> Plan.of(Scoring(scale=20.0), 1024, 200_000, 4, 128)  # dense scores would take 3.3 GB
        Plan(chunk=512, keep=False, keep_weights=False, dense=False)
        """
        scores = batch * classes * proxies
        if memory is not None:
            most = min(_AT_ONCE, memory // (4 * _SHARE))
            dense = scores <= most and scoring.similarity.dense_on_gpu
            chunk = min(max(most // (batch * proxies), 1), classes)
            return cls(chunk, keep=scores <= most and not dense, dense=dense)
        if scores <= _ONE_CHUNK:
            dense = scoring.similarity.dense_wins(batch, classes * proxies, dim)
            return cls(classes, keep=True, keep_weights=proxies > 1, dense=dense)
        single_pass_pays = scoring.class_reduction is not None and 4 * batch < classes
        # A chunk's proxies, its scores and their gradient stay in a processor's cache while they are used.
        rows = max(min(2**21 // dim, 2**21 // batch, 2**14), 256)
        keep = scores <= _KEPT and not single_pass_pays
        return cls(min(max(rows // proxies, 1), classes), keep, keep and proxies > 1 and 2 * scores <= _KEPT)

    @classmethod
    def of_step(cls, scoring: Scoring, embeddings: Tensor, proxies: Tensor, chunk_size: int | None) -> "Plan":
        """Return the plan of a step: the fastest, or that of a given chunk."""
        if chunk_size is not None:
            return cls(min(chunk_size, len(proxies)), keep=chunk_size >= len(proxies))
        memory = gpu_memory(proxies.device) if proxies.is_cuda else None
        return cls.of(scoring, len(embeddings), *proxies.shape, memory=memory)


def gpu_memory(gpu: torch.device) -> int:
    """Return all bytes of a GPU, used or not."""
    return torch.cuda.get_device_properties(gpu).total_memory
