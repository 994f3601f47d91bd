from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from proxemic.arguments import call_with_known
from proxemic.data import Batches, CategoryBalancedBatches, ClassBalancedBatches, RandomBatches
from proxemic.data.samplers import SeededBatches
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe


@given(st.integers(1, 60), st.integers(1, 20), st.booleans(), st.integers(0, 3))
def test_random_batches_cover_the_images_once(images: int, size: int, drop_last: bool, epoch: int) -> None:
    batches = RandomBatches(images, size, seed=0, drop_last=drop_last)
    batches.set_epoch(epoch)
    drawn = list(batches)
    assert len(drawn) == len(batches) >= 1
    flat = list(chain.from_iterable(drawn))
    assert len(set(flat)) == len(flat)
    assert set(flat) <= set(range(images))
    assert all(type(index) is int for index in flat)
    if not drop_last or images < size:
        assert len(flat) == images
    else:
        assert {len(batch) for batch in drawn} == {size}


MAKE: dict[str, Callable[[], Batches]] = {
    "random": lambda: RandomBatches(24, 6, seed=0),
    "class-balanced": lambda: ClassBalancedBatches(torch.arange(24) % 6, 3, 2, seed=0),
    "category-balanced": lambda: CategoryBalancedBatches(torch.arange(24) % 6, torch.arange(24) % 2, 6, 0, 1, 2),
}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_draws_each_epoch_once(workers: int) -> None:
    batches = MAKE["class-balanced"]()
    expected = [list(batches) for _ in range(3)]
    batches.set_epoch(0)
    loader = DataLoader(Numbers(), batch_sampler=batches, num_workers=workers, collate_fn=list)
    assert [list(loader) for _ in range(3)] == expected


@settings(max_examples=40)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=12), st.data())
def test_class_balanced_batches(sizes: list[int], data: st.DataObject) -> None:
    classes = data.draw(st.integers(1, len(sizes)))
    per_class = data.draw(st.integers(1, 5))
    length = data.draw(st.integers(1, 20))
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    batches = ClassBalancedBatches(labels, classes, per_class, seed=5, batches_per_epoch=length)
    drawn = list(batches)
    assert len(drawn) == len(batches) == length
    appearances: Counter[int] = Counter()
    uses: Counter[int] = Counter()
    for batch in drawn:
        counts = Counter(labels[batch].tolist())
        assert len(counts) == classes
        assert set(counts.values()) == {per_class}
        appearances.update(counts.keys())
        repeats = Counter(batch)
        for index, count in repeats.items():
            size = sizes[labels[index]]
            assert count == 1 or size < per_class
        uses.update(repeats)
    every = [appearances[label] for label in range(len(sizes))]
    assert max(every) - min(every) <= 1
    for label in range(len(sizes)):
        used = [uses[index] for index in (labels == label).nonzero().flatten().tolist()]
        assert max(used) - min(used) <= 2


def test_wrong_numbers_are_named() -> None:
    labels = torch.tensor([0, 0, 1])
    with pytest.raises(ValueError, match="classes_per_batch is 3, but must be from 1 to 2"):
        ClassBalancedBatches(labels, 3, 2, seed=0)
    with pytest.raises(ValueError, match=r"labels have shape \[3, 1\], but must be one number per image"):
        ClassBalancedBatches(torch.tensor([[0], [1], [1]]), 1, 1, seed=0)
    with pytest.raises(ValueError, match="images_per_class is 0"):
        ClassBalancedBatches(labels, 2, 0, seed=0)
    with pytest.raises(ValueError, match="batches_per_epoch is 0"):
        ClassBalancedBatches(labels, 2, 1, seed=0, batches_per_epoch=0)
    with pytest.raises(ValueError, match="batch_size is 0"):
        RandomBatches(3, 0, seed=0)
    with pytest.raises(ValueError, match="num_images is 0"):
        RandomBatches(0, 3, seed=0)


def test_seeds_follow_epoch_and_place() -> None:
    batches = SeededBatches(RandomBatches(20, 5, seed=0), seed=9)
    first = list(batches)
    assert list(batches) == first
    seeds = [seed for batch in first for _, seed in batch]
    assert len(set(seeds)) == 20
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert [[index for index, _ in batch] for batch in first] == list(RandomBatches(20, 5, seed=0))
    batches.set_epoch(1)
    assert not set(seeds) & {seed for batch in batches for _, seed in batch}
    other = SeededBatches(RandomBatches(20, 5, seed=0), seed=8)
    assert not set(seeds) & {seed for batch in other for _, seed in batch}


class Numbers(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Keys(Dataset[tuple[int, int]]):
    def __getitem__(self, key: tuple[int, int]) -> tuple[int, int]:
        return key


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_begins_after_what_is_skipped(workers: int) -> None:
    batches = SeededBatches(RandomBatches(20, 5, seed=0), seed=0)
    batches.set_epoch(3)
    whole = list(batches)
    batches.skip(3)
    loader = DataLoader(
        Keys(), batch_sampler=batches, num_workers=workers, persistent_workers=workers > 0, collate_fn=list
    )
    assert list(loader) == whole[3:]
    batches.set_epoch(4)
    assert len(list(loader)) == 4


def test_skip_holds_for_one_epoch() -> None:
    batches = SeededBatches(RandomBatches(20, 5, seed=0), seed=0)
    whole = list(batches)
    batches.skip(3)
    assert len(batches) == 4
    assert list(batches) == whole[3:]
    assert list(batches) == whole[3:]
    batches.set_epoch(0)  # the same: nothing changes
    assert list(batches) == whole[3:]
    batches.set_epoch(1)
    batches.set_epoch(0)
    assert list(batches) == whole
    batches.skip(4)
    assert list(batches) == []
    with pytest.raises(ValueError, match="batches is 5, but must be from 0 to 4"):
        batches.skip(5)
    with pytest.raises(ValueError, match="batches is -1"):
        batches.skip(-1)


@settings(max_examples=40)
@given(st.integers(1, 6), st.integers(0, 3), st.integers(0, 2), st.booleans())
def test_processes_share_each_batch_without_overlap(world: int, epoch: int, skipped: int, balanced: bool) -> None:
    labels = torch.arange(60) % 10

    def batches(rank: int, world: int) -> SeededBatches:
        order = ClassBalancedBatches(labels, 4, 3, seed=1) if balanced else RandomBatches(len(labels), 13, seed=1)
        made = SeededBatches(order, seed=2, rank=rank, world=world)
        made.set_epoch(epoch)
        made.skip(skipped)
        return made

    alone = list(batches(0, 1))
    shares = [list(batches(rank, world)) for rank in range(world)]
    assert len(alone) == len(batches(0, 1)) - skipped
    for number, whole in enumerate(alone):
        parts = [share[number] for share in shares]
        assert [image for part in parts for image in part] == whole
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_category_balanced_batches() -> None:
    sizes = [5, 2, 9, 4, 4, 4, 1, 3]  # of classes; the categories have 5, 2 and 1
    labels = torch.arange(8).repeat_interleave(torch.tensor(sizes))
    categories = torch.tensor([0, 0, 0, 0, 0, 1, 1, -1])[labels]
    options: dict[str, Any] = {"labels": labels, "categories": categories, "seed": 3, "images_per_class": 2}
    batches = CategoryBalancedBatches(**options, batch_size=12, categories_per_batch=2)  # 3 classes of each
    drawn = list(batches)
    assert len(drawn) == len(batches) == 2
    for epoch in range(9):
        batches.set_epoch(epoch)
        seen: set[int] = set()
        for batch in batches:
            count = Counter(categories[batch].tolist())
            assert set(count.values()) == {6}
            assert len(count) == 2
            seen |= count.keys()
            if 0 in count:  # a category of enough classes repeats none
                assert len(set(labels[batch][categories[batch] == 0].tolist())) == 3
        assert seen == {-1, 0, 1}  # however many images they have
    refused: list[tuple[dict[str, Any], str]] = [
        ({"categories": None}, "have no categories to balance: give data.root a table with a column category"),
        ({"batch_size": 10}, "batch_size is 10, but must be a multiple of categories_per_batch times images_per_class"),
        ({"categories_per_batch": 4, "batch_size": 8}, "categories_per_batch is 4, but must be from 1 to 3"),
    ]
    for wrong, words in refused:
        with pytest.raises(ValueError, match=words):
            CategoryBalancedBatches(**{"batch_size": 12, "categories_per_batch": 2, **options, **wrong})
    flags = ["--data.root=x", "--batches.size=12", "--batches.images_per_class=null", "--batches.sampler"]
    path, arguments = "proxemic.data.CategoryBalancedBatches", "{categories_per_batch: 2, images_per_class: 2}"
    flags.append(f"{{class_path: {path}, init_args: {arguments}}}")
    sampler = read_recipe(find_recipe("own"), flags).recipe.batches.sampler
    assert sampler is not None
    data = {"labels": labels, "num_images": len(labels), "batch_size": 12, "seed": 3, "categories": categories}
    filled = call_with_known(sampler, **data)
    assert list(filled) == drawn
