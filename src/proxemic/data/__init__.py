"""Images, class-disjoint splits, samplers and transforms."""

from proxemic.extras import extra

with extra("train"):
    from proxemic.data.embedding_dataset import EmbeddingDataset
    from proxemic.data.glyphs import FACES, Glyphs
    from proxemic.data.image_folder import OwnImages
    from proxemic.data.images import ImageSet, ImageSource, Splits
    from proxemic.data.omniglot import Omniglot
    from proxemic.data.pixels import ArrayPixels, FilePixels, Pixels, UnreadableImageError
    from proxemic.data.report import DatasetReport, check
    from proxemic.data.samplers import Batches, ClassBalancedBatches, RandomBatches, SeededBatches
    from proxemic.data.splits import split_classes
    from proxemic.data.transforms import Augmentation, Preprocessing

__all__ = [
    "FACES",
    "ArrayPixels",
    "Augmentation",
    "Batches",
    "ClassBalancedBatches",
    "DatasetReport",
    "EmbeddingDataset",
    "FilePixels",
    "Glyphs",
    "ImageSet",
    "ImageSource",
    "Omniglot",
    "OwnImages",
    "Pixels",
    "Preprocessing",
    "RandomBatches",
    "SeededBatches",
    "Splits",
    "UnreadableImageError",
    "check",
    "split_classes",
]
