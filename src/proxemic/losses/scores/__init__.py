"""Core of every proxy loss: similarities, pooling, the streamed log-sum-exp, regularisers, sampling of classes."""

from proxemic.losses.scores.pooling import MaxPooling, MeanPooling, Pooling, SoftmaxPooling
from proxemic.losses.scores.regularizers import CenterRegularizer, MeanProxyNorm, Regularizer
from proxemic.losses.scores.sampling import SampledClasses, SamplingWeights
from proxemic.losses.scores.scoring import Scoring, dense_scores
from proxemic.losses.scores.similarity import Cosine, Euclidean, InnerProduct, Similarity
from proxemic.losses.scores.streaming import streamed_scores

__all__ = [
    "CenterRegularizer",
    "Cosine",
    "Euclidean",
    "InnerProduct",
    "MaxPooling",
    "MeanPooling",
    "MeanProxyNorm",
    "Pooling",
    "Regularizer",
    "SampledClasses",
    "SamplingWeights",
    "Scoring",
    "Similarity",
    "SoftmaxPooling",
    "dense_scores",
    "streamed_scores",
]
