"""The torch dataset that turns an image set into tensors."""

from array import array
from collections.abc import Callable, Iterator, Sequence

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from proxemic.data.images import ImageSet
from proxemic.data.transforms import Steps
from proxemic.data.vectors import VectorAugmentation, Vectors

Key = int | tuple[int, int]


class EmbeddingDataset(Dataset[tuple[Tensor, int]]):
    """Images as tensors with their labels, for training and for evaluation.

    A key is an index, or a pair `(index, seed)`. A seed is set in torch's generator before the transform. An augmented
    image is therefore a pure function of the pair, whatever the number of workers. The generator's state is restored
    afterwards. With an index alone, a random transform continues to draw from torch's generator.

    Args:
        images: The images, or vectors instead, which are read one batch at a time.
        transform: From a PIL image to a float tensor `[channels, height, width]`; not applied to vectors.
        vectors: Augmentation of vectors whose keys have seeds; not applied to images.
        side: `Preprocessing.reduced_side` of the transform, so that large files are decoded at a reduced scale; None
            decodes all of every file.
        bits: `Preprocessing.bits` of the transform.

    >>> import numpy as np
    >>> from proxemic.data import ArrayPixels, Preprocessing
    >>> images = ImageSet.from_names(ArrayPixels(np.zeros((2, 40, 40), dtype=np.uint8)), ["a", "b"])
    >>> preprocessing = Preprocessing(size=32, resize=None, channels=1, mean=(0.5,), std=(0.5,))
    >>> image, label = EmbeddingDataset(images, preprocessing.evaluation())[1, 99]
    >>> tuple(image.shape), label
    ((1, 32, 32), 1)
    """

    def __init__(
        self,
        images: ImageSet,
        transform: Callable[[Image.Image], Tensor],
        vectors: VectorAugmentation = VectorAugmentation(),
        side: int | None = None,
        bits: int | None = None,
    ) -> None:
        self.images = images
        self.transform = transform
        self.side, self.bits = side, bits
        self._labels = array("q", images.labels.numpy().tobytes())
        self._vary = vectors.training(images.pixels) if isinstance(images.pixels, Vectors) else None

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: Key) -> tuple[Tensor, int]:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[Key]) -> list[tuple[Tensor, int]]:
        """Fetch a batch; save and restore the generator's state once per batch."""
        indices = [key[0] if isinstance(key, tuple) else key for key in keys]
        labels = [self._labels[index] for index in indices]
        if isinstance(self.images.pixels, Vectors):
            seeds = [key[1] for key in keys if isinstance(key, tuple)]
            batch = self._vary(indices, seeds) if self._vary and seeds else self.images.pixels.fetch(indices)
            return [*zip(batch, labels, strict=True)]
        # devices=[]: a worker must not wake the GPU, and transforms of PIL images draw on the CPU alone.
        with torch.random.fork_rng(devices=[], enabled=any(isinstance(key, tuple) for key in keys)):
            images = self._seed_and_load(keys)
            transform = self.transform
            tensors = transform.batch(images) if isinstance(transform, Steps) else [*map(transform, images)]
        return [*zip(tensors, labels, strict=True)]

    def _seed_and_load(self, keys: Sequence[Key]) -> Iterator[Image.Image]:
        """Set the seed of each image just before it is transformed."""
        pictures = self.images.pictures
        for key in keys:
            if isinstance(key, tuple):
                index, seed = key
                torch.default_generator.manual_seed(seed)
            else:
                index = key
            yield pictures.load(index, self.side, self.bits)
