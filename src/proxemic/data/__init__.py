"""Labelled images: load them, split them by class, batch them, and turn them into tensors.

An `ImageSource` loads `Splits` of `ImageSet`s. `EmbeddingDataset` turns images into tensors by `Preprocessing` and
`Augmentation`; `Batches` set the order. Modules: `pixels` (stores of images), `reading` (one image), `vectors`
(vectors instead of images), `rows` (both with their metadata), `embeddings` (files of vectors), `faces` (pairs to
verify), `corruptions`. Sub-packages: `sources` (folders, tables and data sets without a download), `benchmarks`
(published data sets), `formats` (file formats).
"""

from typing import TYPE_CHECKING

from proxemic.extras import optional_dependency
from proxemic.lazy import lazy_names

with optional_dependency("train"):  # so that without the extra each module below is one sentence
    import PIL  # noqa: F401
    import pyarrow  # noqa: F401
    import tqdm  # noqa: F401

if TYPE_CHECKING:
    from proxemic.data.benchmarks import CUB200, Cars196, FashionMNIST, InShop, Omniglot, StanfordOnlineProducts
    from proxemic.data.cache import CacheConfig
    from proxemic.data.corruptions import CORRUPTIONS, SEVERITIES, CorruptedPixels, Corruption
    from proxemic.data.dataset import EmbeddingDataset
    from proxemic.data.embeddings import (
        open_rows,
        read_embeddings,
        read_labels,
        write_embeddings,
    )
    from proxemic.data.faces import (
        VERIFICATION_SETS,
        FacePairs,
        read_face_pack,
        read_lfw_pairs,
        read_own_pairs,
        read_verification_set,
    )
    from proxemic.data.images import ImageSet, ImageSource, Splits
    from proxemic.data.pixels import ArrayPixels, FilePixels, Pixels
    from proxemic.data.reading import ImageInput, UnreadableImageError, read_image
    from proxemic.data.rows import Rows
    from proxemic.data.samplers import (
        Batches,
        CategoryBalancedBatches,
        ClassBalancedBatches,
        RandomBatches,
        derive_seed,
    )
    from proxemic.data.sources import (
        Digits,
        Fold,
        GlyphLetters,
        Glyphs,
        HuggingFaceDataset,
        OwnImages,
        OwnVectors,
    )
    from proxemic.data.sources.faces import FaceFolders, RecordFaces
    from proxemic.data.splits import split_classes
    from proxemic.data.transforms import Augmentation, Preprocessing
    from proxemic.data.vectors import UnreadableVectorsError, VectorArray, VectorAugmentation, VectorFile, Vectors

__all__ = [
    "CORRUPTIONS",
    "CUB200",
    "SEVERITIES",
    "VERIFICATION_SETS",
    "ArrayPixels",
    "Augmentation",
    "Batches",
    "CacheConfig",
    "Cars196",
    "CategoryBalancedBatches",
    "ClassBalancedBatches",
    "CorruptedPixels",
    "Corruption",
    "Digits",
    "EmbeddingDataset",
    "FaceFolders",
    "FacePairs",
    "FashionMNIST",
    "FilePixels",
    "Fold",
    "GlyphLetters",
    "Glyphs",
    "HuggingFaceDataset",
    "ImageInput",
    "ImageSet",
    "ImageSource",
    "InShop",
    "Omniglot",
    "OwnImages",
    "OwnVectors",
    "Pixels",
    "Preprocessing",
    "RandomBatches",
    "RecordFaces",
    "Rows",
    "Splits",
    "StanfordOnlineProducts",
    "UnreadableImageError",
    "UnreadableVectorsError",
    "VectorArray",
    "VectorAugmentation",
    "VectorFile",
    "Vectors",
    "derive_seed",
    "open_rows",
    "read_embeddings",
    "read_face_pack",
    "read_image",
    "read_labels",
    "read_lfw_pairs",
    "read_own_pairs",
    "read_verification_set",
    "split_classes",
    "write_embeddings",
]

__getattr__, __dir__ = lazy_names(__name__)
