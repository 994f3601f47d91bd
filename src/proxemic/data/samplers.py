"""Batch samplers whose batches depend only on the seed and the epoch."""

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor
from torch.utils.data import Sampler

from proxemic.ranges import check_range


def derive_seed(*parts: int) -> int:
    """Mix integers into a seed of 63 bits, the same on every machine.

    >>> derive_seed(0, 1) == derive_seed(0, 1), derive_seed(0, 1) == derive_seed(1, 0)
    (True, False)
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class Batches(Sampler[list[int]], ABC):
    """Base class of batch samplers, which yield lists of image indices.

    The first iteration draws epoch 0, the next one epoch 1, and so on. A subclass implements `draw` and `__len__`.

    Args:
        seed: Seed of all epochs.

    Attributes:
        epoch: The epoch that the next iteration draws.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration draws, for example to resume a training."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        # A generator, because a data loader with workers makes two iterators but uses only one, which is to count.
        epoch, self.epoch = self.epoch, self.epoch + 1
        yield from self.draw(epoch)

    @abstractmethod
    def draw(self, epoch: int) -> Iterator[list[int]]:
        """Yield the batches of an epoch, which depend only on `seed` and ``epoch``."""

    @abstractmethod
    def __len__(self) -> int: ...


@runtime_checkable
class MakesBatches(Protocol):
    """Factory of the batches of a run.

    A recipe may name any subclass of `Batches`; its constructor receives the arguments below that it takes.
    """

    def __call__(
        self, labels: Tensor, num_images: int, batch_size: int, seed: int, categories: Tensor | None
    ) -> Batches: ...


class RandomBatches(Batches):
    """All images in random order, cut into batches.

    Args:
        num_images: Number of images, at least 1.
        batch_size: Images per batch, at least 1; if there are fewer images, they make one smaller batch.
        seed: Seed of the random order.
        drop_last: Leave out the images that do not fill the last batch; these differ between epochs.

    Raises:
        ValueError: If a value is out of its range.

    >>> batches = RandomBatches(10, batch_size=4, seed=0)
    >>> [len(batch) for batch in batches]
    [4, 4]
    """

    def __init__(self, num_images: int, batch_size: int, seed: int, drop_last: bool = True) -> None:
        super().__init__(seed)
        check_range("num_images", num_images, "[1, inf)")
        check_range("batch_size", batch_size, "[1, inf)")
        self.num_images = num_images
        self.batch_size = min(batch_size, num_images)
        self.drop_last = drop_last

    def draw(self, epoch: int) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
        order = torch.randperm(self.num_images, generator=generator)
        for batch in islice(order.split(self.batch_size), len(self)):
            yield batch.tolist()

    def __len__(self) -> int:
        whole, rest = divmod(self.num_images, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)


class ClassBalancedBatches(Batches):
    """The same number of images from each of a few classes.

    Classes, and the images of each class, are drawn without replacement until all were drawn, and then again. So every
    class appears about equally often, and no image of a class repeats before all its images have appeared. Only a class
    with fewer than `images_per_class` images repeats some within a batch.

    Args:
        labels: Class of each image, ``[images]`` whole numbers; may be a NumPy array or a list.
        classes_per_batch: Classes in a batch, from 1 to the number of classes.
        images_per_class: Images of each of these classes, at least 1.
        seed: Seed of the random order.
        batches_per_epoch: Batches in an epoch; None for the number that the images fill, at least 1.

    Raises:
        ValueError: If a value is out of its range.

    >>> batches = ClassBalancedBatches(torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2]), 2, 2, seed=0)
    >>> [len(batch) for batch in batches]
    [4, 4]
    """

    def __init__(
        self,
        labels: Shaped[Tensor, "..."] | Shaped[np.ndarray, "..."] | Sequence[int],
        classes_per_batch: int,
        images_per_class: int,
        seed: int,
        batches_per_epoch: int | None = None,
    ) -> None:
        super().__init__(seed)
        numbers = _one_per_image(labels)
        classes, counts = np.unique(numbers, return_counts=True)
        check_range("classes_per_batch", classes_per_batch, f"[1, {len(classes)}]")
        check_range("images_per_class", images_per_class, "[1, inf)")
        check_range("batches_per_epoch", batches_per_epoch, "[1, inf)")
        # The images of each of the sorted classes, without a Python list per class.
        self._order, self._ends = numbers.argsort(kind="stable"), [0, *counts.cumsum().tolist()]
        self.classes_per_batch = classes_per_batch
        self.images_per_class = images_per_class
        self.batches_per_epoch = batches_per_epoch or max(1, len(labels) // (classes_per_batch * images_per_class))

    def draw(self, epoch: int) -> Iterator[list[int]]:
        generator = random.Random(derive_seed(self.seed, epoch))
        # Positions in the sorted classes; they are drawn like the classes themselves.
        classes = _Deck(range(len(self._ends) - 1), generator)
        images: dict[int, _Deck] = {}  # only of drawn classes: an epoch may draw a few of a million
        for _ in range(self.batches_per_epoch):
            chosen = classes.deal(self.classes_per_batch)
            for place in chosen:
                if place not in images:
                    own = self._order[self._ends[place] : self._ends[place + 1]]
                    images[place] = _Deck(own.tolist(), generator)
            yield [index for place in chosen for index in images[place].deal(self.images_per_class)]

    def __len__(self) -> int:
        return self.batches_per_epoch


class CategoryBalancedBatches(Batches):
    """Batches with a few categories (groups of classes), equally many classes of each, and images of each class.

    Classes of one category are hard to tell apart, and small categories appear as often as large ones. Categories,
    their classes and the images of these classes are drawn as in `ClassBalancedBatches`. A category with too few
    classes repeats some within a batch. Images without a category form one more category.

    Args:
        labels: Class of each image.
        categories: Number of the category of each image: a table's column `category`; below 0 for none.
        batch_size: Images per batch: a multiple of `categories_per_batch` times `images_per_class`.
        seed: Seed of the random order.
        categories_per_batch: Categories in a batch, from 1 to their number.
        images_per_class: Images of each class, at least 1.

    Raises:
        ValueError: If there are no categories, or a number is out of its range.

    >>> categories = torch.tensor([0] * 6 + [1] * 4)
    >>> labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    >>> batches = CategoryBalancedBatches(labels, categories, 4, seed=0, categories_per_batch=1, images_per_class=2)
    >>> [len(set(labels[batch].tolist())) for batch in batches]
    [2, 2]
    """

    def __init__(
        self,
        labels: Shaped[Tensor, " images"],
        categories: Int64[Tensor, " images"] | None,
        batch_size: int,
        seed: int,
        categories_per_batch: int,
        images_per_class: int,
    ) -> None:
        super().__init__(seed)
        if categories is None:
            raise ValueError(
                "the images have no categories to balance: give data.root a table with a column category, or use "
                "batches.images_per_class."
            )
        check_range("categories_per_batch", categories_per_batch, f"[1, {len(categories.unique())}]")
        check_range("images_per_class", images_per_class, "[1, inf)")
        together = categories_per_batch * images_per_class
        if batch_size < 1 or batch_size % together:
            raise ValueError(
                f"batch_size is {batch_size}, but must be a multiple of categories_per_batch times images_per_class, "
                f"{categories_per_batch} times {images_per_class}."
            )
        self.images_of: dict[int, dict[int, list[int]]] = {}
        for index, pair in enumerate(zip(categories.tolist(), _one_per_image(labels).tolist(), strict=True)):
            self.images_of.setdefault(pair[0], {}).setdefault(pair[1], []).append(index)
        self.categories_per_batch, self.images_per_class = categories_per_batch, images_per_class
        self.classes_per_category = batch_size // together
        self.batches_per_epoch = max(1, len(labels) // batch_size)

    def draw(self, epoch: int) -> Iterator[list[int]]:
        generator = random.Random(derive_seed(self.seed, epoch))
        categories = _Deck(sorted(self.images_of), generator)
        classes = {category: _Deck(sorted(members), generator) for category, members in self.images_of.items()}
        images = {
            (category, label): _Deck(indices, generator)
            for category, members in self.images_of.items()
            for label, indices in members.items()
        }
        for _ in range(self.batches_per_epoch):
            yield [
                index
                for category in categories.deal(self.categories_per_batch)
                for label in classes[category].deal(self.classes_per_category)
                for index in images[category, label].deal(self.images_per_class)
            ]

    def __len__(self) -> int:
        return self.batches_per_epoch


class _Deck:
    """A deck that deals every card before any card repeats, and no card twice in a hand that fits the deck."""

    def __init__(self, cards: Sequence[int], generator: random.Random) -> None:
        self.cards = list(cards)
        self.generator = generator
        self.rest: list[int] = []  # with the next card last

    def deal(self, count: int) -> list[int]:
        hands, count = divmod(count, len(self.cards))
        hand = [card for _ in range(hands) for card in self._shuffled()]
        dealt = [self.rest.pop() for _ in range(min(count, len(self.rest)))]
        if len(dealt) < count:
            fresh, before = self._shuffled(), {*dealt}
            added = list(islice((card for card in fresh if card not in before), count - len(dealt)))
            dealt, without = dealt + added, {*added}
            self.rest = [card for card in reversed(fresh) if card not in without]
        return hand + dealt

    def _shuffled(self) -> list[int]:
        return self.generator.sample(self.cards, len(self.cards))


class SeededBatches(Sampler[list[tuple[int, int]]]):
    """Add to every image of a batch the seed of its augmentation.

    The seed is a function of `(seed, epoch, batch, position in the batch)`. So an image that appears twice is augmented
    differently, and a run that resumes in the middle of an epoch sees the same images as without the interruption. The
    local batches of the `world` processes, in the order of their ranks, form the global batch, with the same seeds as
    in a single process.
    """

    def __init__(self, batches: Batches, seed: int, rank: int = 0, world: int = 1) -> None:
        self.batches = batches
        self.seed = seed
        self.rank, self.world = rank, world
        self.epoch = 0
        self._skip = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that every iteration draws; a new epoch is drawn from its start."""
        if epoch != self.epoch:
            self._skip = 0
        self.epoch = epoch

    def skip(self, batches: int) -> None:
        """Start every iteration of this epoch after `batches` batches; a loader with workers starts two iterations."""
        check_range("batches", batches, f"[0, {len(self)}]")
        self._skip = batches

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        epoch = self.epoch
        for number, batch in islice(enumerate(self.batches.draw(epoch)), self._skip, None):
            first, last = (len(batch) * rank // self.world for rank in (self.rank, self.rank + 1))
            places = range(first, last)
            yield [(batch[place], derive_seed(self.seed, epoch, number, place)) for place in places]

    def __len__(self) -> int:
        return len(self.batches)


def _one_per_image(labels: object) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise ValueError(f"labels have shape {list(labels.shape)}, but must be one number per image: [images].")
    return labels
