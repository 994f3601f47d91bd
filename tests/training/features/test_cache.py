"""Features that are computed once: the same results, found again, and gone on with after a kill."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import warm
from images import write_folder, write_recipe
from proxemic.data import FilePixels, ImageSet
from proxemic.data.samplers import derive_seed
from proxemic.data.vectors import Vectors
from proxemic.models import build_model, load_model
from proxemic.recipes.reader import read_recipe
from proxemic.runs.processes import Processes
from proxemic.training import Recipe, train
from proxemic.training.features.cache import CachedFeatures, cached_features

pytestmark = pytest.mark.usefixtures("without_plots")
MODULE = sys.modules["proxemic.training.features.cache"]
PLAIN = ["--augment.random_resized_crop", "null", "--augment.horizontal_flip", "0", "--augment.noise", "0"]
PLAIN += ["--model.train", "head", "--training.epochs", "2", "--training.threads", "1"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("features")
    return write_recipe(folder / "tiny.yaml", write_folder(folder / "images"))


def read(path: Path, folder: Path, *flags: str) -> Recipe:
    cache = ("--features.cache", "true", "--features.folder", str(folder))
    return read_recipe(path, [*PLAIN, *cache, *flags]).recipe


def cache(recipe: Recipe, said: list[str] | None = None) -> tuple[ImageSet, ImageSet]:
    torch.manual_seed(recipe.seed)
    splits, model = recipe.load(), build_model(recipe.model)
    report = [].append if said is None else said.append
    train, held_out = cached_features(recipe, model, splits.train, splits.validation, report, Processes())
    assert held_out is not None
    return train, held_out


def fetch(images: ImageSet, indices: list[int], seeds: list[int] | None = None) -> torch.Tensor:
    assert isinstance(images.pixels, Vectors)
    return images.pixels.fetch(indices, seeds)


def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows that are written from now on, batch by batch."""
    rows: list[int] = []

    class Counting(MODULE.FeatureWriter):
        def append(self, features: torch.Tensor) -> None:
            rows.append(len(features))
            super().append(features)

    monkeypatch.setattr(MODULE, "FeatureWriter", Counting)
    return rows


def test_results_without_augmentation_are_those_without_a_cache(path: Path, tmp_path: Path) -> None:
    flags = ("--model.head", "residual", "--model.head_init", "pca", "--batches.images_per_class", "2")
    cached = train(read(path, tmp_path / "cache", *flags), tmp_path / "cached", report=[].append)
    plain = train(read_recipe(path, [*PLAIN, *flags]).recipe, tmp_path / "plain", report=[].append)
    for name in ("test", "untrained", "validation"):
        assert cached.metrics[name] == pytest.approx(plain.metrics[name], abs=1e-6)
    ours, theirs = (load_model(run.path)[0].state_dict() for run in (cached, plain))
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, rtol=1e-4, atol=1e-5)


def test_features_are_those_of_the_images_and_of_their_copies(path: Path, tmp_path: Path) -> None:
    # Of this seed, validation classes lie between training classes, so that rows differ between the files.
    recipe = read(path, tmp_path, "--features.copies", "3", "--augment.noise", "0.3", "--seed", "1")
    torch.manual_seed(recipe.seed)
    model, splits = build_model(recipe.model).eval(), recipe.load()
    train, held_out = cache(recipe)
    transform = recipe.images.evaluation()
    for features, images in ((train, splits.train), (held_out, splits.validation)):
        assert images is not None
        tensors = torch.stack([transform(images.pictures[index]) for index in (3, 0)])
        torch.testing.assert_close(fetch(features, [3, 0]), model.features(tensors), rtol=1e-4, atol=1e-5)
        assert torch.equal(features.labels, images.labels)
    pixels = train.pixels
    assert isinstance(pixels, CachedFeatures)
    assert (pixels.rows[[5, 2]] != pixels.copy_rows[[5, 2]]).all()
    copies = [pixels.fetch([5, 2], [seed, seed]) for seed in range(3)]
    assert isinstance(splits.train.pixels, FilePixels)
    paths, varied = splits.train.pixels.paths, recipe.augment.training(recipe.images)
    for place, index in enumerate((5, 2)):
        torch.manual_seed(derive_seed(recipe.seed, 1, sorted(paths).index(paths[index])))
        expected = model.features(varied(splits.train.pixels[index])[None])[0]
        torch.testing.assert_close(copies[1][place], expected, rtol=1e-4, atol=1e-5)
    assert len({tuple(copy.flatten().tolist()) for copy in [*copies, pixels.fetch([5, 2])]}) == 4
    mixed = pixels.select([2, 5, 7]).fetch([1, 0, 1], [5, 6, 3])
    assert torch.equal(mixed, torch.stack([copies[2][0], copies[0][1], copies[0][0]]))
    assert torch.equal(fetch(held_out, [1], [7]), fetch(held_out, [1]))


def test_what_is_there_is_found_and_only_what_is_new_is_computed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = ("--augment.noise", "0.3")
    cache(read(path, tmp_path, "--features.copies", "2", *noisy))
    rows = computed(monkeypatch)
    train, held_out = cache(read(path, tmp_path, "--features.copies", "2", *noisy))
    cache(read(path, tmp_path, "--features.copies", "1", "--batches.size", "4", "--model.head", "mlp", *noisy))
    cache(read(path, tmp_path, "--training.epochs", "7"))
    assert rows == []
    cache(read(path, tmp_path, "--features.copies", "3", *noisy))
    assert sum(rows) == len(train)
    for changed in (
        ["--seed", "1", "--features.copies", "1", *noisy],
        ["--features.copies", "1", "--augment.noise", "0.2"],
    ):
        rows.clear()
        cache(read(path, tmp_path, *changed))
        assert sum(rows) > 0
    everything = len(train) + len(held_out)
    for changed in (["--images.size", "32"], ["--model.width", "4"], ["--model.pooling", "max"]):
        rows.clear()
        cache(read(path, tmp_path, *changed))
        assert sum(rows) == everything


def test_a_changed_image_and_a_damaged_file_are_computed_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = write_folder(tmp_path / "images")
    recipe = read(path, tmp_path / "cache", "--data.root", str(images))
    before = fetch(cache(recipe)[0], [0, 1])
    rows, said = computed(monkeypatch), []
    (file,) = (tmp_path / "cache").glob("*.features")
    file.write_bytes(file.read_bytes()[:-1])
    again = fetch(cache(recipe, said)[0], [0, 1])
    assert sum(rows) > 0
    assert any("is damaged. Its features are computed again." in line for line in said)
    assert torch.equal(before, again)
    rows.clear()
    os.utime(next(images.rglob("*.png")), (1, 1))
    cache(recipe)
    assert sum(rows) > 0


KILLED = """
import itertools, os, signal, sys
import proxemic.training.features.cache as cache
from proxemic.cli import main
append, number = cache.FeatureWriter.append, itertools.count(1)
def and_then(self, features):
    append(self, features)
    if next(number) == 7:
        os.kill(os.getpid(), signal.SIGKILL)
cache.FeatureWriter.append = and_then
sys.exit(main())
"""


def test_a_run_killed_among_the_features_goes_on_and_ends_the_same(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = [*PLAIN, "--features.cache", "true", "--evaluation.batch_size", "4", "--features.copies", "2"]
    flags += ["--augment.noise", "0.2", "--evaluation.untrained", "false"]
    whole = train(
        read_recipe(path, [*flags, "--features.folder", str(tmp_path / "a")]).recipe,
        tmp_path / "whole",
        report=[].append,
    )
    flags += ["--features.folder", str(tmp_path / "b")]
    process = warm.run("-c", KILLED, "train", "--recipe", path, *flags, "--out", tmp_path / "run")
    assert process.returncode == -signal.SIGKILL, process.stderr
    rows = computed(monkeypatch)
    killed = train(out=tmp_path / "run", resume=True, report=[].append)
    images = whole.metrics["train_images"]
    everything = 3 * images + len(read_recipe(path, flags).recipe.load().validation or [])
    assert sum(rows) == everything - 4 * 7
    assert killed.metrics == whole.metrics
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def test_a_batch_is_read_at_once(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = cache(read(path, tmp_path, "--features.copies", "2", "--augment.noise", "0.3"))[0]
    assert isinstance(train.pixels, CachedFeatures)
    reads: list[int] = []

    class Counting:
        def __init__(self, reader: Any) -> None:
            self.reader, self.dim, self.name = reader, reader.dim, reader.name

        def __len__(self) -> int:
            return len(self.reader)

        def read(self, places: Any) -> torch.Tensor:
            reads.append(len(places))
            return self.reader.read(places)

    pixels = CachedFeatures(
        Counting(train.pixels.reader),
        train.pixels.rows,
        [*map(Counting, train.pixels.augmented)],
        train.pixels.copy_rows,
    )
    pixels.fetch([*range(12)], [*range(12)])
    assert reads == [6, 6]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--model.train", "all"], "features.cache is true, but model.train is all, which changes the features"),
        (["--model.pooling", "gem"], "features.cache is true, but model.pooling is gem, whose power is trained"),
        (["--features.copies", "0"], "features.copies is 0, but must be from 1 to 10,000, or null"),
        (["--features.cache", "false", "--features.copies", "2"], "features.copies is 2, but features.cache is false"),
    ],
)
def test_what_cannot_be_kept_is_refused(path: Path, tmp_path: Path, flags: list[str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read(path, tmp_path, *flags)
