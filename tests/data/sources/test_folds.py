import functools
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxemic.data import FaceFolders, Fold, Glyphs
from proxemic.data.images import ImageSource, Splits

GLYPHS = Glyphs(train_classes=14, test_classes=4, validation_fraction=0.0)


@dataclass(frozen=True)
class Kept(ImageSource):
    """A source with these splits."""

    splits: Splits

    def load(self) -> Splits:
        return self.splits


@functools.cache
def glyphs() -> Splits:
    return GLYPHS.load()


@settings(max_examples=40)
@given(folds=st.integers(2, 7), seed=st.integers(0, 1000))
def test_every_class_validates_once_and_trains_otherwise(folds: int, seed: int) -> None:
    splits = glyphs()
    classes = set(splits.train.class_names)
    validated: list[str] = []
    for fold in range(folds):
        found = Fold(Kept(splits), folds, fold, seed).load()
        assert found.validation is not None
        assert set(found.train.class_names) == classes - set(found.validation.class_names)
        assert found.validation.num_classes in (14 // folds, -(-14 // folds))
        assert found.test_images.class_names == splits.test_images.class_names
        validated += found.validation.class_names
    assert sorted(validated) == sorted(classes)


def test_what_makes_no_fold_is_refused() -> None:
    with pytest.raises(ValueError, match="folds is 1"):
        Fold(GLYPHS, folds=1)
    with pytest.raises(ValueError, match="fold is 4, but must be at least 0 and below 4"):
        Fold(GLYPHS, fold=4)
    with pytest.raises(ValueError, match="set its validation_fraction to 0"):
        Fold(Glyphs(train_classes=14, test_classes=4, validation_fraction=0.5)).load()
    with pytest.raises(ValueError, match="at most 7 folds"):
        Fold(GLYPHS, folds=8).load()


def test_a_fold_has_a_test_if_its_source_has() -> None:
    assert Fold(Glyphs()).has_test
    assert not Fold(FaceFolders()).has_test
