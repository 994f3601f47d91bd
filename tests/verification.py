"""The accuracy of pairs by its definition, in float64."""

import numpy as np


def by_definition(
    embeddings: np.ndarray, first: np.ndarray, second: np.ndarray, same: np.ndarray, folds: np.ndarray, distance: str
) -> list[float]:
    """The accuracy of each fold, by the smallest of the thresholds that are best on the others."""
    one, other = embeddings.astype(np.float64)[first], embeddings.astype(np.float64)[second]
    if distance == "cosine":
        one, other = (value / np.linalg.norm(value, axis=1, keepdims=True) for value in (one, other))
    distances = np.linalg.norm(one - other, axis=1)
    accuracies = []
    for fold in np.unique(folds):
        tested = folds == fold
        thresholds = np.unique(distances[~tested])
        thresholds = np.concatenate([[-1.0], (thresholds[:-1] + thresholds[1:]) / 2, thresholds[-1:]])
        right = [((distances[~tested] <= threshold) == same[~tested]).mean() for threshold in thresholds]
        accuracies.append(float(((distances[tested] <= thresholds[int(np.argmax(right))]) == same[tested]).mean()))
    return accuracies
