"""Labelled images: where they come from, how they are split by class, batched, and turned into tensors.

An `ImageSource` loads `Splits` of `ImageSet`s; `EmbeddingDataset` gives their images as tensors, as `Preprocessing` and
`Augmentation` say, in the order of `Batches`. Sub-packages: `sources` (folders, tables and sets without a download),
`benchmarks` (published data sets), `faces` (training sets and pairs), `pixels` (where images lie until they are
needed), `vectors` (vectors in the place of images), `corruptions`, and `embeddings` (files of embeddings with what is
known of their rows).
"""

from proxemic.extras import optional_dependency

with optional_dependency("train"):
    from proxemic.data.benchmarks import CUB200, Cars196, FashionMNIST, InShop, Omniglot, StanfordOnlineProducts
    from proxemic.data.dataset import EmbeddingDataset
    from proxemic.data.faces import FaceFolders, RecordFaces
    from proxemic.data.image_cache import CacheConfig
    from proxemic.data.images import ImageSet, ImageSource, Splits
    from proxemic.data.pixels import ArrayPixels, FilePixels, read_image
    from proxemic.data.rows import RowGroups, Rows
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
        WebDatasetShards,
    )
    from proxemic.data.splits import split_classes
    from proxemic.data.transforms import Augmentation, Preprocessing
    from proxemic.data.vectors import VectorAugmentation

__all__ = [
    "CUB200",
    "ArrayPixels",
    "Augmentation",
    "Batches",
    "CacheConfig",
    "Cars196",
    "CategoryBalancedBatches",
    "ClassBalancedBatches",
    "Digits",
    "EmbeddingDataset",
    "FaceFolders",
    "FashionMNIST",
    "FilePixels",
    "Fold",
    "GlyphLetters",
    "Glyphs",
    "HuggingFaceDataset",
    "ImageSet",
    "ImageSource",
    "InShop",
    "Omniglot",
    "OwnImages",
    "OwnVectors",
    "Preprocessing",
    "RandomBatches",
    "RecordFaces",
    "RowGroups",
    "Rows",
    "Splits",
    "StanfordOnlineProducts",
    "VectorAugmentation",
    "WebDatasetShards",
    "derive_seed",
    "read_image",
    "split_classes",
]
