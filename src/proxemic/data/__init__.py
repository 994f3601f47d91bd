"""Images, class-disjoint splits, samplers and transforms."""

from proxemic.extras import optional_dependency

with optional_dependency("train"):
    from proxemic.data.benchmarks import CUB200, Cars196, FashionMNIST, InShop, StanfordOnlineProducts
    from proxemic.data.dataset import EmbeddingDataset
    from proxemic.data.embeddings.files import (
        LabelledEmbeddings,
        check_embedding_name,
        read_embeddings,
        write_embeddings,
    )
    from proxemic.data.embeddings.labels import RowLabels, read_labels
    from proxemic.data.faces.packs import EncodedPixels, read_face_pack
    from proxemic.data.faces.pairs import FacePairs, read_lfw_pairs
    from proxemic.data.faces.recordio import RecordPixels
    from proxemic.data.faces.sources import FaceFolders, RecordFaces
    from proxemic.data.images import ImageSet, ImageSource, Splits
    from proxemic.data.pixels.base import ArrayPixels, FilePixels, Pixels
    from proxemic.data.pixels.cache import CacheConfig, cache_images, cache_splits
    from proxemic.data.pixels.corruptions import CORRUPTIONS, SEVERITIES, CorruptedPixels, Corruption
    from proxemic.data.pixels.mapped import CachedPixels
    from proxemic.data.pixels.reading import Picture, UnreadableImageError, read_image
    from proxemic.data.row_groups import RowGroups
    from proxemic.data.samplers import (
        Batches,
        CategoryBalancedBatches,
        ClassBalancedBatches,
        RandomBatches,
        SeededBatches,
    )
    from proxemic.data.sources.check import DatasetReport, check
    from proxemic.data.sources.digits import Digits
    from proxemic.data.sources.folds import Fold
    from proxemic.data.sources.glyphs import FACES, Glyphs
    from proxemic.data.sources.image_folder import OwnImages
    from proxemic.data.sources.omniglot import Omniglot
    from proxemic.data.sources.query_gallery import join_query_gallery, load_query_gallery
    from proxemic.data.splits import split_classes
    from proxemic.data.transforms import Augmentation, Preprocessing

__all__ = [
    "CORRUPTIONS",
    "CUB200",
    "FACES",
    "SEVERITIES",
    "ArrayPixels",
    "Augmentation",
    "Batches",
    "CacheConfig",
    "CachedPixels",
    "Cars196",
    "CategoryBalancedBatches",
    "ClassBalancedBatches",
    "CorruptedPixels",
    "Corruption",
    "DatasetReport",
    "Digits",
    "EmbeddingDataset",
    "EncodedPixels",
    "FaceFolders",
    "FacePairs",
    "FashionMNIST",
    "FilePixels",
    "Fold",
    "Glyphs",
    "ImageSet",
    "ImageSource",
    "InShop",
    "LabelledEmbeddings",
    "Omniglot",
    "OwnImages",
    "Picture",
    "Pixels",
    "Preprocessing",
    "RandomBatches",
    "RecordFaces",
    "RecordPixels",
    "RowGroups",
    "RowLabels",
    "SeededBatches",
    "Splits",
    "StanfordOnlineProducts",
    "UnreadableImageError",
    "cache_images",
    "cache_splits",
    "check",
    "check_embedding_name",
    "join_query_gallery",
    "load_query_gallery",
    "read_embeddings",
    "read_face_pack",
    "read_image",
    "read_labels",
    "read_lfw_pairs",
    "split_classes",
    "write_embeddings",
]
