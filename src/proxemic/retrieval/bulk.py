"""Embed many pictures into a file, by one process or several, and resume after a kill."""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from logging import getLogger
from pathlib import Path
from typing import Literal

import platformdirs
import torch
from tqdm import tqdm

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
from proxemic.files import readable, write_csv
from proxemic.locks import exclusive_lock
from proxemic.outputs import check_output, has_columns, is_embeddings
from proxemic.retrieval.embedder import Embedder, check_reading, enough_workers
from proxemic.retrieval.parts import Parts
from proxemic.retrieval.ray_stage import embed_on_ray
from proxemic.runs.evaluate import EvaluationPrecision
from proxemic.runs.pretrained import DEFAULT_MODEL
from proxemic.runs.processes import Processes, join_processes

Sources = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class EmbeddedFile:
    """Result of embedding to a file.

    Args:
        path: The file of the embeddings, or its address.
        rows: Number of embeddings in the file.
        dim: Numbers of an embedding.
        precision: Precision in which the embeddings were computed.
        unreadable: Why pictures could not be read, by their names.
        others: Files beside it: the list of unreadable pictures and, for .npy, the table and the metadata.
        embedded: Pictures embedded by this call, not by an interrupted one before.
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
    """Embed pictures, with or without labels, and write the embeddings to a file.

    Finished parts are stored in the folder ``OUT.parts`` beside the file until the file is written, so that the same
    call continues after a kill; pictures that have changed meanwhile are embedded again. The file has the same bytes
    whether the work was interrupted or not, and with one process or several.

    Args:
        sources: One or several folders, tables, patterns, lists or pictures, see `list_pictures`; for a model that is
            only a head, one file of vectors.
        out: A .parquet file, with paths and, if there are any, labels; or a .npy file, with these in ``OUT.paths.csv``
            and the checksum of the model in ``OUT.json`` beside it. ``OUT`` is the name without its ending. May be an
            address, such as ``s3://bucket/vectors.parquet``; finished parts are then stored in the user's cache folder.
        model: A run, a ``model.safetensors``, an ONNX file, or a name, see `Embedder.load`; None takes
            EfficientNet-Lite0 with ImageNet's weights.
        batch_size: Pictures per batch of the network, in each process.
        workers: Processes that read pictures for each process; None takes as many as there are cores.
        precision: ``32-true``, or ``bf16-mixed``, which may be faster and is noted in the file.
        device: Where to compute: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        strict: Fail if a picture cannot be read, after embedding all others; by default it is left out. Such pictures
            are listed in ``OUT.unreadable.csv`` beside the file.
        engine: ``local``, the processes of this command; or ``ray``, the nodes of a cluster, which must see the model
            and the pictures under the same names.
        ray_address: Address of the cluster, such as ``auto`` or ``ray://head:10001``; None starts Ray on this machine.
        report: Called with notes for the user. None logs them.

    Returns:
        The result; None in processes other than the first.

    Raises:
        UserError: If the model or the sources cannot be read, no picture is readable, or the file cannot be written.
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
    folder = working_folder(target)
    again = f"Start the same command again, and it goes on from {folder}."
    with join_processes(again) as processes:
        say = (report or getLogger("proxemic").info) if processes.is_first else lambda _: None
        if device == "auto" and engine == "local" and torch.cuda.is_available():
            device = f"cuda:{processes.local_rank % torch.cuda.device_count()}"
        if model is None:
            say(f"No model is given: {DEFAULT_MODEL} embeds the pictures (--model).")
        embedder = Embedder.load(model or DEFAULT_MODEL, device=device, precision=precision)
        pictures = _list(embedder, sources)
        if pictures.ignored:
            say(f"{len(pictures.ignored):,} files are not pictures by their names, such as {pictures.ignored[0]}.")
        for note in pictures.notes:
            say(note)
        # The first process locks the folder for all processes.
        with exclusive_lock(folder) if processes.is_first else nullcontext():
            processes.wait()
            if workers is None:
                workers = enough_workers(int(os.environ.get("LOCAL_WORLD_SIZE", processes.world)))
            began = time.monotonic()
            parts = Parts(folder, embedder, pictures, batch_size)
            on_ray = (ray_address, device) if engine == "ray" else None
            embedded = _embed(parts, processes, workers, on_ray, say)
            if not processes.is_first:
                return None
            places, unreadable = parts.known()
            named = {**pictures.unreadable, **{pictures.names[place]: why for place, why in unreadable.items()}}
            others = _write(parts, places, named, target, strict, say)
            made = (len(places), embedder.dim, embedder.precision, named, others, embedded)
            written = EmbeddedFile(target, *made, seconds=time.monotonic() - began)
        parts.remove()
        return written


def working_folder(target: Path | str) -> Path:
    """Return the folder that stores finished parts until the file is written."""
    if isinstance(target, Path):
        return target.with_name(f"{target.name}.parts")
    known = hashlib.sha256(target.encode()).hexdigest()[:16]
    return platformdirs.user_cache_path("proxemic") / "embedding" / known


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


def _embed(
    parts: Parts,
    processes: Processes,
    workers: int,
    on_ray: tuple[str | None, str] | None,
    say: Callable[[str], object],
) -> int:
    """Embed the missing parts, each process its share; return the number of pictures of all processes."""
    missing = parts.missing()
    digests = processes.all_gather(f"{parts.digest} {missing}")
    if len(set(digests)) > 1:
        raise UserError(
            "The processes do not see the same pictures and the same working folder: give --out and sources that all "
            "machines share."
        )
    count = sum(map(parts.count, missing))
    if len(missing) < len(parts):
        done = len(parts.pictures) - count
        say(f"{done:,} of {len(parts.pictures):,} were embedded before: going on from {parts.folder}.")
    share = missing[processes.rank :: processes.world]
    of = f", process 1 of {processes.world}" if processes.world > 1 else ""
    with tqdm(
        total=sum(map(parts.count, share)),
        desc=f"embedding{of}",
        unit="image",
        leave=False,
        disable=None if processes.is_first else True,
        smoothing=0.05,
    ) as bar:
        if on_ray is None:
            parts.embed(share, workers, bar.update)
        elif share:
            embed_on_ray(parts, share, *on_ray, bar.update)
    processes.wait()
    return count


def _write(
    parts: Parts,
    places: list[int],
    unreadable: dict[str, str],
    out: Path | str,
    strict: bool,
    say: Callable[[str], object],
) -> tuple[Path | str, ...]:
    """Write all files, the embeddings last; return the other files."""
    listed = beside(out, "unreadable.csv")
    others: list[Path | str] = []
    if unreadable:
        listing = ((absolute(name), why) for name, why in unreadable.items())
        with write_to(listed, parts.folder) as temporary:
            write_csv(temporary, ("path", "why"), listing)
        others.append(listed)
        few = "; ".join(f"{readable(name)}: {why.rstrip('.')}" for name, why in [*unreadable.items()][:3])
        few += "; ..." if len(unreadable) > 3 else ""
        count = len(unreadable) + len(places)
        said = f"{len(unreadable):,} of {count:,} pictures cannot be read, listed in {listed} ({few})"
        if not places:
            parts.remove()
            raise UserError(f"None of {len(unreadable):,} pictures can be read, listed in {listed} ({few}).")
        if strict:
            parts.forget_unreadable()
            raise UserError(
                f"{said}: mend them, or leave them out, and start the same command again; the others are kept in "
                f"{parts.folder}."
            )
        say(f"{said}.")
    else:
        remove_file(listed)
    shown = parts.pictures.take(places) if len(places) < len(parts.pictures) else parts.pictures
    if not parts.embedder.takes_vectors:  # names of vectors need not be paths
        shown = shown.with_texts(path=[absolute(name) for name in shown.names])
    others += files_of_embeddings(out)[1:]
    shape = (len(places), parts.embedder.dim)
    shown = replace(shown, made_by=parts.embedder.checksum, precision=parts.embedder.precision)
    write_embedding_chunks(out, parts.chunks(GROUP), shape, shown, parts.folder)
    return tuple(others)
