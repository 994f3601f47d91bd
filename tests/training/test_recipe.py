"""Values of a recipe that are out of range or contradict each other."""

import pytest

from proxemic.errors import UserError
from proxemic.recipes import FOLDER, find_recipe
from proxemic.recipes.reader import read_recipe

UNTIL = "--training.until_plateau"
ANNEAL = "--training.anneal_gamma"
SECOND = "--second_phase.epochs=2"
REFUSED = {
    "--batches.size=0": "batches.size is 0, but must be at least 1",
    "--batches.size=8 --batches.micro_batches=9": "batches.micro_batches is 9, but must be from 1 to 8",
    "--training.epochs=0": "training.epochs is 0, but must be at least 1",
    "--training.warmup_epochs=-1": "training.warmup_epochs is -1, but must be at least 0",
    "--evaluation.batch_size=0": "evaluation.batch_size is 0, but must be at least 1",
    f"--seed={'9' * 20}": "seed is 99999999999999999999, but must be at least 0 and below",
    "--cache.shorter_side=16 --images.size=28": "shorter_side is 16, but images are resized to .* pixels",
    "--training.average.decay=0": "training.average.decay is 0.0, .* above 0 and below 1",
    "--training.average.decay=1": "training.average.decay is 1.0, .* above 0 and below 1",
    "--training.average.begins=0": "training.average.begins is 0, but must be at least 1",
    "--training.epochs=5 --training.average.begins=6": "begins is 6, but must be one of the 5 epochs",
    f"{UNTIL}.patience=2 --evaluation.select_on=last": "validation classes, but evaluation.select_on is last",
    f"{UNTIL}.patience=0": "patience is 0, but must be at least 1",
    f"{UNTIL}.min_improvement=-1": "min_improvement is -1.0, but must be at least 0",
    f"{UNTIL}.patienc=3": "did you mean --training.until_plateau.patience",
    "--training.epochs=5 --second_phase.epochs=5": "second_phase.epochs is 5, but must be less than training.epochs",
    "--second_phase.epochs=0": "second_phase.epochs is 0, but must be at least 1",
    "--second_phase.optim.lr=1": "second_phase.epochs is missing",
    f"{SECOND} --second_phase.loss.alhpa=1": "did you mean --second_phase.loss.alpha",
    f"{SECOND} --second_phase.seed=1": "There is no flag --second_phase.seed",
    "--second_phase.epochs=two": "second_phase.epochs is two",
    "--training.spread_after=1": "spread_after is 1, but training.start_proxies is drawn: set that to k_means",
    "--training.epochs=3 --training.spread_after=3": "spread_after is 3, but must be at least 0 and below 3",
    f"{ANNEAL}.begin=0 {ANNEAL}.epochs=2": "begin is 0",
    f"{ANNEAL}.begin=1 {ANNEAL}.epochs=1": "epochs is 1, but must be at least 2",
    f"--training.epochs=3 {ANNEAL}.begin=1 {ANNEAL}.epochs=4": "but the training has 3 epochs",
    f"--training.epochs=3 {ANNEAL}.begin=1 {ANNEAL}.epochs=3 --second_phase.epochs=1": "first phase has 2 epochs",
    "--training.callbacks=[{class_path: proxemic.training.Snapshots, init_args: {every_n_epochs: 0}}]": "epochs is 0",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_values_that_are_out_of_range_or_contradict_each_other_are_refused(flags: str) -> None:
    words = [f"--{flag}" for flag in f" {flags}".split(" --")[1:]]
    with pytest.raises((UserError, ValueError), match=REFUSED[flags]):
        _ = read_recipe(find_recipe("own"), ["--data.root=.", "--loss=MultiProxyAnchorLoss", *words]).recipe


def test_only_recipes_of_own_images_reduce_large_ones() -> None:
    with pytest.raises(ValueError, match=r"cache.shorter_side is auto, which keeps what images.reduce"):
        read_recipe(find_recipe("own"), ["--images.reduce", "false"])
    flags = ["--images.reduce", "false", "--cache.shorter_side", "null", "--data.root", "."]
    assert read_recipe(find_recipe("own"), flags).recipe.images.reduced_side is None
    given = {path.stem for path in FOLDER.rglob("*.yaml") if {"reduce:", "cache:"} & {*path.read_text().split()}}
    assert given == {"own", "own-resnet50", "own-pretrained"}
