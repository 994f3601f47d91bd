"""Embed on a Ray cluster: as a stage of Ray Data, and for `embed_to_file`."""

import contextlib
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from tqdm import tqdm

from proxemic.data.pixels import FilePixels
from proxemic.data.rows import Rows
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.retrieval.vectors.embedder import Embedded, Embedder
from proxemic.safe_path import safe_path

_TOGETHER = 1024  # images that an actor embeds at once
_STARTING = 300  # seconds until the first worker must have loaded the model


class EmbedStage:
    """A stage of Ray Data that embeds a column of images and adds a column ``embedding`` to each batch.

    Each actor loads the model once, on its own node: give a path that all nodes see.

    Args:
        model: A run, a ``model.safetensors``, or an ONNX file; see `Embedder.load`.
        column: The column of images. Arrays ``[H, W, C]``, as from ``ray.data.read_images``, are dropped from the
            result; paths and URLs are kept.
        settings: Further arguments of `Embedder.load`.

    Example::

        images = ray.data.read_images("s3://bucket/photos", include_paths=True)
        images.map_batches(EmbedStage, fn_constructor_args=("/shared/runs/photos",), batch_size=64, concurrency=4)
    """

    def __init__(self, model: str, column: str = "image", **settings: Any) -> None:
        self.embedder = Embedder.load(model, **settings)
        self.column = column

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Embed a batch, whose columns are arrays."""
        pictures = [*batch[self.column]]
        kept = {name: values for name, values in batch.items() if name != self.column or isinstance(pictures[0], str)}
        return {**kept, "embedding": self.embedder.embed(pictures, batch_size=len(pictures)).numpy()}


class _Worker:
    def __init__(self, model: str, device: str, precision: Any, batch_size: int) -> None:
        self.embedder = Embedder.load(model, device=device, precision=precision)
        self.batch_size = batch_size

    def is_ready(self) -> bool:
        """Answer as soon as the constructor has loaded the model."""
        return True

    def embed(self, first: int, pixels: Any) -> tuple[int, Embedded]:
        source = self.embedder.source
        return first, Embedded.join([*source.compute(pixels, self.batch_size, 0)], source.dim)


def import_ray() -> Any:
    """Import Ray, whose types are incomplete."""
    # Otherwise uv, if it started the command, also starts the workers, with flags that it does not know.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    with optional_dependency("ray"):
        return import_module("ray")


def embed_on_ray(
    embedder: Embedder, pictures: Rows, batch_size: int, address: str | None, device: str
) -> Iterator[Embedded]:
    """Embed images on a cluster, or on this machine without an address: one actor per GPU, or else per core.

    If an actor or its node dies, the actor is restarted and embeds its part again. This process keeps each part as it
    arrives, and yields parts in any order.
    """
    keeping = embedder.source.keeping(pictures.pixels)
    missing = np.arange(len(pictures)) if keeping is None else keeping.missing
    if len(known := np.setdiff1d(np.arange(len(pictures)), missing)):
        for part in embedder.embed_readable(pictures.pixels.select(known)):
            yield part.at(known)
    if not len(missing):
        return
    ray = import_ray()
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        # Ray puts the current directory on its workers' module path: make that the folder of this package.
        with safe_path(), contextlib.chdir(Path(__file__).parents[2]):
            ray.init(address, **quiet, **({} if address else {"include_dashboard": False}))
    except (ConnectionError, ValueError, RuntimeError) as error:
        why = " ".join(str(error).split())[:200]
        raise UserError(f"Ray cannot be reached at {address or 'this machine'}: {why}") from error
    try:
        with keeping or nullcontext(), tqdm(total=len(missing), desc="embedding", unit="image", disable=None) as bar:
            for part in _share(ray, embedder, pictures.pixels, missing, batch_size, device):
                if keeping is not None:
                    keeping.add(part.places, part.vectors, part.engine)
                bar.update(len(part))
                yield replace(part, vectors=embedder.finish(part.vectors))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError | ValueError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        why = " ".join(str(error).split())[:200]
        raise UserError(
            f"The cluster lost its workers ({why}): start the same command again, and it goes on."
        ) from error
    finally:
        ray.shutdown()


def _share(
    ray: Any, embedder: Embedder, pixels: Any, missing: Int64[np.ndarray, " missing"], batch_size: int, device: str
) -> Iterator[Embedded]:
    there = ray.cluster_resources()
    gpus = int(there.get("GPU", 0)) if device in ("auto", "cuda") else 0
    size = batch_size * max(1, _TOGETHER // batch_size)
    shares = {first: missing[first : first + size] for first in range(0, len(missing), size)}
    count = min(gpus or int(there.get("CPU", 1)), len(shares))
    worker = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0, max_restarts=-1, max_task_retries=10)(_Worker)
    given = (str(embedder.path), "cuda" if gpus else "cpu", embedder.precision, batch_size)
    workers = [worker.remote(*given) for _ in range(count)]
    ready, _ = ray.wait([worker.is_ready.remote() for worker in workers], timeout=_STARTING)
    if not ready:
        raise UserError(
            f"Ray has started no worker in {_STARTING} seconds: look into its logs (/tmp/ray/session_latest/logs of "
            "the head node), and whether all nodes have proxemic and the model."
        )
    pool = import_module("ray.util.actor_pool").ActorPool(workers)
    given = ((first, _absolute(pixels.select(share))) for first, share in shares.items())
    for first, part in pool.map_unordered(lambda actor, share: actor.embed.remote(*share), given):
        yield part.at(shares[first])


def _absolute(pixels: Any) -> Any:
    """Return images with absolute paths, as other machines need them."""
    if not isinstance(pixels, FilePixels):
        return pixels
    paths = [path.absolute() if isinstance(path, Path) else path for path in pixels.paths]
    return FilePixels(paths, pixels.boxes)
