"""Judge embeddings: neighbours, ranking, clustering, proxies, verification, and how sure any of it is."""

from proxemic.metrics.clustering import ClusteringMetrics as ClusteringMetrics
from proxemic.metrics.clustering import adjusted_mutual_information as adjusted_mutual_information
from proxemic.metrics.clustering import clustering_metrics as clustering_metrics
from proxemic.metrics.clustering import normalized_mutual_information as normalized_mutual_information
from proxemic.metrics.confidence import Interval as Interval
from proxemic.metrics.confidence import PairedDifference as PairedDifference
from proxemic.metrics.confidence import bootstrap_intervals as bootstrap_intervals
from proxemic.metrics.confidence import bootstrap_statistic as bootstrap_statistic
from proxemic.metrics.confidence import paired_differences as paired_differences
from proxemic.metrics.neighbours import nearest_neighbours as nearest_neighbours
from proxemic.metrics.proxies import average_distance_to_proxy as average_distance_to_proxy
from proxemic.metrics.proxies import proxy_accuracy as proxy_accuracy
from proxemic.metrics.results import RetrievalMetrics as RetrievalMetrics
from proxemic.metrics.retrieval import retrieval_metrics as retrieval_metrics
from proxemic.metrics.verification import OperatingPoint as OperatingPoint
from proxemic.metrics.verification import OperatingPoints as OperatingPoints
from proxemic.metrics.verification import VerificationAccuracy as VerificationAccuracy
from proxemic.metrics.verification import VerificationMetrics as VerificationMetrics
from proxemic.metrics.verification import best_threshold as best_threshold
from proxemic.metrics.verification import equal_error_rate as equal_error_rate
from proxemic.metrics.verification import pair_distances as pair_distances
from proxemic.metrics.verification import roc_auc as roc_auc
from proxemic.metrics.verification import tar_at_far as tar_at_far
from proxemic.metrics.verification import verification_accuracy as verification_accuracy
from proxemic.metrics.verification import verification_metrics as verification_metrics
