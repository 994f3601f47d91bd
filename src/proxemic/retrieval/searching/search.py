"""Search a gallery for many queries, without those that cannot be read."""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from jaxtyping import Float32

from proxemic.data.rows import Rows
from proxemic.data.sources.listing import absolute, roots_of_rows
from proxemic.errors import UserError
from proxemic.lazy import torch
from proxemic.retrieval.galleries.gallery import Gallery
from proxemic.retrieval.galleries.hits import Hit, hits_of
from proxemic.retrieval.galleries.items import Where, further_columns
from proxemic.retrieval.galleries.stores import Neighbours
from proxemic.retrieval.vectors.embedding import gather, open_sources
from proxemic.tables import MISSING, Table


@dataclass(frozen=True)
class Answer:
    """Result of a query.

    Args:
        query: The path of the image, the name of the row, or the text.
        label: The label of the query, or None.
        hits: The hits, nearest first.
    """

    query: str
    label: str | None
    hits: Sequence[Hit]


@dataclass(frozen=True)
class SearchResult:
    """Result of a search.

    Args:
        gallery: The address of the gallery.
        answers: The result of each query that could be read.
        columns: The further columns of the gallery.
        unreadable: Why other queries could not be read, by their names.
        roots: Folders and URLs below which images of the gallery and of the queries may be opened.
        embedded_by: How many queries were embedded by torch and by ONNX Runtime; other embeddings were in the cache.
    """

    gallery: str
    answers: Sequence[Answer]
    columns: Sequence[str]
    unreadable: Mapping[str, str]
    roots: Sequence[str] = ()
    embedded_by: Mapping[str, int] = field(default_factory=dict)

    def text(self, form: Literal["table", "json", "csv"] = "table") -> str:
        """Format as a table for people, as a JSON list of queries with their hits, or as CSV with a row per hit."""
        if form == "json":
            content = [
                {
                    "query": answer.query,
                    "hits": [
                        {"id": hit.id, "path": hit.path, "label": hit.label, "distance": hit.distance, **hit.columns}
                        for hit in answer.hits
                    ],
                }
                for answer in self.answers
            ]
            return json.dumps(content, indent=2)
        ranked = [(answer, rank, hit) for answer in self.answers for rank, hit in enumerate(answer.hits, start=1)]
        if form == "csv":
            columns = ["query", "rank", "id", "path", "label", "distance", *self.columns]
            rows = [
                [answer.query, rank, hit.id, hit.path, hit.label, hit.distance, *hit.columns.values()]
                for answer, rank, hit in ranked
            ]
            return Table(columns, rows).text("csv")
        if not ranked:
            return "nothing found"
        # The first hit of each query names it.
        queried = ["query"] * (len(self.answers) > 1)
        labelled = ["label"] * any(hit.label is not None for _, _, hit in ranked)
        columns = [*queried, "", "distance", *labelled, *self.columns, "path"]
        rows = [
            [
                *([answer.query if rank == 1 else ""] if queried else []),
                rank,
                f"{hit.distance:.4f}",
                *([hit.label or MISSING] if labelled else []),
                *(hit.columns[name] or MISSING for name in self.columns),
                hit.path,
            ]
            for answer, rank, hit in ranked
        ]
        return Table(columns, rows, align="".join("r" if name in ("", "distance") else "l" for name in columns)).text()


def search_gallery(
    gallery: Gallery,
    *queries: str | os.PathLike[str] | Rows,
    text: str | Sequence[str] = (),
    k: int = 10,
    where: Where | None = None,
    without_self: bool = False,
    rerank: bool = False,
    expand: int = 0,
    batch_size: int = 64,
    workers: int = 0,
) -> SearchResult:
    """Find the k nearest images of a gallery to each readable query, as `Gallery.search`.

    Args:
        gallery: The gallery to search.
        queries: Sources of `list_pictures`, or files of vectors; an image of the gallery finds itself.
        text: Describe images in words, for a model with a text tower (CLIP, SigLIP); may be repeated.
        k: Hits per query, 1 or more.
        where: Conditions on hits, as in `Gallery.search`.
        without_self: Leave out the query itself if its path is in the gallery.
        rerank: Rank the first hundred hits again by `k_reciprocal_distances`, which favours images that are neighbours
            of each other; the reported distances are still those to the query.
        expand: Search a second time by the mean of the query and this many first hits, see
            `proxemic.metrics.expand_queries`; the distances are then those to the mean. 0 searches once.
        batch_size: Queries that are embedded at once.
        workers: Processes that read queries.

    Returns:
        Answers in the order of the queries, then those of files of vectors, then those of texts.

    Raises:
        UserError: If no query can be read, or `text` is given, but the model has no text tower.
        ValueError: If k or `expand` is out of range, `where` names an unknown column, or `expand` is given and the
            gallery is not searched by cosine.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> folder = Path(tempfile.mkdtemp())
    >>> gallery = Gallery.create(folder / "shop", dim=2)
    >>> _ = gallery.add_vectors(np.eye(2), ["shoe.jpg", "hat.jpg"], ["shoe", "hat"])
    >>> np.save(folder / "new.npy", np.array([[0.6, 0.8]]))
    >>> print(search_gallery(gallery, folder / "new.npy", k=1).text("csv").splitlines()[0])
    query,rank,id,path,label,distance
    >>> search_gallery(gallery, folder / "new.npy", k=1).answers[0].hits[0].label
    'hat'
    """
    gallery.check_question(k, where)
    if expand < 0 or (expand and gallery.store.info.distance != "cosine"):
        raise ValueError(f"expand is {expand!r}, but must be 0 or more, and 0 for a gallery of euclidean distance.")
    before = _computed_by(gallery)
    embedded = embed_queries(gallery, *queries, text=text, batch_size=batch_size, workers=workers)
    assert embedded.embeddings is not None
    asked = _expanded(gallery, embedded, expand, where) if expand else embedded.embeddings
    k_found = k + without_self
    if rerank:
        from proxemic.metrics.retrieval import RERANKED

        k_found = max(k_found, RERANKED)
    neighbours = gallery.neighbours(asked, k_found, where)
    hits = hits_of(gallery.store, _reranked(gallery, asked, neighbours) if rerank else neighbours)
    if without_self:
        own = [{name, absolute(name)} for name in embedded.names]
        hits = [[hit for hit in item if hit.path not in names] for item, names in zip(hits, own, strict=True)]
    answers = [
        Answer(name, label, hit[:k]) for name, label, hit in zip(embedded.names, embedded.labels, hits, strict=True)
    ]
    columns = further_columns(gallery.store.columns)
    roots = (*gallery.store.roots, *roots_of_rows(embedded))
    made = _computed_by(gallery) - before
    return SearchResult(gallery.store.address, answers, columns, embedded.unreadable, roots, made)


def _computed_by(gallery: Gallery) -> Counter[str]:
    embedder = vars(gallery).get("embedder")  # without loading it for vectors
    return Counter() if embedder is None else Counter(embedder.source.computed_by)


def _expanded(gallery: Gallery, queries: Rows, count: int, where: Where | None) -> Float32[np.ndarray, "queries dim"]:
    """Replace each query by the mean of itself and its first hits other than itself."""
    from proxemic.metrics import expand_queries

    assert queries.embeddings is not None
    expanded = []
    found = gallery.neighbours(queries.embeddings, count + 1, where).ids
    for name, query, ids in zip(queries.names, queries.embeddings, found, strict=True):
        vectors, items = gallery.store.rows(ids[ids >= 0])
        others = [row for row, path in enumerate(items["path"].to_pylist()) if path not in (name, absolute(name))]
        k = min(count, len(others))
        query = torch.from_numpy(query[None])
        expanded.append(expand_queries(query, torch.from_numpy(vectors[others]), k=k) if k else query)
    return torch.cat(expanded).numpy()


def _reranked(gallery: Gallery, queries: Float32[np.ndarray, "queries dim"], found: Neighbours) -> Neighbours:
    """Rank the hits of each query again; missing rows stay at the end."""
    from proxemic.metrics import k_reciprocal_distances

    distances, ids = found.distances.copy(), found.ids.copy()
    for place, query in enumerate(queries):
        vectors, items = gallery.store.rows(ids[place][ids[place] >= 0])  # ascending, without those removed meanwhile
        there = items["id"].to_numpy()
        query, rows = torch.from_numpy(query[None]), torch.from_numpy(vectors)
        new = k_reciprocal_distances(query, rows, distance=gallery.store.info.distance)[0]
        rank = dict(zip(there.tolist(), new.tolist(), strict=True))
        order = sorted(range(len(ids[place])), key=lambda at: rank.get(int(ids[place][at]), math.inf))
        distances[place], ids[place] = distances[place][order], ids[place][order]
    return Neighbours(distances, ids)


def embed_queries(
    gallery: Gallery,
    *queries: str | os.PathLike[str] | Rows,
    text: str | Sequence[str] = (),
    batch_size: int = 64,
    workers: int = 0,
) -> Rows:
    """Embed the queries of `search_gallery`; `UserError` if none can be read."""
    texts = [text] if isinstance(text, str) else [*text]
    if not (queries or texts):
        raise UserError("There is nothing to search for: give photos, files of vectors, or texts (--text).")
    described = Rows.of(path=texts)
    if texts:
        described = replace(described, embeddings=gallery.embedder.embed_texts(texts, batch_size=batch_size).numpy())
    if not queries:
        return described
    opened = open_sources(queries, missing=True)
    info, address = gallery.store.info, gallery.store.address
    embedder = gallery.embedder_for(opened)
    reading = {"checksum": info.embedder, "owner": address, "batch_size": batch_size, "workers": workers}
    found = gather(opened, embedder, info.distance, **reading)
    return replace(Rows.join([found, described]), folders=roots_of_rows(found)) if texts else found
