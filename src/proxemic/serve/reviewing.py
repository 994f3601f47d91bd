"""The review of a gallery: show suspected images to people and store their decisions."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from proxemic.extras import optional_dependency
from proxemic.files import printable
from proxemic.retrieval.curation.decisions import Action, claim, decide, list_decisions, looked_at, withdraw
from proxemic.retrieval.curation.doubts import Doubt
from proxemic.serve import answers
from proxemic.serve.engine import Engine, as_item
from proxemic.serve.limits import Refused
from proxemic.spelling import canonical

with optional_dependency("serve"):
    from fastapi import FastAPI, Query
    from fastapi import Path as InPath

_NEIGHBOURS = 6  # shown of each class

Session = Annotated[str, Query(min_length=8, max_length=64, description="a random text that identifies a session")]


class Review:
    """Hand out suspected images, worst first, and store decisions next to the gallery, where all workers see them.

    Args:
        engine: The engine of the gallery.
        doubts: The result of `find_doubts`.
    """

    def __init__(self, engine: Engine, doubts: Sequence[Doubt]) -> None:
        self._engine, self._doubts = engine, doubts
        self._moot: set[int] = set()  # doubts about what another process has changed

    def labels(self) -> list[str]:
        """Return all labels of the gallery."""
        with self._engine.locked() as gallery:
            return sorted(filter(None, gallery.store.count_labels()))

    def next(self, session: str, wanted: int | None) -> dict[str, Any]:
        """Return the wanted image, or the worst that a session has not seen, or the one that it postponed longest ago.

        Images that another session saw in the last minutes are left out.
        """
        with self._engine.locked() as gallery:
            decided = list_decisions(gallery)
            active = {item.path for item in decided if item.is_waiting}
            confirmed = {(item.path, item.label) for item in decided if item.action != "remove"}
            seen = looked_at(gallery.store)
            place = {path: order for order, (path, (of, _)) in enumerate(seen.items(), 1) if of == session}
            left = [
                number
                for number, doubt in enumerate(self._doubts)
                if number not in self._moot and doubt.path not in active and (doubt.path, doubt.label) not in confirmed
            ]
            for number in sorted(left, key=lambda item: (item != wanted, place.get(self._doubts[item].path, 0))):
                doubt = self._doubts[number]
                of, is_new = seen.get(doubt.path, (session, False))
                if is_new and of != session:
                    continue
                vector, row = self._row(doubt.path)
                if row is None or row["label"] != doubt.label:
                    self._moot.add(number)
                    left.remove(number)
                elif claim(gallery.store, doubt.path, session):
                    return {"doubt": self._describe(number, vector, row), "left": len(left)}
            return {"doubt": None, "left": len(left)}

    def decide(
        self, number: int, session: str, action: Action, label: str | None, reviewer: str | None
    ) -> dict[str, Any]:
        """Store a decision, unless someone has already decided."""
        if number >= len(self._doubts):
            raise Refused(404, f"There is no suspected photo {number}.")
        doubt, label, reviewer = self._doubts[number], canonical(label or ""), (reviewer or "").strip()
        if label != printable(label) or reviewer != printable(reviewer):
            raise Refused(422, "The label or the name has characters that cannot be shown: leave them out.")
        if action == "relabel" and not label:
            raise Refused(422, "label is missing: give the new label of the photo.")
        if action == "relabel" and label == doubt.label:
            action = "keep"
        given = {"keep": doubt.label, "relabel": label, "remove": None}[action]
        with self._engine.locked() as gallery:
            while True:
                made = decide(gallery.store, doubt.path, session, action, doubt.label, given, reviewer or None)
                if made is not None:
                    return {"decision": made, "note": None}
                others = [item for item in list_decisions(gallery) if item.path == doubt.path and item.is_waiting]
                if others:  # otherwise another process has undone or applied it in the meantime
                    break
        (other,) = others
        what = {"keep": "keep its label", "remove": "remove it"}.get(other.action, f"label it {other.label}")
        return {"decision": None, "note": f"{other.reviewer or 'Another reviewer'} has already decided: {what}."}

    def undo(self, decision: int, session: str) -> dict[str, Any]:
        """Withdraw a decision, unless it has been applied."""
        with self._engine.locked() as gallery:
            if withdraw(gallery.store, decision, session):
                return {"decision": decision, "note": None}
        return {"decision": None, "note": "The decision has already been applied or undone."}

    def _row(self, path: str) -> tuple[np.ndarray, dict[str, Any] | None]:
        store = self._engine.gallery.store
        vectors, items = store.rows(store.next_ids(count=1, where={"path": path}))
        return vectors, items.to_pylist()[0] if len(items) else None

    def _describe(self, number: int, vector: np.ndarray, row: dict[str, Any]) -> dict[str, Any]:
        doubt = self._doubts[number]
        repeats = None if doubt.repeats is None else self._row(doubt.repeats)[1]
        return {
            "number": number,
            "row": as_item(row),
            "suggested": doubt.suggested,
            "reasons": doubt.reasons,
            "repeats": repeats and as_item(repeats),
            "own": self._near(vector, row["id"], doubt.label),
            "other": self._near(vector, row["id"], doubt.suggested),
        }

    def _near(self, vector: np.ndarray, number: int, label: str | None) -> list[dict[str, Any]]:
        if label is None:
            return []
        hits = self._engine.nearest(vector, _NEIGHBOURS + 1, {"label": [label]})
        return [hit for hit in hits if hit["id"] != number][:_NEIGHBOURS]


def add_review(app: FastAPI, engine: Engine, doubts: Sequence[Doubt]) -> None:
    """Add the requests of the review to an application."""
    review = Review(engine, doubts)

    @app.get("/review/labels")
    async def list_labels() -> list[str]:
        """List all labels of the gallery."""
        return await engine.show(review.labels)

    @app.post("/review/next")
    async def show_next(
        session: Session,
        number: Annotated[int | None, Query(ge=0, description="the wanted photo, if it is undecided")] = None,
    ) -> answers.Review:
        """Return the next suspected image, which no other session sees for five minutes."""
        return await engine.show(review.next, session, number)

    @app.post("/review/{number}")
    async def take_decision(
        number: Annotated[int, InPath(ge=0, description="the number of the suspected photo")],
        session: Session,
        action: Action,
        label: Annotated[str | None, Query(max_length=500, description="the new label")] = None,
        reviewer: Annotated[str | None, Query(max_length=100, description="who decides")] = None,
    ) -> answers.Decided:
        """Decide about an image; the answer is sent when the decision is on disk."""
        return await engine.show(review.decide, number, session, action, label, reviewer)

    @app.delete("/review/{decision}")
    async def undo(decision: Annotated[int, InPath(ge=0, lt=2**63)], session: Session) -> answers.Decided:
        """Withdraw a decision that has not been applied yet."""
        return await engine.show(review.undo, decision, session)
