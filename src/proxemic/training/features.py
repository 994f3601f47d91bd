"""Features of a frozen backbone, computed once and read from a cache afterwards.

A file of features contains only the float32 numbers of its rows. Its name is a hash of everything they depend on.
"""

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import platformdirs
import safetensors.torch
import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from proxemic.data import ImageSet, Preprocessing
from proxemic.data.cache import key_of
from proxemic.data.pixels import CachedPixels, FilePixels, Pixels
from proxemic.data.samplers import derive_seed
from proxemic.data.transforms import Transform
from proxemic.data.vectors import VectorFile, VectorReader, Vectors
from proxemic.files import write_errors
from proxemic.locks import lock_in_turn
from proxemic.models import EmbeddingModel
from proxemic.runs.embed import embed_batches, pick_device
from proxemic.runs.workers import worker_settings
from proxemic.training.beginning import PooledFeatures
from proxemic.training.components import Components
from proxemic.training.parts.storage import read_checkpoint
from proxemic.training.record import Session

_VERSION = 1  # of the processing of images before their features are written


class CachedFeatures(Vectors):
    """Features of an image set. A sample with a seed is given the features of one of its augmented copies.

    Args:
        plain: Features of the images without augmentation, as in evaluation.
        rows: The row of each image in ``plain``.
        copies: Features of the augmented copies.
        copy_rows: The row of each image in each of the ``copies``.
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


class _Table(Dataset[Tensor]):
    """A file of features of distinct images, sorted by their keys, each transformed with its own seed."""

    def __init__(
        self, sets: Sequence[ImageSet], transform: Transform, seed: tuple[int, ...], images: Preprocessing
    ) -> None:
        self.transform, self.seed, self.images = transform, seed, images
        sources = {key: (group.pictures, at) for group in sets for at, key in enumerate(image_keys(group.pictures))}
        self.keys = sorted(sources)
        self.sources = [sources[key] for key in self.keys]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, row: int) -> Tensor:
        pixels, index = self.sources[row]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive_seed(*self.seed, row))
            return self.transform(pixels.load(index, self.images.reduced_side, self.images.bits))

    def rows_of(self, images: ImageSet) -> Int64[np.ndarray, " images"]:
        row = {key: number for number, key in enumerate(self.keys)}
        return np.array([row[key] for key in image_keys(images.pictures)], dtype=np.int64)


def read_features(session: Session, components: Components, held_out: ImageSet | None) -> ImageSet | None:
    """Replace the training images by features, and return the held-out images as features."""
    checkpoint = session.run.checkpoint
    if checkpoint.exists():  # its backbone is not the recipe's if the run has started from another run
        components.model.load_state_dict(read_checkpoint(checkpoint)["model"])
    data, model = components.data, components.model
    data.images, held_out = cached_features(session, model, data.images, held_out)
    return held_out


def cached_features(
    session: Session, model: EmbeddingModel, train: ImageSet, held_out: ImageSet | None
) -> tuple[ImageSet, ImageSet | None]:
    """Return image sets whose pixels are the backbone's features; those not yet in the cache are computed."""
    recipe = session.recipe
    config = recipe.features
    folder = Path(config.folder or platformdirs.user_cache_path("proxemic") / "features")
    known = (network_key(model), (recipe.images.as_dict(), recipe.evaluation.precision))
    everything = _Table([train, *([held_out] if held_out else [])], recipe.images.evaluation(), (), recipe.images)
    varied = recipe.augment.training(recipe.images)
    copies = [_Table([train], varied, (recipe.seed, copy), recipe.images) for copy in range(config.copies or 0)]
    total = len(everything) + sum(map(len, copies))
    with (
        session.processes.main_process_first(),
        tqdm(total=total, desc="features", unit="image", leave=False, disable=None, smoothing=0) as bar,
    ):
        readers: list[VectorReader] = []
        for table in (everything, *copies):
            augmented = () if table is everything else (recipe.augment,)
            name = fingerprint(*known, [key.hex() for key in table.keys], table.seed, *augmented)
            readers.append(_read(folder / f"{name}.features", table, model, session, bar.update))
    size = sum(4 * len(reader) * reader.dim for reader in readers)
    augmented = f" and {len(copies)} augmented copies of {len(copies[0]):,}" if copies else ""
    session.report(
        f"Training reads the features of {len(everything):,} images{augmented} from the cache {folder} "
        f"({size / 1e6:,.1f} MB)."
    )
    plain, *augmented_readers = readers
    rows = copies[0].rows_of(train) if copies else None
    pixels = CachedFeatures(plain, everything.rows_of(train), augmented_readers, rows)
    if held_out is not None:
        held_out = replace(held_out, pixels=CachedFeatures(plain, everything.rows_of(held_out)))
    return train.with_pixels(pixels), held_out


def _read(
    path: Path, table: _Table, model: EmbeddingModel, session: Session, progress: Callable[[int], object]
) -> VectorReader:
    """Open a file of features; if it is missing, damaged or incomplete, compute what is missing."""
    recipe = session.recipe
    rows, width = len(table), 4 * model.backbone.num_features
    with lock_in_turn(path):
        if path.exists() and path.stat().st_size != rows * width:
            session.report(f"{path} is damaged. Its features are computed again.")
            path.unlink()
        if path.exists():
            progress(rows)
        else:
            part = path.with_name(f"{path.name}.part")
            with write_errors(path):
                file = part.open("ab")
            with file:
                done = min(file.tell() // width, rows)
                file.truncate(done * width)  # a kill may have cut the last row
                progress(done)
                size = recipe.evaluation.batch_size
                loader = DataLoader(
                    table,
                    batch_sampler=[[*range(start, min(start + size, rows))] for start in range(done, rows, size)],
                    generator=torch.Generator(),  # the loader draws a seed: not from training's generator
                    **worker_settings(recipe.batches.workers),
                )
                network = PooledFeatures(model).to(pick_device(recipe.training.accelerator))
                for features in embed_batches(network, loader, recipe.evaluation.precision):
                    with write_errors(path):
                        append_rows(file, features)
                    progress(len(features))
                model.cpu()
            with write_errors(path):
                part.replace(path)
    return VectorFile(path, 0, (rows, width // 4), "<f4")


def append_rows(file: BinaryIO, features: Float32[Tensor, "batch dim"]) -> None:
    """Write rows so that they are kept if the process is killed."""
    file.write(features.contiguous().numpy().astype("<f4", copy=False).tobytes())
    file.flush()


def image_keys(pixels: Pixels) -> list[bytes]:
    """Return a key per image: of its unchanged file, or of its pixels if it is not in a file."""
    if isinstance(pixels, CachedPixels):  # the name of the cache identifies the files
        name = pixels.file.path.name
        return [repr((name, *cut)).encode() for cut in zip(pixels.paths, pixels.boxes, strict=True)]
    if isinstance(pixels, FilePixels):
        return [key_of((Path(path), box)) for path, box in zip(pixels.paths, pixels.boxes, strict=True)]
    images = (pixels.load(index, None, "auto") for index in range(len(pixels)))
    return [hashlib.sha256(f"{image.mode} {image.size} ".encode() + image.tobytes()).digest() for image in images]


def fingerprint(*parts: object) -> str:
    """Hash plain data, dataclasses, and the user's own objects by the name and the source code of their class."""
    return hashlib.sha256(json.dumps([_VERSION, *parts], default=_describe).encode()).hexdigest()[:16]


def network_key(model: EmbeddingModel) -> str:
    """Hash a backbone and its pooling, with their weights."""
    config = model.config
    settings = (config.backbone_name, config.backbone_args, config.pooling, config.image_size, config.in_channels)
    state = {name: value for name, value in model.state_dict().items() if not name.startswith("head.")}
    digests = {
        name: hashlib.sha256(safetensors.torch.save({"": value.contiguous()})).hexdigest()
        for name, value in state.items()
    }
    described = getattr(model.backbone, "description", dict)()  # the content of the network's own file
    return fingerprint(settings, described, _describe(config.custom_backbone), digests)


def _describe(thing: object) -> object:
    if thing is None:
        return None
    if is_dataclass(thing) and not isinstance(thing, type):
        return asdict(thing)
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    try:
        source = inspect.getsource(kind)  # pyright: ignore[reportArgumentType]
    except (OSError, TypeError):  # not in a file, as if typed in a shell, or not Python
        source = ""
    return [re.sub(r" at 0x[0-9a-f]+", "", repr(thing)), source]
