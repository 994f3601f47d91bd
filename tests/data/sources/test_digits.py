"""scikit-learn's digits as an image source."""

import numpy as np
import torch
from sklearn.datasets import load_digits

from proxemic.data import Digits


def test_every_digit_is_in_one_part() -> None:
    splits = Digits(validation_fraction=0.2).load()
    assert splits.validation is not None
    parts = (splits.train, splits.validation, splits.test_images)
    assert [len(part) for part in parts] == [1038, 259, 500]
    rows = sorted(
        (int(label), np.asarray(part.pictures[place]).tobytes())
        for part in parts
        for place, label in enumerate(part.labels)
    )
    pictures, labels = load_digits(return_X_y=True)
    expected = np.rint(pictures * 255 / 16).astype(np.uint8)
    assert rows == sorted((int(label), row.tobytes()) for row, label in zip(expected, labels, strict=True))
    assert "not for measuring retrieval" in splits.notes[0]


def test_the_seed_decides() -> None:
    one, same, other = Digits().load(), Digits().load(), Digits(split_seed=1).load()
    assert torch.equal(one.test_images.labels, same.test_images.labels)
    assert not torch.equal(one.test_images.labels, other.test_images.labels)
    assert Digits(validation_fraction=0.0).load().validation is None
