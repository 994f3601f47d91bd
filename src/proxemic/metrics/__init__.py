"""Judge embeddings: exact nearest neighbours, ranking metrics, clustering."""

from proxemic.metrics.clustering import normalized_mutual_information as normalized_mutual_information
from proxemic.metrics.neighbours import nearest_neighbours as nearest_neighbours
from proxemic.metrics.retrieval import RetrievalMetrics as RetrievalMetrics
from proxemic.metrics.retrieval import retrieval_metrics as retrieval_metrics
