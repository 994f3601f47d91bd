"""Summary of a gallery, without a search."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from proxemic.models import read_checksum
from proxemic.retrieval.embedder import first_checksum
from proxemic.retrieval.items import further_columns
from proxemic.retrieval.stores import Distance, GalleryInfo, Store
from proxemic.runs.directory import RunDirectory
from proxemic.runs.evaluate import computed_in
from proxemic.runs.pretrained import kept_at

ModelState = Literal["unknown", "there", "missing", "changed"]


@dataclass(frozen=True)
class GallerySummary:
    """Facts about a gallery, found without a search.

    Args:
        address: Where it is.
        rows: Pictures, or vectors.
        labels: Different labels.
        unlabelled: Rows without one.
        columns: Further columns.
        dim: Numbers of a vector.
        distance: ``cosine`` or ``euclidean``.
        model: Where the model was when the gallery was created; None where it has none.
        checksum: Identifies the model of its vectors; None if it is unknown.
        precision: The precision in which the vectors were computed; None where it is not known.
        model_state: Whether that model is there; ``changed`` where another one is in its place.
        unfinished: Where the run of that model stopped, if it is there and unfinished: "stopped in epoch 1 of 30".
        index: The kind of index, its settings, its rows, and its recall where that was measured.
        bytes: On disk; None where the store does not say.
        roots: Folders and addresses below which pictures may be opened.
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
        """Describe each fact in a line."""
        return [f"{name:8} {text}" for name, text in self.facts().items()]

    def facts(self) -> dict[str, str]:
        """Describe each fact under its name."""
        count = f"{self.rows:,}"
        if self.labels:
            count += f" with {self.labels:,} {'labels' if self.labels > 1 else 'label'}"
            count += f", {self.unlabelled:,} of them without one" * (self.unlabelled > 0)
        model = {
            "unknown": "not known: it is searched by vectors, or with --model",
            "there": f"{self.model}{f', whose run {self.unfinished}' if self.unfinished else ''}",
            "missing": f"{self.model}, where there is none now: give it with --model",
            "changed": f"{self.model}, where there is another one now: give the gallery's with --model",
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
            "pictures": f"opened below {', '.join(self.roots)}" if self.roots else "none is opened",
            "vectors": f"{self.dim:,} numbers each, {self.distance} distance{computed_in(self.precision)}",
            "model": model,
            "index": index,
            "on disk": "not known" if self.bytes is None else _size(self.bytes),
        }


def summarize_store(store: Store) -> GallerySummary:
    """Summarise a gallery; count its labels."""
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


def _size(size: int) -> str:
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size} bytes"
