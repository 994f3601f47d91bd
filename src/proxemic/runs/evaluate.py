"""The settings of an evaluation, and the retrieval metrics of embeddings."""

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, Literal

import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor, nn

from proxemic.data import ImageSet
from proxemic.errors import UserError, UserNote
from proxemic.metrics import Distance, RetrievalMetrics, RetrievalResults, retrieval_metrics
from proxemic.metrics.ranking import Divisor, map_at_k_name
from proxemic.metrics.retrieval import NoMatches
from proxemic.ranges import check_fields
from proxemic.runs.precision import EvaluationPrecision

Metric = nn.Module | Callable[..., Mapping[str, float]]


@dataclass(frozen=True)
class EvaluationConfig:
    """How embeddings are evaluated in validation and test.

    Args:
        distance: Distance between embeddings: cosine or euclidean.
        recall_at: K of Recall@K.
        precision_at: k of Precision@k.
        map_at: k of MAP@k.
        map_divisors: The divisors of each MAP@k: ``min`` (the smaller of k and R, the number of relevant images),
            ``k``, ``hits`` or ``R``; results of all but the first are named after it, such as ``map_over_k@10``.
        ndcg_at: k of nDCG@k.
        map: Whether to compute the mean average precision over the whole ranking; with many images this takes several
            times as long.
        mrr: Whether to compute the mean reciprocal rank of the first relevant image.
        nmi: Whether to cluster by k-means, for NMI and AMI; slow with many images and classes.
        average: How to average values: over queries, or over classes (the mean of each class's mean).
        metric: Name of the metric for model selection: the epoch with the largest value is kept.
        select_on: Images on which the epoch is selected: ``validation`` classes held out from training, or the ``test``
            classes (only to match papers that do so; the results say so). ``last`` keeps the last epoch.
        start: Whether to evaluate the pooled features of the network before training. If no epoch is better on the
            images of `select_on`, the network before training is then kept, with or without its new head.
        untrained: Whether to evaluate the network before training, with its new head, on the test classes to compare.
        batch_size: Images per batch when embedding.
        precision: The precision in which the network embeds validation and test images: 32-true, as in all commands
            that use the finished model, or bf16-mixed, which may be faster; the results then say so.
        own_metrics: Functions or modules of your own, from the embeddings ``[N, D]`` and labels ``[N]`` of all images
            to a mapping of names to numbers, which are added to the metrics. ``metric`` may name one of them if larger
            values are better.

    Raises:
        ValueError: If ``metric`` is not among those computed, or a number is below 1.
    """

    distance: Literal["cosine", "euclidean"] = "cosine"
    recall_at: Sequence[int] = (1, 2, 4, 8)
    precision_at: Sequence[int] = ()
    map_at: Sequence[int] = ()
    map_divisors: Sequence[Divisor] = ("min",)
    ndcg_at: Sequence[int] = (8,)
    map: bool = False
    mrr: bool = False
    nmi: bool = False
    average: Literal["queries", "classes"] = "queries"
    metric: str = "map@r"
    select_on: Literal["validation", "test", "last"] = "validation"
    start: bool = True
    untrained: bool = True
    batch_size: int = 256
    precision: EvaluationPrecision = "32-true"
    own_metrics: list[Metric] | None = None

    def __post_init__(self) -> None:
        check_fields(self, "evaluation", batch_size=f"[1, {2**31})")
        if self.metric not in self.names and not self.own_metrics:  # their names are known after the first computation
            raise ValueError(f"evaluation.metric is {self.metric!r}, but these are computed: {', '.join(self.names)}.")
        if any(k < 1 for ks in (self.recall_at, self.precision_at, self.map_at, self.ndcg_at) for k in ks):
            raise ValueError(
                "evaluation's recall_at, precision_at, map_at and ndcg_at count neighbours: use 1 or more."
            )

    @property
    def names(self) -> list[str]:
        """The names of the retrieval metrics, any of which may select the epoch."""
        at = {
            "recall": self.recall_at,
            "precision": self.precision_at,
            **{map_at_k_name(divisor): self.map_at for divisor in self.map_divisors},
            "ndcg": self.ndcg_at,
        }
        whole = [name for name in ("map", "mrr") if getattr(self, name)]
        return ["map@r", "r_precision", *whole, *(f"{name}@{k}" for name, ks in at.items() for k in ks)]


def results_of(
    embeddings: Float[Tensor, "rows dim"], images: ImageSet, distance: Distance, k: int = 10
) -> RetrievalResults:
    """Search all embeddings in all, or queries in the gallery; hits of the query's own sequence are left out."""
    roles = (images.is_query, images.is_gallery, images.sequences, images.categories, images.category_names)
    return RetrievalResults(embeddings, images.labels, *roles, distance, k)


def evaluate_embeddings(
    embeddings: Float[Tensor, "rows dim"],
    images: ImageSet,
    config: EvaluationConfig,
    *,
    or_nan: bool = False,
    rerank: bool = False,
) -> RetrievalMetrics:
    """Compute retrieval metrics of the search of `results_of`.

    If no query has a match, raise ``ValueError``; with ``or_nan``, warn and return NaN instead.
    """
    if len(images) and not images.class_names:
        raise ValueError("the embeddings have no labels to evaluate them by: give them with --labels FILE.")
    if (images.labels < 0).any():
        row = int(images.labels.argmin()) + 1
        raise ValueError(f"row {row:,} has no label to evaluate it by: leave out such rows, or give --labels FILE.")
    results = results_of(embeddings, images, config.distance)
    settings: dict[str, Any] = {key: value for key, value in asdict(config).items() if key in _METRIC_KEYWORDS}
    settings |= {"rerank": rerank}
    roles = results.roles
    metrics = retrieval_metrics_or_nan(roles, settings) if or_nan else retrieval_metrics(**roles, **settings)
    metrics.update(compute_own_metrics(config, results.embeddings, results.labels))
    return metrics


@torch.no_grad()
def compute_own_metrics(
    config: EvaluationConfig, embeddings: Float[Tensor, "rows dim"], labels: Int64[Tensor, " rows"]
) -> dict[str, float]:
    """Compute all ``own_metrics`` with a fixed random state, which is restored afterwards."""
    computed: dict[str, float] = {}
    for metric in config.own_metrics or []:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            values = metric(embeddings, labels)
        name = getattr(metric, "__name__", type(metric).__name__)
        if not isinstance(values, Mapping):
            raise UserError(
                f"evaluation.own_metrics has {name}, which gives {type(values).__name__}, but must give a mapping of "
                "names to numbers."
            )
        for key, value in values.items():
            if not isinstance(key, str) or key in {*computed, *config.names, *_TAKEN}:
                raise UserError(
                    f"evaluation.own_metrics has {name}, which names a value {key!r}, but must give each value a name "
                    "that no other metric has."
                )
            if not isinstance(value, Real) and not (isinstance(value, Tensor) and value.numel() == 1):
                raise UserError(f"evaluation.own_metrics has {name}, whose {key} is {value!r}, but must be a number.")
            computed[key] = float(value)
    return computed


def check_own_metrics(config: EvaluationConfig) -> None:
    """Compute all ``own_metrics`` of a few random embeddings, to find errors before training."""
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.nn.functional.normalize(torch.randn(64, 16, generator=generator))
    names = [*config.names, *compute_own_metrics(config, embeddings, torch.arange(64) // 8)]
    if config.metric not in names:
        raise UserError(f"evaluation.metric is {config.metric!r}, but these are computed: {', '.join(names)}.")


def retrieval_metrics_or_nan(roles: Mapping[str, Any], settings: Mapping[str, Any]) -> RetrievalMetrics:
    """Return `RetrievalResults.roles`; if no query has a match, warn and return NaN for each metric."""
    try:
        if not len(roles["queries"]) or not len(roles.get("gallery", roles["queries"])):
            raise NoMatches("there are no queries or there is no gallery")
        return retrieval_metrics(**roles, **settings)
    except NoMatches as error:
        if not dist.is_initialized() or dist.get_rank() == 0:
            warnings.warn(f"the retrieval metrics are NaN, as {error}", UserNote, stacklevel=3)
    names = retrieval_metrics(torch.eye(2)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1]), **settings)
    labels = roles["query_labels"].cpu()
    unknown = dict.fromkeys(names.per_query, torch.full(labels.shape, math.nan, dtype=torch.float64))
    values = dict.fromkeys(names, math.nan)
    return RetrievalMetrics(
        values, per_query=unknown, labels=labels, average=names.average, chance=values, expected=unknown
    )


_METRIC_KEYWORDS = set(inspect.signature(retrieval_metrics).parameters)
# Other columns of the history.
_TAKEN = ("nmi", "nmi_geometric", "ami", "epoch", "step", "loss", "seconds", "phase")
