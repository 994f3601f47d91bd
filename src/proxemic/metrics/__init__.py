"""Evaluate embeddings: neighbours, ranking, clustering, proxies, verification, open sets, confidence intervals."""

from typing import TYPE_CHECKING

from proxemic.lazy import lazy_names
from proxemic.metrics.clustering import (
    ClusteringMetrics,
    PartitionAgreement,
    adjusted_mutual_information,
    clustering_metrics,
    kmeans_clusters,
    normalized_mutual_information,
    partition_agreement,
)
from proxemic.metrics.confidence import (
    FEWEST_CLASSES,
    MOST_RESAMPLES,
    Interval,
    PairedDifference,
    bootstrap_intervals,
    bootstrap_statistic,
    paired_differences,
)
from proxemic.metrics.exact import Distance
from proxemic.metrics.neighbours import nearest_neighbours
from proxemic.metrics.open_set import OpenSetIdentification, OpenSetPoint, open_set_identification
from proxemic.metrics.proxies import average_distance_to_proxy, class_distances_to_proxy, proxy_accuracy, proxy_hits
from proxemic.metrics.ranking import (
    Divisor,
    map_at_k,
    map_at_r,
    mrr,
    ndcg_at_k,
    precision_at_k,
    r_precision,
    recall_at_k,
)
from proxemic.metrics.reranking import expand_queries, k_reciprocal_distances
from proxemic.metrics.results import RetrievalMetrics
from proxemic.metrics.retrieval import retrieval_metrics
from proxemic.metrics.retrieval_results import RetrievalResults
from proxemic.metrics.verification import (
    OperatingPoint,
    OperatingPoints,
    VerificationAccuracy,
    VerificationMetrics,
    best_threshold,
    equal_error_rate,
    pair_distances,
    roc_auc,
    tar_at_far,
    verification_accuracy,
    verification_metrics,
)

if TYPE_CHECKING:  # for Lightning, which takes seconds to import
    from proxemic.metrics.lightning.callback import RetrievalCallback
    from proxemic.metrics.lightning.metric import RetrievalMetric

__all__ = [
    "FEWEST_CLASSES",
    "MOST_RESAMPLES",
    "ClusteringMetrics",
    "Distance",
    "Divisor",
    "Interval",
    "OpenSetIdentification",
    "OpenSetPoint",
    "OperatingPoint",
    "OperatingPoints",
    "PairedDifference",
    "PartitionAgreement",
    "RetrievalCallback",
    "RetrievalMetric",
    "RetrievalMetrics",
    "RetrievalResults",
    "VerificationAccuracy",
    "VerificationMetrics",
    "adjusted_mutual_information",
    "average_distance_to_proxy",
    "best_threshold",
    "bootstrap_intervals",
    "bootstrap_statistic",
    "class_distances_to_proxy",
    "clustering_metrics",
    "equal_error_rate",
    "expand_queries",
    "k_reciprocal_distances",
    "kmeans_clusters",
    "map_at_k",
    "map_at_r",
    "mrr",
    "ndcg_at_k",
    "nearest_neighbours",
    "normalized_mutual_information",
    "open_set_identification",
    "pair_distances",
    "paired_differences",
    "partition_agreement",
    "precision_at_k",
    "proxy_accuracy",
    "proxy_hits",
    "r_precision",
    "recall_at_k",
    "retrieval_metrics",
    "roc_auc",
    "tar_at_far",
    "verification_accuracy",
    "verification_metrics",
]

__getattr__, __dir__ = lazy_names(__name__, extra="lightning")
