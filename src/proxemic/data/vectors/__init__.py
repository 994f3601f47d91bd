"""Vectors in the place of images: rows of floats that a model has made before, of any modality.

`Vectors` is the store of an `ImageSet` whose inputs are vectors: `VectorFile` reads the rows of a batch from a file,
`VectorArray` holds all of them in memory, `JoinedVectors` reads two sets as one. `VectorAugmentation` says how training
vectors are varied.
"""

from proxemic.data.vectors.augmentation import VectorAugmentation
from proxemic.data.vectors.stores import (
    FloatType,
    JoinedVectors,
    UnreadableVectorsError,
    VectorArray,
    VectorFile,
    VectorReader,
    Vectors,
)

__all__ = [
    "FloatType",
    "JoinedVectors",
    "UnreadableVectorsError",
    "VectorArray",
    "VectorAugmentation",
    "VectorFile",
    "VectorReader",
    "Vectors",
]
