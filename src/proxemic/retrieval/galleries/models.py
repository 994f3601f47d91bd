"""The model of a gallery: whether a given one, or given vectors, fit it, and how the gallery stores its vectors."""

import os
from typing import Any

import numpy as np
from jaxtyping import Float, Float32

from proxemic.arrays import as_tensor
from proxemic.data.rows import Rows
from proxemic.errors import UserError
from proxemic.lazy import is_tensor
from proxemic.retrieval.galleries.stores import GalleryInfo
from proxemic.retrieval.vectors.embedder import Embedder
from proxemic.retrieval.vectors.embedding import embed_rows, model_for, useless_vectors


def load_for(model: str | os.PathLike[str], info: GalleryInfo) -> Embedder:
    """Load the model of a gallery in the precision of its vectors."""
    return Embedder.load(model, precision="bf16-mixed" if info.precision == "bf16-mixed" else "32-true")


def check_model(embedder: Embedder, info: GalleryInfo, address: str) -> Embedder:
    """Return an embedder as the gallery uses it; raise `UserError` if it is not the gallery's model."""
    embedder = embedder.as_in(info)
    if info.embedder is not None and embedder.checksum != info.embedder:
        raise UserError(
            f"{embedder.path or 'The model'} (checksum {embedder.checksum[:12]}) is not the model of {address} "
            f"({info.embedder[:12]}), which made its vectors: give that model, or create another gallery."
        )
    if info.precision not in (None, embedder.precision):
        raise UserError(
            f"{embedder.path or 'The model'} computes in {embedder.precision}, but the vectors of {address} were "
            f"computed in {info.precision}: load it with that precision."
        )
    if embedder.dim != info.dim:
        raise UserError(
            f"{embedder.path or 'The model'} makes vectors of {embedder.dim} dimensions, but those of {address} have "
            f"{info.dim}: give the model that made them."
        )
    return embedder


def check_rows(rows: Rows, info: GalleryInfo, address: str, embedder: Embedder | None) -> Embedder | None:
    """Refuse rows that cannot be added before anything is changed; return the model that must embed them."""
    model = model_for(rows, embedder, info.embedder, address)
    if model is not None:
        return model
    if rows.pixels.dim != info.dim:
        raise ValueError(f"vectors have {rows.pixels.dim} dimensions, but those of {address} have {info.dim}.")
    if rows.precision is not None and info.precision not in (None, rows.precision):
        raise UserError(
            f"The vectors were computed in {rows.precision}, but those of {address} in {info.precision}: embed the "
            f"photos with --precision {info.precision}."
        )
    for _ in embed_rows(rows, None, info.distance):
        pass
    return None


def check_vectors(vectors: Any, info: GalleryInfo, address: str) -> Float32[np.ndarray, "rows dim"]:
    """Validate vectors; return them in float32, scaled to unit length if the gallery is searched by cosine."""
    if not isinstance(vectors, np.ndarray) or vectors.dtype != np.float32:
        vectors = as_tensor("vectors", vectors).detach().cpu()
    kind = str(vectors.dtype).removeprefix("torch.")
    if vectors.ndim != 2 or vectors.shape[1] != info.dim or "float" not in kind:
        raise ValueError(
            f"vectors are {kind} of shape {list(vectors.shape)}, but those of {address} are floats [rows, {info.dim}]."
        )
    numbers = vectors.float().numpy() if is_tensor(vectors) else vectors
    for row, why in useless_vectors(numbers, info.distance).items():
        raise ValueError(f"vector {row} {why}: leave it out, or compute it again.")
    return as_stored(numbers, info)


def as_stored(vectors: Float[np.ndarray, "rows dim"] | None, info: GalleryInfo) -> Float32[np.ndarray, "rows dim"]:
    """Return vectors as a gallery stores them: of unit length if it is searched by cosine."""
    assert vectors is not None
    if info.distance == "cosine":
        # In float64, as the square of a large length overflows float32.
        lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))[:, None]
        vectors = np.divide(vectors, lengths, out=np.empty_like(vectors), casting="same_kind")
    return np.ascontiguousarray(vectors, np.float32)
