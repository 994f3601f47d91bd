"""How the classes are walked over: how many at once, and what is kept for the backward."""

from dataclasses import dataclass
from functools import lru_cache

import torch

from proxemic.losses.scores.scoring import Scoring

_ONE_CHUNK = 2**18  # scores
_KEPT = 2**25  # scores
_SHARE = 0.05  # of the parameters and gradients, on a GPU
_FREE = 0.125  # of the memory that a GPU has free


@dataclass(frozen=True)
class Plan:
    """How the classes are walked over."""

    chunk: int  # number of classes whose scores are computed at once
    keep: bool  # whether all batch · classes · proxies similarities are kept for the backward
    keep_weights: bool = False  # and with them the weights that pooling gave the proxies
    dense: bool = False  # whether the problem is so small that ordinary autograd is faster

    @classmethod
    def of(cls, scoring: Scoring, batch: int, classes: int, proxies: int, dim: int, free: int | None = None) -> "Plan":
        """Choose the fastest plan for the sizes B, C, K and D (float32).

        On a CPU what is used together fits its cache, and at most 128 MiB of scores are kept. On a GPU chunks
        are as large as 5 % of parameters and gradients, or 128 MiB where that is more, and never more than an eighth
        of the bytes that are ``free``, which are given for a GPU alone.

        >>> Plan.of(Scoring(scale=20.0), 180, 100, 10, 512)  # CUB: one chunk
        Plan(chunk=100, keep=True, keep_weights=True, dense=False)
        >>> Plan.of(Scoring(scale=20.0), 1024, 200_000, 4, 128)  # dense scores would take 3.3 GB
        Plan(chunk=512, keep=False, keep_weights=False, dense=False)
        """
        scores = batch * classes * proxies
        if scores <= _ONE_CHUNK:
            dense = scoring.similarity.dense_wins(batch, classes * proxies, dim)
            return cls(classes, keep=True, keep_weights=proxies > 1, dense=dense)
        single_pass_pays = scoring.class_reduction is not None and 4 * batch < classes
        if free is None:
            # A chunk's proxies, its scores and their gradient stay in a processor's cache while they are used.
            rows = max(min(2**21 // dim, 2**21 // batch, 2**14), 256)
            keep = scores <= _KEPT and not single_pass_pays
            return cls(min(max(rows // proxies, 1), classes), keep, keep and proxies > 1 and 2 * scores <= _KEPT)
        room = max(_SHARE * 8 * dim * (classes * proxies + batch), 4 * _KEPT)
        room = min(room, _FREE * free) / 4  # in scores
        keep = scores <= room / 2 and not single_pass_pays
        keep_weights = keep and proxies > 1 and 4 * scores <= room
        if keep:
            room -= 2 * scores if keep_weights else scores
        # Of a class and a sample: a similarity for each proxy, the score, and as many of their gradients.
        held = 2 * proxies + (2 if proxies > 1 else 0)
        return cls(min(max(int(room / (batch * held)), 1), classes), keep, keep_weights)


@lru_cache
def free_memory(gpu: torch.device) -> int:
    """Bytes of a GPU that nothing used when the first loss was computed: to ask takes longer than a kernel."""
    return torch.cuda.mem_get_info(gpu)[0]
