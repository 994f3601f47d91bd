"""Images, class-disjoint splits, samplers and transforms."""

from proxemic.extras import extra

with extra("train"):
    from proxemic.data.benchmarks import CUB200, Cars196, FashionMNIST, InShop, StanfordOnlineProducts
    from proxemic.data.corruptions import CORRUPTIONS, SEVERITIES, CorruptedPixels, Corruption
    from proxemic.data.digits import Digits
    from proxemic.data.embedding_dataset import EmbeddingDataset
    from proxemic.data.embedding_files import (
        LabelledEmbeddings,
        check_embedding_name,
        read_embeddings,
        write_embeddings,
    )
    from proxemic.data.face_packs import EncodedPixels, read_face_pack
    from proxemic.data.face_pairs import FacePairs, read_lfw_pairs
    from proxemic.data.faces import FaceFolders, RecordFaces
    from proxemic.data.folds import Fold
    from proxemic.data.glyphs import FACES, Glyphs
    from proxemic.data.image_cache import CacheConfig, cache_images, cache_splits
    from proxemic.data.image_folder import OwnImages
    from proxemic.data.images import ImageSet, ImageSource, Splits
    from proxemic.data.omniglot import Omniglot
    from proxemic.data.pixel_cache import CachedPixels
    from proxemic.data.pixels import ArrayPixels, FilePixels, Pixels
    from proxemic.data.query_gallery import join_query_gallery, load_query_gallery
    from proxemic.data.reading import Picture, UnreadableImageError, read_image
    from proxemic.data.record_file import RecordPixels
    from proxemic.data.report import DatasetReport, check
    from proxemic.data.row_groups import RowGroups
    from proxemic.data.row_labels import RowLabels, read_labels
    from proxemic.data.samplers import (
        Batches,
        CategoryBalancedBatches,
        ClassBalancedBatches,
        RandomBatches,
        SeededBatches,
    )
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
