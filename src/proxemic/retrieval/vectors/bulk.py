"""Embed many images into a file, by one process or several, and resume after a kill."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from logging import getLogger
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float32

from proxemic.caches import cache_folder
from proxemic.data.embeddings import (
    GROUP,
    beside,
    files_of_embeddings,
    open_rows,
    write_embedding_chunks,
)
from proxemic.data.formats.tables import EMBEDDING_COLUMNS
from proxemic.data.remote import path_or_address, remove_file, write_to
from proxemic.data.rows import Rows
from proxemic.data.sources.listing import absolute, list_pictures
from proxemic.errors import UserError
from proxemic.files import readable, working_folder, write_csv
from proxemic.outputs import check_output, has_columns, is_embeddings
from proxemic.retrieval.vectors.embedded import Embedded
from proxemic.retrieval.vectors.embedder import Embedder
from proxemic.retrieval.vectors.preparation import check_reading
from proxemic.retrieval.vectors.ray_stage import embed_on_ray
from proxemic.runs.precision import EvaluationPrecision
from proxemic.runs.pretrained import DEFAULT_MODEL
from proxemic.runs.processes import join_processes

_TOGETHER = 1024  # consecutive images that a process embeds
Sources = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class EmbeddedFile:
    """Result of embedding to a file.

    Args:
        path: The file of the embeddings, or its URL.
        rows: Number of embeddings in the file.
        dim: Number of dimensions of an embedding.
        precision: Precision in which the embeddings were computed.
        unreadable: Why images could not be read, by their names.
        others: Files next to it: the list of unreadable images and, for .npy, the table and the metadata.
        embedded: Number of images that this call has embedded; the other embeddings were in the cache.
        seconds: Time of embedding and writing.
    """

    path: Path | str
    rows: int
    dim: int
    precision: EvaluationPrecision
    unreadable: dict[str, str]
    others: tuple[Path | str, ...]
    embedded: int
    seconds: float


def embed_to_file(
    sources: Sources,
    out: str | os.PathLike[str],
    model: str | os.PathLike[str] | None = None,
    *,
    batch_size: int = 64,
    workers: int | None = None,
    precision: EvaluationPrecision = "32-true",
    device: str = "auto",
    strict: bool = False,
    engine: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
    report: Callable[[str], object] | None = None,
) -> EmbeddedFile | None:
    """Embed images, with or without labels, and write the embeddings to a file.

    The embeddings are kept in the user's cache as they are computed. The same call therefore continues after a kill,
    and images that any command has embedded before are not embedded again. Cached embeddings differ by up to 1e-6 from
    those of an uninterrupted call, because a network rounds differently in other batches.

    Args:
        sources: One or several folders, tables, patterns, lists or images, see `list_pictures`; for a model that is
            only a head, one file of vectors.
        out: A .parquet file, with paths and, if there are any, labels; or a .npy file, with these in ``OUT.paths.csv``
            and the checksum of the model in ``OUT.json`` next to it. ``OUT`` is the name without its ending. May be a
            URL, such as ``s3://bucket/vectors.parquet``.
        model: A run, a ``model.safetensors``, an ONNX file, or a name, see `Embedder.load`; None takes
            EfficientNet-Lite0 with ImageNet's weights.
        batch_size: Images per batch of the network, in each process.
        workers: Processes that read images for each process; None takes as many as there are cores.
        precision: ``32-true``, or ``bf16-mixed``, which may be faster and is noted in the file.
        device: Where to compute: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        strict: Fail if an image cannot be read, after embedding all others; by default it is left out. Such images are
            listed in ``OUT.unreadable.csv`` next to the file.
        engine: ``local``, the processes of this command; or ``ray``, the nodes of a cluster, which must see the model
            and the images under the same names.
        ray_address: Address of the cluster, such as ``auto`` or ``ray://head:10001``; None starts Ray on this machine.
        report: Called with notes for the user. None logs them.

    Returns:
        The result; None in processes other than the first.

    Raises:
        UserError: If the model or the sources cannot be read, no image is readable, or the file cannot be written.
        ValueError: If a file is malformed, or an argument is out of its range.
        ImportError: If the network needs timm, transformers or onnxruntime, which is not installed.

    Example::

        written = embed_to_file("archive", "vectors.parquet", "runs/photos")
        print(written.rows, written.unreadable)
    """
    target = path_or_address(out)
    files_of_embeddings(target)
    check_reading(batch_size, workers)
    listed = [sources] if isinstance(sources, str | os.PathLike) else sources
    check_output(target, is_embeddings, [model, *listed], given_as="--out")
    check_output(beside(target, "unreadable.csv"), has_columns(("path", "why")), listed)
    if Path(target).suffix.lower() == ".npy":
        check_output(beside(target, "paths.csv"), has_columns(("path",)), listed)
    with join_processes("Start the same command again, and it goes on.") as processes:
        say = (report or getLogger("proxemic").info) if processes.is_first else lambda _: None
        beside_each_other = int(os.environ.get("LOCAL_WORLD_SIZE", processes.world))
        if beside_each_other < processes.world:
            raise UserError("Several machines do not share what they embed: start this on one, or use --engine ray.")
        if device == "auto" and engine == "local" and torch.cuda.is_available():
            device = f"cuda:{processes.local_rank % torch.cuda.device_count()}"
        if model is None:
            say(f"No model is given: {DEFAULT_MODEL} embeds the photos (--model).")
        embedder = Embedder.load(model or DEFAULT_MODEL, device=device, precision=precision)
        pictures = _list(embedder, sources)
        if pictures.ignored:
            say(f"{len(pictures.ignored):,} files are not photos by their names, such as {pictures.ignored[0]}.")
        for note in pictures.notes:
            say(note)
        workers = _enough_workers(beside_each_other) if workers is None else workers
        reading: dict[str, Any] = {"batch_size": batch_size, "workers": workers}
        began = time.monotonic()
        if processes.world > 1:  # each keeps the vectors of its share, and the first process reads them all
            share = np.arange(len(pictures)) // _TOGETHER % processes.world == processes.rank
            own = pictures.pixels.select(np.flatnonzero(share))
            for _ in embedder.embed_readable(own, description="embedding" if processes.is_first else None, **reading):
                pass
        made = sum(map(int, processes.all_gather(str(embedder.computed))))
        if not processes.is_first:
            return None
        place = target if isinstance(target, Path) else cache_folder("embedding") / "vectors"
        with working_folder(place) as folder:
            if engine == "ray":
                parts = embed_on_ray(embedder, pictures, batch_size, ray_address, device)
            else:
                parts = embedder.embed_readable(pictures.pixels, description="embedding", **reading)
            spool = _Spool(folder, embedder, pictures, parts)
            made += spool.computed
            if known := len(spool.places) - made:
                say(f"{known:,} of {len(pictures):,} photos were embedded before.")
            unreadable = {**pictures.unreadable, **spool.unreadable}
            others = _write(spool, unreadable, target, strict, say)
        facts = (len(spool.places), embedder.dim, embedder.precision, unreadable, others, made)
        return EmbeddedFile(target, *facts, seconds=time.monotonic() - began)


class _Spool:
    """All embeddings in a temporary file, because files state their number first; they come in any order."""

    def __init__(self, folder: Path, embedder: Embedder, pictures: Rows, parts: Iterable[Embedded]) -> None:
        self.folder, self.embedder, self.pictures = folder, embedder, pictures
        shape = (max(1, len(pictures)), embedder.dim)
        self._rows = np.memmap(folder / "vectors", "<f4", "w+", shape=shape)
        self.unreadable: dict[str, str] = {}
        self.computed = 0
        places = list[int]()
        for part in parts:
            if not (good := np.isfinite(part.vectors).all(1)).all():
                place = part.places[int(np.flatnonzero(~good)[0])]
                raise ValueError(
                    f"{pictures.names[place]}: the model's embedding has numbers that are not finite: leave it out, or "
                    "compute with --precision 32-true."
                )
            self._rows[part.places] = part.vectors
            places += part.places
            self.computed += len(part.places) - part.known
            self.unreadable |= {pictures.names[place]: why for place, why in part.unreadable.items()}
        self.places = sorted(places)

    def chunks(self) -> Iterator[Float32[np.ndarray, "rows dim"]]:
        """Yield all embeddings in order, in chunks of equal size; the last may be smaller."""
        for first in range(0, len(self.places), GROUP):
            yield self._rows[self.places[first : first + GROUP]]


def _list(embedder: Embedder, sources: Sources) -> Rows:
    listed = [sources] if isinstance(sources, str | os.PathLike) else [*sources]
    if not embedder.takes_vectors:
        return list_pictures(*listed)
    if len(listed) != 1:
        raise UserError(f"{embedder.path} takes vectors, of one file, but {len(listed)} sources are given: join them.")
    try:
        rows = open_rows(Path(listed[0]), known=EMBEDDING_COLUMNS)
    except ValueError as error:
        raise UserError(f"{embedder.path} takes vectors, but {error}") from error
    return rows if rows.has("path") else rows.with_texts(path=[f"row {row}" for row in range(1, len(rows) + 1)])


def _write(
    spool: _Spool, unreadable: dict[str, str], out: Path | str, strict: bool, say: Callable[[str], object]
) -> tuple[Path | str, ...]:
    """Write all files, the embeddings last; return the other files."""
    pictures, embedder, places = spool.pictures, spool.embedder, spool.places
    listed = beside(out, "unreadable.csv")
    others: list[Path | str] = []
    if unreadable:
        listing = ((absolute(name), why) for name, why in unreadable.items())
        with write_to(listed, spool.folder) as temporary:
            write_csv(temporary, ("path", "why"), listing)
        others.append(listed)
        few = "; ".join(f"{readable(name)}: {why.rstrip('.')}" for name, why in [*unreadable.items()][:3])
        few += "; ..." if len(unreadable) > 3 else ""
        count = len(unreadable) + len(places)
        said = f"{len(unreadable):,} of {count:,} photos cannot be read, listed in {listed} ({few})"
        if not places:
            raise UserError(f"None of {len(unreadable):,} photos can be read, listed in {listed} ({few}).")
        if strict:
            raise UserError(f"{said}: mend them, or leave them out, and start the same command again.")
        say(f"{said}.")
    else:
        remove_file(listed)
    shown = pictures.take(places) if len(places) < len(pictures) else pictures
    if not embedder.takes_vectors:  # names of vectors need not be paths
        shown = shown.with_texts(path=[absolute(name) for name in shown.names])
    others += files_of_embeddings(out)[1:]
    shown = replace(shown, made_by=embedder.checksum, precision=embedder.precision)
    write_embedding_chunks(out, spool.chunks(), (len(places), embedder.dim), shown, spool.folder)
    return tuple(others)


def _enough_workers(processes: int) -> int:
    """Return how many reading workers each of `processes` should start: its part of the cores, 0 except on Linux."""
    return max(1, len(os.sched_getaffinity(0)) // processes) if sys.platform == "linux" else 0
