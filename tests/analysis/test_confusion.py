"""Confused classes against counts by plain Python."""

from collections import Counter

import torch

from proxemic.analysis import confused_pairs


def test_pairs_are_counted_both_ways() -> None:
    generator = torch.Generator().manual_seed(0)
    labels, nearest = torch.randint(-1, 6, (2, 200), generator=generator)
    distances = torch.rand(200, generator=generator)
    counts = Counter(
        (min(pair), max(pair))
        for pair in zip(labels.tolist(), nearest.tolist(), strict=True)
        if min(pair) >= 0 and pair[0] != pair[1]
    )
    found = confused_pairs(labels, nearest, distances)
    assert {pair.classes: pair.count for pair in found} == counts
    order = [(-pair.count, -pair.share, pair.classes) for pair in found]
    assert order == sorted(order)
    for pair in found:
        assert pair.queries == sum(int((labels == class_).sum()) for class_ in pair.classes)
        assert distances[pair.examples].tolist() == sorted(distances[pair.examples].tolist())
        assert all({int(labels[example]), int(nearest[example])} == {*pair.classes} for example in pair.examples)


def test_a_class_may_be_in_the_gallery_alone() -> None:
    [pair] = confused_pairs(torch.tensor([0]), torch.tensor([7]), torch.zeros(1))
    assert (pair.classes, pair.count, pair.queries, pair.share) == ((0, 7), 1, 1, 1.0)


def test_nothing_is_confused() -> None:
    assert confused_pairs(torch.tensor([0, 1, -1]), torch.tensor([0, 1, 1]), torch.zeros(3)) == []
