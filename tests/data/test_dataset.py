import numpy as np
import torch
from torch.utils.data import DataLoader

from proxemic.data import ArrayPixels, Augmentation, EmbeddingDataset, ImageSet, Preprocessing, RandomBatches
from proxemic.data.samplers import SeededBatches

PREPROCESSING = Preprocessing(size=16, resize=None, channels=1, mean=(0.5,), std=(0.5,))
AUGMENTATION = Augmentation(degrees=20.0, translate=0.2, noise=0.1)


def dataset() -> EmbeddingDataset:
    array = np.random.default_rng(0).integers(0, 255, (12, 16, 16), dtype=np.uint8)
    images = ImageSet.from_names(ArrayPixels(array), list("abcabcabcabc"))
    return EmbeddingDataset(images, AUGMENTATION.training(PREPROCESSING))


def test_an_image_is_a_function_of_index_and_seed() -> None:
    data = dataset()
    image, label = data[4, 7]
    assert label == 1
    assert torch.equal(image, data[4, 7][0])
    assert torch.equal(image, data.__getitems__([(1, 3), (4, 7)])[1][0])
    assert not torch.equal(image, data[4, 8][0])


def test_seeded_items_leave_the_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    dataset().__getitems__([(0, 1), (1, 2)])
    assert torch.equal(before, torch.get_rng_state())


def test_a_plain_index_draws_from_the_generator() -> None:
    data = dataset()
    assert not torch.equal(data[0][0], data[0][0])


def test_workers_change_nothing() -> None:
    def batches(workers: int) -> list[list[torch.Tensor]]:
        sampler = SeededBatches(RandomBatches(12, batch_size=4, seed=1), seed=2)
        return list(DataLoader(dataset(), batch_sampler=sampler, num_workers=workers))

    alone, helped = batches(0), batches(2)
    assert len(alone) == len(helped) == 3
    for (image, label), (other_image, other_label) in zip(alone, helped, strict=True):
        assert torch.equal(image, other_image)
        assert torch.equal(label, other_label)
        assert label.dtype == torch.int64
