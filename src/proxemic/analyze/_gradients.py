"""Measure on which scores the gradient of a score depends."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from proxemic.analysis.gradient_characteristics import every_proxy_loss
from proxemic.analysis.gradient_dependence import THRESHOLD, draw_gradients, score_dependence
from proxemic.analyze.results import Analysis, Stem, file_stem
from proxemic.errors import UserError
from proxemic.plots import write_figure
from proxemic.tables import Table

PAPER_LOSSES = {
    "ProxyAnchorLoss": "ProxyAnchor",
    "SoftTripleLoss": "SoftTriple",
    "MultiProxyAnchorLoss": "MPA",
    "DataWiseMultiProxyAnchorLoss": "MPA-DW",
    "AllPairMultiProxyAnchorLoss": "MPA-AP",
}
"""The losses of the paper's figure 1, with their names there."""

LABELS = (0, 0, 1, 1, 2, 2)
KINDS = ("positive", "negative")


def gradients(
    *, losses: Sequence[str] = tuple(PAPER_LOSSES), seed: int = 0, out: Stem = "gradients"
) -> Analysis[Mapping[str, Tensor]]:
    """Measure and draw on which scores the gradients of a positive and of a negative class score depend.

    The batch has three classes and six embeddings, as in figure 1 of the multi-proxy anchor paper.

    Args:
        losses: Class names of proxy losses.
        seed: Seed of the random scores.
        out: Prefix of the file names.

    Returns:
        The `score_dependence` of each loss in a batch of three classes and six embeddings.

    Source: Figure 1 of the multi-proxy anchor paper.
    """
    stem = file_stem(out, (), "gradients")
    known, labels = every_proxy_loss(seed=seed), torch.tensor(LABELS)
    for name in losses:
        if name not in known:
            raise UserError(f"losses has {name!r}, but the proxy losses are {', '.join(known)}.")
    dependences = {name: score_dependence(known[name], labels, seed=seed) for name in losses}
    cells = [
        [PAPER_LOSSES.get(name, name), kind, *_counts(dependence[0, label])]
        for name, dependence in dependences.items()
        for label, kind in enumerate(KINDS)
    ]
    table = Table(
        ["loss", "score", "same sample, +", "same sample, -", "others, +", "others, -"],
        cells,
        "The number of scores on which the gradient of a score depends, in a batch of 3 classes and 6 embeddings",
    )
    numbers = [
        (name, kind, k, d, KINDS[int(labels[k] != d)], f"{dependence[0, label, k, d]:.6g}")
        for name, dependence in dependences.items()
        for label, kind in enumerate(KINDS)
        for k in range(len(LABELS))
        for d in range(dependence.shape[1])
    ]
    panels = {PAPER_LOSSES.get(name, name): (known[name].proxies_per_class, dependences[name]) for name in dependences}
    header = ["loss", "kind", "embedding", "proxy_class", "score", "dependence"]
    written = write_figure(draw_gradients(panels, labels), stem, header, numbers)
    return Analysis(summary=[table], written=written, figures=dependences)


def _counts(dependence: Tensor) -> list[str]:
    """Count the positive and negative scores with a dependence, of embedding 0 and then of the others."""
    positive, first = one_hot(torch.tensor(LABELS)).bool(), torch.arange(len(LABELS)).unsqueeze(1) == 0
    enters = dependence > THRESHOLD
    return [
        f"{int((enters & mask).sum())} of {int(mask.sum())}"
        for mask in (first & positive, first & ~positive, ~first & positive, ~first & ~positive)
    ]
