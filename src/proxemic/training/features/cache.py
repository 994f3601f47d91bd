"""The features of a run's training and validation images, computed or found."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import platformdirs
import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from proxemic.data import ImageSet
from proxemic.data.pixels import Pixels
from proxemic.data.samplers import derive_seed
from proxemic.data.transforms import Transform
from proxemic.data.vectors import VectorReader, Vectors
from proxemic.locks import lock_in_turn
from proxemic.models import EmbeddingModel
from proxemic.runs.directory import RunDirectory
from proxemic.runs.embed import embed_batches, pick_device
from proxemic.runs.processes import Processes
from proxemic.training.checkpoint_io import read_checkpoint
from proxemic.training.components import Components
from proxemic.training.data_module import worker_settings
from proxemic.training.features.files import FeatureWriter, find_features
from proxemic.training.features.fingerprint import fingerprint, image_keys, network_key
from proxemic.training.head_start import PooledFeatures
from proxemic.training.recipe import Recipe


class CachedFeatures(Vectors):
    """The features of an image set; where samples have seeds, those of one of the augmented copies of each.

    Args:
        plain: Features of the images as evaluation sees them.
        rows: The row of each image there.
        copies: Augmented copies, each with a row for each image in the order of ``copy_rows``.
        copy_rows: The row of each image in all copies.
    """

    def __init__(
        self,
        plain: VectorReader,
        rows: Int64[np.ndarray, " images"],
        copies: Sequence[VectorReader] = (),
        copy_rows: Int64[np.ndarray, " images"] | None = None,
    ) -> None:
        super().__init__(plain, rows)
        self.augmented = tuple(copies)
        self.copy_rows = rows if copy_rows is None else copy_rows

    def select(self, indices: Sequence[int] | Int64[np.ndarray, " chosen"]) -> "CachedFeatures":
        chosen = np.asarray(indices, dtype=np.int64)
        return CachedFeatures(self.reader, self.rows[chosen], self.augmented, self.copy_rows[chosen])

    def fetch(self, indices: Sequence[int], seeds: Sequence[int] | None = None) -> Float32[Tensor, "batch dim"]:
        if seeds is None or not self.augmented:
            return super().fetch(indices)
        rows, which = self.copy_rows[np.asarray(indices)], np.asarray(seeds) % len(self.augmented)
        batch = torch.empty(len(rows), self.dim)
        for number in np.unique(which).tolist():
            places = np.flatnonzero(which == number)
            batch[torch.from_numpy(places)] = self.augmented[number].read(rows[places])
        return batch


@dataclass(frozen=True)
class _Images:
    """Images that all differ, in the order of their keys."""

    keys: list[bytes]
    sources: list[tuple[Pixels, int]]

    @classmethod
    def of(cls, *sets: ImageSet) -> "_Images":
        found = {
            key: (images.pictures, index) for images in sets for index, key in enumerate(image_keys(images.pictures))
        }
        return cls(sorted(found), [found[key] for key in sorted(found)])

    def rows_of(self, images: ImageSet) -> Int64[np.ndarray, " images"]:
        row = {key: number for number, key in enumerate(self.keys)}
        return np.array([row[key] for key in image_keys(images.pictures)], dtype=np.int64)


class _Transformed(Dataset[Tensor]):
    """Images as a transform makes them, of which each draws from a seed of its own."""

    def __init__(self, images: _Images, transform: Transform, seed: tuple[int, ...], side: int | None) -> None:
        self.images, self.transform, self.seed, self.side = images, transform, seed, side

    def __getitem__(self, row: int) -> Tensor:
        pixels, index = self.images.sources[row]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive_seed(*self.seed, row))
            return self.transform(pixels.load(index, self.side))


@dataclass(frozen=True)
class _Table:
    """One file of features: of some images, each seen through one transform."""

    path: Path
    images: _Images
    transform: Transform
    seed: tuple[int, ...]


def read_features(
    recipe: Recipe,
    components: Components,
    held_out: ImageSet | None,
    run: RunDirectory,
    report: Callable[[str], object],
    processes: Processes,
) -> ImageSet | None:
    """Have training read features in place of images, and give the held-out images as features, too."""
    if run.checkpoint.exists():  # its backbone is another than the recipe's where the run has started from one
        state = read_checkpoint(run.checkpoint)["state_dict"]
        components.task.load_state_dict(
            {name: state[name] for name in state if name.startswith("model.")}, strict=False
        )
    data, model = components.data, components.task.model
    data.images, held_out = cached_features(recipe, model, data.images, held_out, report, processes)
    return held_out


def cached_features(
    recipe: Recipe,
    model: EmbeddingModel,
    train: ImageSet,
    held_out: ImageSet | None,
    report: Callable[[str], object],
    processes: Processes,
) -> tuple[ImageSet, ImageSet | None]:
    """Image sets whose pixels are the features of the model's backbone, from the cache, which is filled if need be."""
    config = recipe.features
    everything, training = _Images.of(train, *([held_out] if held_out else [])), _Images.of(train)
    folder = Path(config.folder or platformdirs.user_cache_path("proxemic") / "features")
    network, seen = network_key(model), (recipe.images.as_dict(), recipe.evaluation.precision)

    def table(images: _Images, transform: Transform, seed: tuple[int, ...], *how: object) -> _Table:
        name = fingerprint(network, seen, [key.hex() for key in images.keys], seed, *how)
        return _Table(folder / f"{name}.features", images, transform, seed)

    tables = [table(everything, recipe.images.evaluation(), ())]
    for copy in range(config.copies or 0):
        varied = recipe.augment.training(recipe.images)
        tables.append(table(training, varied, (recipe.seed, copy), recipe.augment))
    with processes.main_process_first():
        plain, *copies = _readers(tables, model, recipe, report)
    size = sum(len(reader) * reader.dim * 4 for reader in (plain, *copies))
    augmented = f" and {len(copies)} augmented copies of {len(training.keys):,}" if copies else ""
    report(
        f"Training reads the features of {len(everything.keys):,} images{augmented} from the cache {folder} "
        f"({size / 1e6:,.1f} MB)."
    )
    pixels = CachedFeatures(plain, everything.rows_of(train), copies, training.rows_of(train))
    if held_out is not None:
        held_out = replace(held_out, pixels=CachedFeatures(plain, everything.rows_of(held_out)))
    return replace(train, pixels=pixels), held_out


def _readers(
    tables: Sequence[_Table], model: EmbeddingModel, recipe: Recipe, report: Callable[[str], object]
) -> list[VectorReader]:
    """The features of all tables, of which those that are missing are computed first."""
    dim = model.backbone.num_features
    readers: list[VectorReader] = []
    count = sum(len(table.images.keys) for table in tables)
    with tqdm(total=count, desc="features", unit="image", leave=False, disable=None, smoothing=0) as bar:
        for table in tables:
            shape = len(table.images.keys), dim
            with lock_in_turn(table.path):
                try:
                    reader = find_features(table.path, shape)
                except ValueError as error:
                    report(f"{error} Its features are computed again.")
                    reader = None
                if reader is None:
                    _compute(table, shape, model, recipe, bar)
                    reader = find_features(table.path, shape)
                else:
                    bar.update(shape[0])
            assert reader is not None
            readers.append(reader)
    return readers


def _compute(
    table: _Table, shape: tuple[int, int], model: EmbeddingModel, recipe: Recipe, bar: "tqdm[NoReturn]"
) -> None:
    with FeatureWriter(table.path, shape).open() as writer:
        bar.update(writer.rows)
        loader = DataLoader(
            _Transformed(table.images, table.transform, table.seed, recipe.images.reduced_side),
            batch_sampler=[[*rows] for rows in _batches(writer.rows, shape[0], recipe.evaluation.batch_size)],
            generator=torch.Generator(),  # the loader draws a seed: not from the generator that training draws from
            **worker_settings(recipe.batches.workers),
        )
        network = PooledFeatures(model).to(pick_device(recipe.training.accelerator))
        for features in embed_batches(network, loader, recipe.evaluation.precision):
            writer.append(features)
            bar.update(len(features))
        model.cpu()


def _batches(first: int, count: int, size: int) -> Iterator[range]:
    return (range(start, min(start + size, count)) for start in range(first, count, size))
