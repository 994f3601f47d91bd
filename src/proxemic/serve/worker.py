"""The worker process: it has the gallery and its model, and answers questions until its server is gone."""

import math
import os
import queue
import re
import signal
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import unquote

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from proxemic.allocator import keep_freed_memory
from proxemic.data.pixels import UnreadableImageError
from proxemic.errors import UserError
from proxemic.retrieval import Gallery, Hit, Recognition
from proxemic.retrieval.items import further_columns
from proxemic.retrieval.recognition import recognize_vectors, settle_threshold
from proxemic.retrieval.vector_rows import useless_vectors
from proxemic.serve.messages import (
    AWAY,
    About,
    Answered,
    Asked,
    Browse,
    Conditions,
    Embed,
    Item,
    Original,
    Refused,
    Search,
    Settings,
    Thumbnail,
)
from proxemic.serve.pictures import check_query, original, thumbnail

_READERS = 2  # threads that decode queries, and as many that read the gallery's pictures
_LABELS = 500  # that the page offers


def work(connection: Connection, settings: Settings) -> None:
    """Open the gallery, say what it is or why not, and answer `Asked` by `Answered` until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the server ends this one
    keep_freed_memory()
    try:
        worker = Worker(connection, settings)
        about = worker.about()
    except (UserError, ValueError, OSError, ImportError) as error:
        connection.send(Refused(503, " ".join(str(error).split())))
        return
    connection.send(about | {"said": worker.said})
    with suppress(EOFError, OSError):
        worker.run()
    worker.close()
    sys.stderr.flush()
    os._exit(0)  # threads may be in the middle of a picture


class Worker:
    """Answers questions about a gallery.

    Queries are decoded by threads, and embedded and searched by one that takes all that are ready at a time.

    Args:
        connection: To the server.
        settings: What the server was started with.

    Raises:
        UserError: If there is no such gallery, or its model is not there.
    """

    def __init__(self, connection: Connection, settings: Settings) -> None:
        self._connection = connection
        self._settings = settings
        self._sending = threading.Lock()
        self._store = threading.Lock()  # of which no two threads may ask something
        self._reading = ThreadPoolExecutor(_READERS)
        self._showing = ThreadPoolExecutor(_READERS)
        self._ready: queue.SimpleQueue[tuple[Asked, Tensor]] = queue.SimpleQueue()
        self.gallery = Gallery.open(settings.gallery, settings.model)
        self._notes: list[str] = []  # for clients, who are not told where anything lies on this machine
        self.said: list[str] = []  # for the terminal
        self.has_model = self._begin_model()
        self.rate: float | None = None
        self.threshold = self._settle_threshold()

    def _begin_model(self) -> bool:
        """Load the model, and embed for the first time, which takes longer; say where only rows can be queries."""
        if self.gallery.store.info.model is None and self._settings.model is None:
            self._note("The gallery has vectors of an unknown model: only its own rows can be searched for.")
            return False
        if self.gallery.embedder.takes_vectors:
            self._note("The gallery's model takes vectors: only its own rows can be searched for.")
            return False
        self.gallery.embedder.embed([Image.new("RGB", (256, 256))])
        return True

    def _settle_threshold(self) -> float | None:
        try:
            chosen = settle_threshold(self.gallery, self._settings.rate, self._settings.threshold)
        except UserError as error:
            if self._settings.rate is not None or self._settings.threshold is not None:
                raise
            self._note("Nothing is named or called unknown: there is no threshold.", f"Nothing is named: {error}")
            return None
        self._notes += chosen.notes
        self.said += (*chosen.notes, *chosen.advice)
        self.rate = chosen.rate
        return chosen.threshold

    def _note(self, note: str, said: str = "") -> None:
        self._notes.append(note)
        self.said.append(said or note)

    def run(self) -> None:
        """Receive until the server says that it is enough; `EOFError` where it is gone."""
        threading.Thread(target=self._embed_forever, daemon=True).start()
        while True:
            asked: Asked | None = self._connection.recv()
            if asked is None:
                return
            match asked.question:
                case Search(query=bytes()) | Embed():
                    self._reading.submit(self._answer_by, asked, self._prepare)
                case _:
                    self._showing.submit(self._answer_by, asked, self._show)

    def close(self) -> None:
        """Close the store, unless a thread that is stuck has it."""
        if self._store.acquire(timeout=1):
            self.gallery.close()

    def _send(self, asked: Asked, answer: Any) -> None:
        with self._sending:
            self._connection.send(Answered(asked.number, answer))

    def _answer_by(self, asked: Asked, function: Callable[[Asked], Any]) -> None:
        """Answer by a function, whose None leaves it to others, or by what went wrong."""
        if time.monotonic() > asked.until:
            return self._send(asked, Refused(504, "The answer came too late."))
        try:
            answer = function(asked)
        except Exception as error:  # a question that fails is not to end the process
            answer = _refused(error)
        if answer is not None:
            self._send(asked, answer)
        return None

    def _prepare(self, asked: Asked) -> None:
        """Decode a query, which is then embedded together with others."""
        content: Any = asked.question.query  # pyright: ignore[reportAttributeAccessIssue]
        if not self.has_model:
            raise Refused(422, f"{' '.join(self._notes[:1])} Give the id of one.")
        check_query(content, self._settings.pixels)
        try:
            self._ready.put((asked, self.gallery.embedder.prepare(content)))
        except UnreadableImageError as error:
            raise Refused(422, f"The picture cannot be read: {error.reason or error}.") from error

    def _embed_forever(self) -> None:
        while True:
            batch = [self._ready.get()]
            while len(batch) < self._settings.at_once and not self._ready.empty():
                batch.append(self._ready.get())
            for alike in _of_one_shape(batch):
                try:
                    self._embed([asked for asked, _ in alike], torch.stack([prepared for _, prepared in alike]))
                except Exception as error:
                    refused = _refused(error)
                    for asked, _ in alike:
                        self._send(asked, refused)

    def _embed(self, batch: list[Asked], prepared: Tensor) -> None:
        vectors = self.gallery.embedder.embed(prepared)
        useless = useless_vectors(vectors, self.gallery.store.info.distance)
        searches: dict[Conditions, list[int]] = defaultdict(list)
        for place, asked in enumerate(batch):
            if place in useless:
                self._send(asked, Refused(422, f"The picture's vector {useless[place]}: send another."))
            elif isinstance(asked.question, Search):
                searches[asked.question.where].append(place)
            else:
                self._send(asked, {"vector": vectors[place].tolist(), "model": self.gallery.embedder.checksum})
        for where, places in searches.items():  # of the same conditions, in one search
            try:
                answers = self._search(vectors[places], [batch[place] for place in places], where)
            except Exception as error:
                answers = [_refused(error)] * len(places)
            for place, answer in zip(places, answers, strict=True):
                self._send(batch[place], answer)

    def _search(self, vectors: Tensor, batch: list[Asked], where: Conditions) -> list[dict[str, Any]]:
        k = max(asked.question.k for asked in batch if isinstance(asked.question, Search))
        with self._store:
            hits = self.gallery.search_vectors(vectors, k, dict(where))
            named = [None] * len(batch)
            if self.threshold is not None:
                named = recognize_vectors(self.gallery, vectors, self.threshold)
        return [
            {"hits": [*map(_hit, found[: asked.question.k])], "recognition": self._recognition(name)}  # pyright: ignore[reportAttributeAccessIssue]
            for asked, found, name in zip(batch, hits, named, strict=True)
        ]

    def _recognition(self, found: Recognition | None) -> dict[str, Any] | None:
        if found is None:
            return None
        nearest = None if found.nearest is None else found.nearest.id
        distance = found.distance if math.isfinite(found.distance) else None
        return {"label": found.label, "distance": distance, "nearest": nearest, "threshold": self.threshold}

    def _show(self, asked: Asked) -> Any:
        """Answer what needs no model."""
        match asked.question:
            case About():
                return self.about()
            case Browse(after, count, where):
                with self._store:
                    store = self.gallery.store
                    # One more says whether others follow.
                    ids = store.next_ids(after, count + 1, dict(where))
                    rows = store.rows(ids[:count])[1].to_pylist()
                return {"items": [*map(_item, rows)], "more": len(ids) > count}
            case Item(number):
                return _item(self._row(number)[1])
            case Original(number):
                return original(self._row(number)[1]["path"], self._roots())
            case Thumbnail(number):
                return thumbnail(self._row(number)[1]["path"], self._roots())
            case Search(int() as number, k, where):
                vector, _ = self._row(number)
                with self._store:
                    (hits,) = self.gallery.search_vectors(vector, k + 1, dict(where))
                others = [hit for hit in hits if hit.id != number]
                return {"hits": [*map(_hit, others[:k])], "recognition": None}
        raise Refused(500, f"{type(asked.question).__name__} is no question.")

    def _row(self, number: int) -> tuple[np.ndarray, dict[str, Any]]:
        with self._store:
            vectors, items = self.gallery.store.rows(np.array([number], np.int64))
        if not len(items):
            raise Refused(404, f"The gallery has no row {number}.")
        return vectors, items.to_pylist()[0]

    def _roots(self) -> tuple[str, ...]:
        with self._store:
            return self.gallery.store.roots

    def about(self) -> dict[str, Any]:
        """What the gallery is now."""
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
            "takes_pictures": self.has_model,
            "threshold": self.threshold,
            "rate": self.rate,
            "notes": self._notes,
        }


def _of_one_shape(batch: list[tuple[Asked, Tensor]]) -> list[list[tuple[Asked, Tensor]]]:
    """Queries that one tensor holds: a transform of one's own may give others."""
    shapes = defaultdict(list)
    for asked, prepared in batch:
        shapes[prepared.shape].append((asked, prepared))
    return [*shapes.values()]


def _item(row: dict[str, Any]) -> dict[str, Any]:
    """What is said of a row: of its path the name alone, as the folders of this machine are nobody's business."""
    name = row["path"].replace("\\", "/").rpartition("/")[2]
    return {
        "id": row["id"],
        "name": name,
        "label": row["label"],
        "columns": {column: row[column] for column in further_columns(row)},
    }


def _hit(hit: Hit) -> dict[str, Any]:
    row = {**asdict(hit), **hit.columns}
    return {**_item({key: row[key] for key in ("id", "path", "label", *hit.columns)}), "distance": hit.distance}


def _refused(error: Exception) -> Refused:
    if isinstance(error, Refused):
        return error
    if isinstance(error, ValueError):
        return Refused(422, str(error))
    if isinstance(error, UserError):  # of a store that cannot be reached, for one, which says where that is
        print(f"A request was refused: {error}", file=sys.stderr, flush=True)
        return Refused(503, AWAY)
    traceback.print_exception(error)
    return Refused(500, "The answer failed; the server's terminal says why.")
