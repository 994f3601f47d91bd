"""The gallery and its model behind the server: a few threads answer a bounded number of waiting requests."""

import asyncio
import math
import re
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from proxemic.data.reading import UnreadableImageError
from proxemic.errors import UserError
from proxemic.retrieval import Gallery, Hit, Recognition
from proxemic.retrieval.galleries.items import further_columns
from proxemic.retrieval.vectors.embedding import useless_vectors
from proxemic.serve.limits import Limits, Refused
from proxemic.serve.pictures import Decoding, check_query, original, thumbnail

_THREADS = 2  # for decoding images, and as many for reading the gallery
_MOST_ROWS = 256  # waiting requests without an image
_AT_ONCE = 16  # queries in a batch of the network
_LABELS = 500  # offered by the page

_AWAY = "The gallery cannot be searched at the moment; the server's terminal says why. Try again later."

Conditions = dict[str, list[str | None]]
"""The allowed values of each column."""


class _Query(NamedTuple):
    prepared: Tensor | str
    k: int  # 0 asks for the vector
    where: Conditions


class Engine:
    """Answer requests about a gallery; `messages` are lines for the terminal.

    Raises:
        UserError: If there is no such gallery, its model is missing, or the requested threshold was not learnt.
    """

    def __init__(
        self,
        address: str,
        model: str | None = None,
        rate: float | None = None,
        threshold: float | None = None,
        limits: Limits = Limits(),
    ) -> None:
        self._limits = limits
        self._room = {"query": limits.queue, "row": _MOST_ROWS}
        self._waiting = Counter[str]()
        self._threads = {kind: ThreadPoolExecutor(_THREADS, kind) for kind in ("decode", "row")}
        self._decoding = Decoding(limits.pixels)
        # A single thread, as torch starts helper threads for each thread in which it computes.
        self._threads["model"] = ThreadPoolExecutor(1, "model")
        self._asked: list[tuple[_Query, asyncio.Future[Any]]] = []  # which the next batch answers
        self._answering: asyncio.Task[None] | None = None
        self._store = threading.Lock()  # only one thread may use a store at a time
        self.gallery = Gallery.open(address, model)
        self._notes: list[str] = []  # for clients, who must not learn paths of this machine
        self.messages: list[str] = []
        self.takes_pictures = self._warm_up(model)
        self.takes_texts = self.takes_pictures and self.gallery.embedder.takes_texts
        self._rate: float | None = None
        self._threshold = self._settle_threshold(rate, threshold)

    def _warm_up(self, model: str | None) -> bool:
        """Embed once, because the first time takes longest; return False if images cannot be embedded."""
        if self.gallery.store.info.model is None and model is None:
            self._note("The gallery's vectors come from an unknown model, so only its own photos can be queries.")
            return False
        if self.gallery.embedder.takes_vectors:
            self._note("The gallery's model takes vectors, so only its own photos can be queries.")
            return False
        picture = Image.new("RGB", (256, 256))
        self._threads["model"].submit(self.gallery.embedder.embed, [picture]).result()
        return True

    def _settle_threshold(self, rate: float | None, threshold: float | None) -> float | None:
        try:
            chosen = self.gallery.settle_threshold(rate, threshold)
        except UserError as error:
            if rate is not None or threshold is not None:
                raise
            note = "No threshold was learnt, so photos are not named (for the operator: proxemic calibrate)."
            self._note(note, f"Photos are not named: {error}")
            return None
        self._notes += chosen.notes
        self.messages += (*chosen.notes, *chosen.advice)
        self._rate = chosen.rate
        return chosen.threshold

    def _note(self, note: str, message: str = "") -> None:
        self._notes.append(note)
        self.messages.append(message or note)

    def close(self) -> None:
        """Close the gallery, unless a thread is stuck in it."""
        for pool in self._threads.values():
            pool.shutdown(wait=False, cancel_futures=True)
        if self._store.acquire(timeout=1):
            self.gallery.close()

    @asynccontextmanager
    async def _request(self, kind: Literal["query", "row"]) -> AsyncIterator[None]:
        """Count a waiting request, limit its time, and turn errors into refusals."""
        if self._waiting[kind] >= self._room[kind]:
            raise Refused(503, f"{self._waiting[kind]:,} requests are waiting already: try again in a moment.")
        self._waiting[kind] += 1
        try:
            async with asyncio.timeout(self._limits.seconds):
                yield
        except TimeoutError:
            why = f"There was no answer within {self._limits.seconds:g} s: try again in a moment."
            raise Refused(504, why) from None
        except UserError as error:  # which may name a database
            print(f"A request was refused: {error}", file=sys.stderr, flush=True)
            raise Refused(503, _AWAY) from error
        except ValueError as error:
            raise Refused(422, str(error)) from error
        finally:
            self._waiting[kind] -= 1

    async def _run(self, pool: str, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads[pool], function, *arguments)

    async def query(self, content: bytes | str, k: int = 0, where: Conditions | None = None) -> Any:
        """Search for the content of an image's file, or for a text, or return its vector if `k` is 0."""
        async with self._request("query"):
            prepared = await self._run("decode", self._prepare, content)
            loop = asyncio.get_running_loop()
            answer = loop.create_future()
            self._asked.append((_Query(prepared, k, where or {}), answer))
            if self._answering is None:
                self._answering = loop.create_task(self._answer_asked())
            return await answer

    async def _answer_asked(self) -> None:
        """Answer queries in batches until none are waiting."""
        while self._asked:
            batch = [entry for entry in self._asked[:_AT_ONCE] if not entry[1].done()]  # done: its client has gone
            del self._asked[:_AT_ONCE]
            answers = await self._run("model", self._answer, [query for query, _ in batch])
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    (future.set_exception if isinstance(answer, Exception) else future.set_result)(answer)
        self._answering = None

    async def show(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that needs no model, in a thread."""
        pool = "decode" if method in (self.original, self.thumbnail) else "row"
        async with self._request("row"):
            return await self._run(pool, method, *arguments)

    async def check_health(self) -> None:
        """Wait until a thread of every kind is free; raise `Refused` if they are stuck."""
        try:
            async with asyncio.timeout(self._limits.seconds):
                for pool in self._threads:
                    await self._run(pool, int)
        except TimeoutError:
            raise Refused(503, "No thread has been free for too long.") from None

    def _prepare(self, content: bytes | str) -> Tensor | str:
        if isinstance(content, str):
            if not self.takes_texts:
                raise Refused(422, "The gallery's model has no text tower, as CLIP and SigLIP have: send a photo.")
            if not content.strip():
                raise Refused(422, "text is empty: describe in words what to look for.")
            return content
        if not self.takes_pictures:
            raise Refused(422, f"{' '.join(self._notes[:1])} Give the id of a photo.")
        pixels = check_query(content, self._limits.pixels)
        try:
            with self._decoding(pixels):
                return self.gallery.embedder.prepare(content)
        except UnreadableImageError as error:
            raise Refused(422, f"The photo cannot be read: {error.reason or error}.") from error

    def _answer(self, queries: Sequence[_Query]) -> list[Any]:
        """Answer queries; those of one shape and the same conditions are embedded and searched together."""
        groups = defaultdict(list)
        for place, query in enumerate(queries):
            shape = None if isinstance(query.prepared, str) else query.prepared.shape
            groups[shape, query.k > 0, str(query.where)].append(place)
        answers: dict[int, Any] = {}
        for places in groups.values():
            try:
                found: list[Any] = self._answer_alike([queries[place] for place in places])
            except Exception as error:  # the other groups still get their answers
                found = [error] * len(places)
            answers |= zip(places, found, strict=True)
        return [answers[place] for place in range(len(queries))]

    def _answer_alike(self, queries: Sequence[_Query]) -> list[Any]:
        prepared = [query.prepared for query in queries]
        texts = [text for text in prepared if isinstance(text, str)]
        pictures = [picture for picture in prepared if not isinstance(picture, str)]
        embedder = self.gallery.embedder
        vectors = embedder.embed_texts(texts).numpy() if texts else embedder.vectors(torch.stack(pictures))
        useless = useless_vectors(vectors, self.gallery.store.info.distance)
        good = [place for place in range(len(queries)) if place not in useless]
        ks = [queries[place].k for place in good]
        if any(ks):
            # Thresholds are learnt from images, and texts are farther away than images of the same class.
            found = iter(self._search(vectors[good], ks, queries[0].where, None if texts else self._threshold))
        else:
            found = iter([{"vector": vector, "model": embedder.checksum} for vector in vectors[good].tolist()])
        return [
            Refused(422, f"The query's vector {useless[place]}: send another.") if place in useless else next(found)
            for place in range(len(queries))
        ]

    def _search(
        self, vectors: np.ndarray, ks: Sequence[int], where: Conditions, threshold: float | None
    ) -> list[dict[str, Any]]:
        recognitions: Sequence[Recognition | None] = [None] * len(ks)
        with self._store:
            hits = self.gallery.search_vectors(vectors, max(ks), where)
            if threshold is not None:
                recognitions = self.gallery.recognize_vectors(vectors, threshold)
        return [
            {"hits": [*map(_hit, row[:k])], "recognition": recognition and self._describe(recognition)}
            for k, row, recognition in zip(ks, hits, recognitions, strict=True)
        ]

    def _describe(self, recognition: Recognition) -> dict[str, Any]:
        return {
            "label": recognition.label,
            "distance": recognition.distance if math.isfinite(recognition.distance) else None,
            "nearest": None if recognition.nearest is None else recognition.nearest.id,
            "threshold": self._threshold,
        }

    def near(self, number: int, k: int, where: Conditions) -> dict[str, Any]:
        """Return the neighbours of a row, without the row itself."""
        vector, _ = self._row(number)
        with self._store:
            hits = self.nearest(vector, k + 1, where)
        return {"hits": [hit for hit in hits if hit["id"] != number][:k], "recognition": None}

    def nearest(self, vector: np.ndarray, k: int, where: Conditions) -> list[dict[str, Any]]:
        """Return the neighbours of a vector; the store must be locked."""
        return [*map(_hit, self.gallery.search_vectors(vector, k, where)[0])]

    @contextmanager
    def locked(self) -> Iterator[Gallery]:
        """Yield the gallery and keep other threads away from it."""
        with self._store:
            yield self.gallery

    def browse(self, after: int, count: int, where: Conditions) -> dict[str, Any]:
        """Return the first rows after an id that meet all conditions."""
        with self._store:
            ids = self.gallery.store.next_ids(after, count + 1, where)  # one more, to know whether others follow
            rows = self.gallery.store.rows(ids[:count])[1].to_pylist()
        return {"items": [*map(as_item, rows)], "more": len(ids) > count}

    def item(self, number: int) -> dict[str, Any]:
        """Return the metadata of a row."""
        return as_item(self._row(number)[1])

    def original(self, number: int) -> tuple[str, bytes]:
        """Return the content type and the content of a row's file."""
        return original(*self._path_and_roots(number), self._decoding)

    def thumbnail(self, number: int) -> tuple[str, bytes]:
        """Return the content type and the content of a small image of a row."""
        return thumbnail(*self._path_and_roots(number), self._decoding)

    def _path_and_roots(self, number: int) -> tuple[str, tuple[str, ...]]:
        path = self._row(number)[1]["path"]
        with self._store:
            return path, self.gallery.store.roots

    def _row(self, number: int) -> tuple[np.ndarray, dict[str, Any]]:
        with self._store:
            vectors, items = self.gallery.store.rows(np.array([number], np.int64))
        if not len(items):
            raise Refused(404, f"The gallery has no item {number}.")
        return vectors, items.to_pylist()[0]

    def about(self) -> dict[str, Any]:
        """Describe the gallery as it is now."""
        with self._store:
            store = self.gallery.store
            rows, columns, counts = len(store), store.columns, store.count_labels()
        labels = sorted(label for label in counts if label is not None)
        return {
            "name": re.split("[/:]", unquote(store.address.partition("?")[0].rstrip("/")))[-1],
            "rows": rows,
            "distance": store.info.distance,
            "dim": store.info.dim,
            "columns": further_columns(columns),
            "labels": labels[:_LABELS],
            "label_count": len(labels),
            "takes_pictures": self.takes_pictures,
            "takes_texts": self.takes_texts,
            "threshold": self._threshold,
            "rate": self._rate,
            "notes": self._notes,
        }


def as_item(row: dict[str, Any]) -> dict[str, Any]:
    """Describe a row without the folder of its file, which clients must not learn."""
    return {
        "id": row["id"],
        "name": row["path"].replace("\\", "/").rpartition("/")[2],
        "label": row["label"],
        "columns": {column: row[column] for column in further_columns(row)},
    }


def _hit(hit: Hit) -> dict[str, Any]:
    row = {**asdict(hit), **hit.columns}
    return {**as_item({key: row[key] for key in ("id", "path", "label", *hit.columns)}), "distance": hit.distance}
