"""Summarise a gallery without a search."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from proxemic.models import read_checksum
from proxemic.retrieval.galleries.items import further_columns
from proxemic.retrieval.galleries.stores import Distance, GalleryInfo, Store
from proxemic.retrieval.vectors.embedder import first_checksum
from proxemic.runs.directory import RunDirectory
from proxemic.runs.precision import computed_in
from proxemic.runs.pretrained import kept_at
from proxemic.tables import size_text

ModelState = Literal["unknown", "there", "missing", "changed"]


@dataclass(frozen=True)
class GallerySummary:
    """Facts about a gallery, found without a search.

    Args:
        address: The gallery's address.
        rows: Number of rows.
        labels: Number of distinct labels.
        unlabelled: Number of rows without a label.
        columns: Names of further columns.
        dim: Number of dimensions of a vector.
        distance: ``cosine`` or ``euclidean``.
        model: The path or name of the model when the gallery was created; None without a model.
        checksum: Identifier of the model of the vectors; None if it is unknown.
        precision: The precision in which the vectors were computed; None if it is unknown.
        model_state: Whether the model is still there; ``changed`` means that another model is in its place.
        unfinished: When the model's run stopped if it is unfinished, such as "stopped in epoch 1 of 30".
        index: The kind of index, its settings, the number of its rows, and its recall if that was measured.
        bytes: Bytes on disk; None if the store cannot tell.
        roots: Folders and URLs below which images may be opened.
    """

    address: str
    rows: int
    labels: int
    unlabelled: int
    columns: Sequence[str]
    dim: int
    distance: Distance
    model: str | None
    checksum: str | None
    precision: str | None
    model_state: ModelState
    unfinished: str | None
    index: Mapping[str, Any]
    bytes: int | None
    roots: Sequence[str] = ()

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain data."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return a line for each fact."""
        return [f"{name:8} {text}" for name, text in self.facts().items()]

    def facts(self) -> dict[str, str]:
        """Return the facts as words, by their names."""
        count = f"{self.rows:,}"
        if self.labels:
            count += f" with {self.labels:,} {'labels' if self.labels > 1 else 'label'}"
            count += f", {self.unlabelled:,} of them without one" * (self.unlabelled > 0)
        model = {
            "unknown": "not known: it is searched by vectors, or with --model",
            "there": f"{self.model}{f', whose run {self.unfinished}' if self.unfinished else ''}",
            "missing": f"{self.model}, which is missing: give its path with --model",
            "changed": f"{self.model}, which is another model now: give the gallery's with --model",
        }[self.model_state]
        index = str(self.index["kind"])
        recall = self.index.get("recall@10")
        settings = {name: value for name, value in self.index.items() if name not in ("kind", "rows", "recall@10")}
        if settings:
            index += f" ({', '.join(f'{name} {value}' for name, value in settings.items())})"
        if self.index["rows"] != self.rows:
            index += f" of {self.index['rows']:,} rows; the others are searched exactly"
        if recall is not None:
            index += f", recall@10 {recall:.3f}"
        return {
            "rows": count,
            "columns": ", ".join(self.columns) or "none but path and label",
            "photos": f"opened below {', '.join(self.roots)}" if self.roots else "none is opened",
            "vectors": f"{self.dim:,} dimensions, {self.distance} distance{computed_in(self.precision)}",
            "model": model,
            "index": index,
            "on disk": "not known" if self.bytes is None else size_text(self.bytes),
        }


def summarize_store(store: Store) -> GallerySummary:
    """Collect the facts about a gallery, and count its labels.

    Args:
        store: The store of the gallery.

    Returns:
        The facts.

    Raises:
        UserError: If the store cannot be reached or read.

    >>> import tempfile
    >>> from proxemic.retrieval.galleries.stores import create_store
    >>> summarize_store(create_store(tempfile.mkdtemp(), GalleryInfo(dim=8))).facts()["vectors"]
    '8 dimensions, cosine distance'
    """
    info, counts = store.info, store.count_labels()
    state = _state(info)
    return GallerySummary(
        store.address,
        sum(counts.values()),
        len(counts.keys() - {None}),
        counts.get(None, 0),
        further_columns(store.columns),
        info.dim,
        info.distance,
        info.model,
        info.embedder,
        info.precision,
        state,
        RunDirectory.of_model(kept_at(info.model)).stopped if info.model is not None and state == "there" else None,
        store.index,
        store.size,
        store.roots,
    )


def _state(info: GalleryInfo) -> ModelState:
    if info.model is None:
        return "unknown"
    if not kept_at(info.model).exists():
        return "missing"
    try:
        made = read_checksum(kept_at(info.model))
        return "there" if info.embedder in (made, first_checksum(made, info.dim)) else "changed"
    except ValueError:
        return "changed"
