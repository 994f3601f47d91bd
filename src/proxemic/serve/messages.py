"""What the server and its worker process say to each other."""

from dataclasses import dataclass
from typing import Any

Conditions = tuple[tuple[str, tuple[str | None, ...]], ...]
"""Columns with the values of which each is to have one."""

AWAY = "The gallery cannot be searched for now, and the server's terminal says why: try again later."
"""What clients are told of faults that name a place on this machine or its network."""


@dataclass(frozen=True)
class Settings:
    """What the worker process is started with.

    Args:
        gallery: Its address.
        model: Where the gallery's model is now; None where it was.
        rate: The false accept rate whose calibrated threshold is taken; None takes the usual one.
        threshold: A distance instead.
        pixels: Of a query at most.
        at_once: Queries that the network sees at once.
    """

    gallery: str
    model: str | None = None
    rate: float | None = None
    threshold: float | None = None
    pixels: int = 50_000_000
    at_once: int = 16


@dataclass(frozen=True)
class Search:
    """The neighbours of a picture, the content of a file, or of a row of the gallery."""

    query: bytes | int
    k: int
    where: Conditions


@dataclass(frozen=True)
class Embed:
    """The vector of a picture."""

    query: bytes


@dataclass(frozen=True)
class Browse:
    """The first rows that follow an id and meet all conditions."""

    after: int
    count: int
    where: Conditions


@dataclass(frozen=True)
class Item:
    """What is known of a row."""

    id: int


@dataclass(frozen=True)
class Original:
    """The picture of a row, as its file has it."""

    id: int


@dataclass(frozen=True)
class Thumbnail:
    """The picture of a row, made small."""

    id: int


@dataclass(frozen=True)
class About:
    """What the gallery is now."""


Question = Search | Embed | Browse | Item | Original | Thumbnail | About


@dataclass(frozen=True)
class Asked:
    """A question with its number and the moment, of `time.monotonic`, after which nobody waits for an answer."""

    number: int
    question: Question
    until: float


@dataclass(frozen=True)
class Answered:
    """The answer to the question of a number, or a `Refused`."""

    number: int
    answer: Any


class Refused(Exception):
    """A request that is not answered as it wishes: the status of HTTP, and one sentence."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(status, why)
        self.status = status
        self.why = why

    @property
    def headers(self) -> dict[str, str]:
        """What the answer says beside."""
        return {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(self.status, {})
