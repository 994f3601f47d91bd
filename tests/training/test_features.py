"""Cached features give the same results, are reused, and are completed after a kill."""

import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

import warm
from images import write_folder
from onnx_files import network
from proxemic.data import FilePixels, ImageSet
from proxemic.data.samplers import derive_seed
from proxemic.data.vectors import Vectors
from proxemic.errors import UserError
from proxemic.models import ModelConfig, build_model, load_model
from proxemic.recipes.reader import read_recipe
from proxemic.runs.directory import RunDirectory
from proxemic.training import Recipe, train
from proxemic.training.features import CachedFeatures, append_rows, cached_features, network_key
from proxemic.training.record import Session

MODULE = sys.modules["proxemic.training.features"]
PLAIN = ["--augment.random_resized_crop", "null", "--augment.horizontal_flip", "0", "--augment.noise", "0"]
PLAIN += ["--model.train", "head", "--training.epochs", "2", "--training.threads", "1"]


def read(path: Path, folder: Path, *flags: str) -> Recipe:
    cache = ("--features.cache", "true", "--features.folder", str(folder))
    return read_recipe(path, [*PLAIN, *cache, *flags]).recipe


def cache(recipe: Recipe, said: list[str] | None = None) -> tuple[ImageSet, ImageSet]:
    torch.manual_seed(recipe.seed)
    splits, model = recipe.load(), build_model(recipe.model)
    session = Session(recipe, RunDirectory(Path()), report=[].append if said is None else said.append)
    train, held_out = cached_features(session, model, splits.train, splits.validation)
    assert held_out is not None
    return train, held_out


def fetch(images: ImageSet, indices: list[int], seeds: list[int] | None = None) -> torch.Tensor:
    assert isinstance(images.pixels, Vectors)
    return images.pixels.fetch(indices, seeds)


def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that collects the number of rows of each batch written from now on."""
    rows: list[int] = []

    def counted(file: BinaryIO, features: torch.Tensor) -> None:
        rows.append(len(features))
        append_rows(file, features)

    monkeypatch.setattr(MODULE, "append_rows", counted)
    return rows


def test_results_without_augmentation_are_those_without_a_cache(recipe: Path, tmp_path: Path) -> None:
    flags = ("--model.head", "residual", "--model.head_init", "pca", "--batches.images_per_class", "2")
    cached = train(read(recipe, tmp_path / "cache", *flags), tmp_path / "cached", report=[].append)
    plain = train(read_recipe(recipe, [*PLAIN, *flags]).recipe, tmp_path / "plain", report=[].append)
    for name in ("test", "untrained", "validation"):
        assert cached.metrics[name] == pytest.approx(plain.metrics[name], abs=1e-6)
    ours, theirs = (load_model(run.path)[0].state_dict() for run in (cached, plain))
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, rtol=1e-4, atol=1e-5)


def test_features_are_those_of_the_images_and_of_their_copies(recipe: Path, tmp_path: Path) -> None:
    # Of this seed, validation classes lie between training classes, so that rows differ between the files.
    own = read(recipe, tmp_path, "--features.copies", "3", "--augment.noise", "0.3", "--seed", "1")
    torch.manual_seed(own.seed)
    model, splits = build_model(own.model).eval(), own.load()
    train, held_out = cache(own)
    transform = own.images.evaluation()
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
    paths, varied = splits.train.pixels.paths, own.augment.training(own.images)
    for place, index in enumerate((5, 2)):
        torch.manual_seed(derive_seed(own.seed, 1, sorted(paths).index(paths[index])))
        expected = model.features(varied(splits.train.pixels[index])[None])[0]
        torch.testing.assert_close(copies[1][place], expected, rtol=1e-4, atol=1e-5)
    assert len({tuple(copy.flatten().tolist()) for copy in [*copies, pixels.fetch([5, 2])]}) == 4
    mixed = pixels.select([2, 5, 7]).fetch([1, 0, 1], [5, 6, 3])
    assert torch.equal(mixed, torch.stack([copies[2][0], copies[0][1], copies[0][0]]))
    assert torch.equal(fetch(held_out, [1], [7]), fetch(held_out, [1]))


def test_what_is_there_is_found_and_only_what_is_new_is_computed(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = ("--augment.noise", "0.3")
    cache(read(recipe, tmp_path, "--features.copies", "2", *noisy))
    rows = computed(monkeypatch)
    train, held_out = cache(read(recipe, tmp_path, "--features.copies", "2", *noisy))
    cache(read(recipe, tmp_path, "--features.copies", "1", "--batches.size", "4", "--model.head", "mlp", *noisy))
    cache(read(recipe, tmp_path, "--training.epochs", "7"))
    assert rows == []
    cache(read(recipe, tmp_path, "--features.copies", "3", *noisy))
    assert sum(rows) == len(train)
    for changed in (
        ["--seed", "1", "--features.copies", "1", *noisy],
        ["--features.copies", "1", "--augment.noise", "0.2"],
    ):
        rows.clear()
        cache(read(recipe, tmp_path, *changed))
        assert sum(rows) > 0
    everything = len(train) + len(held_out)
    for changed in (["--images.size", "32"], ["--model.width", "4"], ["--model.pooling", "max"]):
        rows.clear()
        cache(read(recipe, tmp_path, *changed))
        assert sum(rows) == everything


def test_a_changed_image_and_a_damaged_file_are_computed_again(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = write_folder(tmp_path / "images")
    own = read(recipe, tmp_path / "cache", "--data.root", str(images))
    before = fetch(cache(own)[0], [0, 1])
    rows, said = computed(monkeypatch), []
    (file,) = (tmp_path / "cache").glob("*.features")
    file.write_bytes(file.read_bytes()[:-1])
    again = fetch(cache(own, said)[0], [0, 1])
    assert sum(rows) > 0
    assert any("is damaged. Its features are computed again." in line for line in said)
    assert torch.equal(before, again)
    rows.clear()
    os.utime(next(images.rglob("*.png")), (1, 1))
    cache(own)
    assert sum(rows) > 0


KILLED = """
import itertools, os, signal, sys
import proxemic.training.features as cache
from proxemic.cli import main
append, number = cache.append_rows, itertools.count(1)
def and_then(file, features):
    append(file, features)
    if next(number) == 7:
        file.write(b"torn")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
cache.append_rows = and_then
sys.exit(main())
"""


def test_a_run_killed_among_the_features_goes_on_and_ends_the_same(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = [*PLAIN, "--features.cache", "true", "--evaluation.batch_size", "4", "--features.copies", "2"]
    flags += ["--augment.noise", "0.2", "--evaluation.untrained", "false"]
    whole = train(
        read_recipe(recipe, [*flags, "--features.folder", str(tmp_path / "a")]).recipe,
        tmp_path / "whole",
        report=[].append,
    )
    flags += ["--features.folder", str(tmp_path / "b")]
    process = warm.run("-c", KILLED, "train", "--recipe", recipe, *flags, "--out", tmp_path / "run")
    assert process.returncode == -signal.SIGKILL, process.stderr
    rows = computed(monkeypatch)
    killed = train(out=tmp_path / "run", resume=True, report=[].append)
    images = whole.metrics["train_images"]
    everything = 3 * images + len(read_recipe(recipe, flags).recipe.load().validation or [])
    assert sum(rows) == everything - 4 * 7
    assert killed.metrics == whole.metrics
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def test_a_batch_is_read_at_once(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = cache(read(recipe, tmp_path, "--features.copies", "2", "--augment.noise", "0.3"))[0]
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


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_says_so(recipe: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match=r"could not be written: permission denied; free some space or check"):
        cache(read(recipe, tmp_path))


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
def test_another_file_of_the_same_name_is_another_network(tmp_path: Path) -> None:
    config = ModelConfig(backbone=str(tmp_path / "net.onnx"), train="head", image_size=8)
    keys = []
    for batch in ("n", 2, "n"):
        (tmp_path / "net.onnx").write_bytes(network((batch, 3, 8, 8)))
        keys.append(network_key(build_model(config)))
    assert keys[0] == keys[2] != keys[1]
