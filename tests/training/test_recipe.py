"""Values of a recipe that are out of their range, or contradict each other."""

from collections.abc import Callable

import pytest

from proxemic.recipes import FOLDER, find_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.training import BatchConfig, EvaluationConfig, SecondPhase, TrainingConfig


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BatchConfig(size=0), "batches.size is 0, but a batch needs at least 1 image"),
        (lambda: BatchConfig(size=8, micro_batches=9), "batches.micro_batches is 9, but must be from 1 to .* 8"),
        (lambda: TrainingConfig(epochs=0), "training.epochs is 0, but must be at least 1"),
        (lambda: TrainingConfig(warmup_epochs=-1), "training.warmup_epochs is -1, but must be 0 or more"),
        (lambda: EvaluationConfig(batch_size=0), "evaluation.batch_size is 0, but must be at least 1"),
        (lambda: SecondPhase(0, None, None), "second_phase.epochs is 0, but must be at least 1"),  # type: ignore[arg-type]
    ],
)
def test_numbers_out_of_their_range_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_a_seed_that_no_generator_takes_is_refused() -> None:
    with pytest.raises(ValueError, match="seed is 99999999999999999999, but it must be from 0 to"):
        read_recipe(find_recipe("own"), ["--seed", "9" * 20, "--data.root", "."]).recipe  # noqa: B018


def test_a_cache_of_smaller_images_than_the_network_sees_is_refused() -> None:
    flags = ["--cache.shorter_side", "16", "--images.size", "28"]
    with pytest.raises(ValueError, match=r"cache.shorter_side is 16, but images are resized to \d+ pixels"):
        read_recipe(find_recipe("own"), ["--data.root", ".", *flags]).recipe  # noqa: B018


def test_only_recipes_of_own_images_reduce_large_ones() -> None:
    with pytest.raises(ValueError, match=r"cache.shorter_side is auto, which keeps what images.reduce"):
        read_recipe(find_recipe("own"), ["--images.reduce", "false"])
    flags = ["--images.reduce", "false", "--cache.shorter_side", "null", "--data.root", "."]
    assert read_recipe(find_recipe("own"), flags).recipe.images.reduced_side is None
    given = {path.stem for path in FOLDER.rglob("*.yaml") if {"reduce:", "cache:"} & {*path.read_text().split()}}
    assert given == {"own", "own-resnet50", "own-pretrained"}
