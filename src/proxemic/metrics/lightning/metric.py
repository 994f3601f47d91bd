"""Retrieval metrics over batches and processes, for torchmetrics and Lightning."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from proxemic.distributed.gather import gather_uneven
from proxemic.metrics import RetrievalMetrics, RetrievalResults, retrieval_metrics
from proxemic.metrics.arrays import as_integers
from proxemic.metrics.confidence import AveragedOver
from proxemic.metrics.exact import Distance
from proxemic.metrics.ranking import Divisor
from proxemic.runs.evaluate import retrieval_metrics_or_nan

_STATES = ("embeddings", "labels", "indexes", "is_query", "is_gallery", "sequences")


class RetrievalMetric(Metric):
    """Computes `retrieval_metrics` of embeddings that come in batches, on any number of processes.

    Every process adds its own samples by ``update``; ``compute`` gathers them and returns on each process exactly the
    value that a single process with all samples would return. Processes may hold different numbers of samples, or none
    at all. Samplers such as `torch.utils.data.DistributedSampler`, which Lightning uses for validation, repeat some
    samples to give each process equally many: pass ``indexes``, by which repeats are dropped.

    Calling the metric is the same as calling ``update``; no batch is evaluated alone.

    The arguments up to ``average`` are those of `retrieval_metrics`.

    Args:
        compute_on_cpu: Keep what is collected in main memory, and compute there.
        process_group: The processes to gather from; None for all.

    Attributes:
        latest: The last result of ``compute``, as `RetrievalMetrics`, with the numbers of queries used and left out;
            None before it and after ``reset``.

    Raises:
        ValueError: If a setting is not allowed.

    >>> metric = RetrievalMetric(recall_at=(1,))
    >>> metric.update(torch.tensor([[1.0, 0.0], [0.9, 0.1]]), torch.tensor([0, 0]), torch.tensor([0, 1]))
    >>> metric.update(torch.tensor([[0.0, 1.0], [0.6, 0.4]]), torch.tensor([1, 1]), torch.tensor([2, 3]))
    >>> metric.update(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.tensor([0]))  # again: not counted
    >>> {name: value.item() for name, value in metric.compute().items()}
    {'recall@1': 0.75, 'map@r': 0.75, 'r_precision': 0.75}
    >>> metric.latest.queries
    4
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    embeddings: list[Tensor]

    def __init__(
        self,
        *,
        distance: Distance = "cosine",
        recall_at: Sequence[int] = (1, 2, 4, 8),
        precision_at: Sequence[int] = (),
        map_at: Sequence[int] = (),
        map_divisors: Sequence[Divisor] = ("min",),
        ndcg_at: Sequence[int] = (),
        map: bool = False,  # noqa: A002
        mrr: bool = False,
        nmi: bool = False,
        average: AveragedOver = "queries",
        compute_on_cpu: bool = False,
        process_group: Any | None = None,
    ) -> None:
        super().__init__(compute_on_cpu=compute_on_cpu, process_group=process_group, dist_sync_fn=gather_uneven)
        self.settings: dict[str, Any] = {
            "distance": distance, "recall_at": recall_at, "precision_at": precision_at, "map_at": map_at,
            "map_divisors": map_divisors, "ndcg_at": ndcg_at, "map": map, "mrr": mrr, "nmi": nmi, "average": average,
        }  # fmt: skip
        # Refuses wrong settings here rather than after an epoch.
        retrieval_metrics(torch.eye(2)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1]), **self.settings)
        for name in _STATES:
            self.add_state(name, [], dist_reduce_fx="cat")
        self.latest: RetrievalMetrics | None = None

    def update(
        self,
        embeddings: Float[Tensor, "batch dim"],
        labels: Shaped[Tensor, " batch"],
        indexes: Shaped[Tensor, " batch"] | None = None,
        is_query: Bool[Tensor, " batch"] | None = None,
        is_gallery: Bool[Tensor, " batch"] | None = None,
        sequences: Shaped[Tensor, " batch"] | None = None,
    ) -> None:
        """Add a batch; embeddings are kept as float32.

        Args:
            embeddings: One embedding per sample.
            labels: One integer per sample.
            indexes: The index of each sample in its data set, from 0; None if no sample comes twice.
            is_query: Whether a sample is a query; None if all are.
            is_gallery: Whether a sample is in the gallery; None if all are.
            sequences: The number of each sample's sequence, the same on all processes, or below 0 for none: a query is
                not compared with gallery items of its own sequence. None if there are no sequences.

        Raises:
            ValueError: If the parts do not fit together or to earlier batches.
        """
        if embeddings.ndim != 2 or not embeddings.is_floating_point():
            raise ValueError(
                f"embeddings has {embeddings.dtype} and shape {list(embeddings.shape)}, but must be floats [batch, dim]"
            )
        if self.embeddings and self.embeddings[0].shape[1] != embeddings.shape[1]:
            raise ValueError(
                f"embeddings has {embeddings.shape[1]} dimensions, but earlier batches {self.embeddings[0].shape[1]}; "
                "call reset() before evaluating another model"
            )
        rows, device = len(embeddings), embeddings.device
        parts = {"labels": as_integers("labels", labels, rows)}
        for name, numbers in (("indexes", indexes), ("sequences", sequences)):
            parts[name] = torch.full((rows,), -1) if numbers is None else as_integers(name, numbers, rows)
        for name, flags in (("is_query", is_query), ("is_gallery", is_gallery)):
            parts[name] = part = torch.ones(rows, dtype=torch.bool) if flags is None else flags
            if part.shape != (rows,) or part.dtype != torch.bool:
                raise ValueError(f"{name} has {part.dtype} and shape {list(part.shape)}, not bool [{rows}]")
        if indexes is not None and bool((indexes < 0).any()):
            raise ValueError("indexes holds numbers below 0, but they count the samples of a data set from 0")
        # A copy: a model may write its next output over this one.
        self.embeddings.append(embeddings.detach().to(torch.float32, copy=True))
        for name, part in parts.items():
            getattr(self, name).append(part.to(device, copy=True))

    def forward(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch, as ``update`` does; torchmetrics would also evaluate the batch alone."""
        # In a collection, metrics with the same samples share their lists, but each of them is called.
        for name in _STATES:
            setattr(self, name, list(getattr(self, name)))
        self.update(*args, **kwargs)

    def reset(self) -> None:
        """Remove all samples and the last result."""
        super().reset()
        self.latest = None

    def compute(self) -> dict[str, Tensor]:
        """Evaluate the samples of all processes.

        Returns:
            The values of `retrieval_metrics` as float64 scalars on the CPU. If no query has a match, as in Lightning's
            sanity check or with ``fast_dev_run`` or ``limit_val_batches``, they are NaN, with a warning.

        Raises:
            ValueError: If there is nothing to evaluate, some batches have indexes and others none, or an index has two
                labels; and as `retrieval_metrics`.
        """
        if not len(self.embeddings):
            raise ValueError("there is nothing to evaluate; call update() with embeddings and labels first")
        rows: dict[str, Any] = {name: dim_zero_cat(getattr(self, name)) for name in _STATES}
        indexes = rows.pop("indexes")
        if bool((indexes >= 0).any()):
            kept = _first_of_each(indexes, rows["labels"])
            rows = {name: part[kept] for name, part in rows.items()}
        self.latest = retrieval_metrics_or_nan(RetrievalResults(**rows).roles, self.settings)
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in self.latest.items()}

    def _apply(self, fn: Any, exclude_state: Sequence[str] = "") -> "RetrievalMetric":
        # Moves follow the module; conversions (`.half()`, `.to(torch.bfloat16)`) would lose digits and labels.
        super()._apply(lambda part: part.to(fn(part.new_empty(0)).device), exclude_state)
        return self


def _first_of_each(indexes: Int64[Tensor, " samples"], labels: Int64[Tensor, " samples"]) -> Int64[Tensor, " kept"]:
    if bool((indexes < 0).any()):
        raise ValueError("indexes were given with some batches but not with all; give them always or never")
    order = indexes.argsort(stable=True)
    again = indexes[order][1:] == indexes[order][:-1]
    if bool((again & (labels[order][1:] != labels[order][:-1])).any()):
        raise ValueError(
            "an index came with two labels; number the samples of all data sets apart, and reset() between"
        )
    return torch.cat([order[:1], order[1:][~again]])
