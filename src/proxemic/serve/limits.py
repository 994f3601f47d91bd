"""The limits of requests, and the exception that refuses one."""

from dataclasses import dataclass, fields

from proxemic.extras import optional_dependency

with optional_dependency("serve"):
    from starlette.exceptions import HTTPException

_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}


class Refused(HTTPException):
    """Refuse a request with a status of HTTP and one sentence for the client."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(status, why, _HEADERS.get(status))


@dataclass(frozen=True)
class Limits:
    """Set the limits of a request and of all requests together, for each worker.

    Args:
        bytes: The largest body of a request; larger ones get 413.
        pixels: The largest width times height of a query, checked before it is decoded; larger ones get 413. Images
            that are decoded at the same time have at most as many together; a larger image of the gallery is decoded
            alone.
        seconds: The time for a body to arrive (otherwise 408), and for an answer to be ready (otherwise 504).
        queue: The most queries that wait for the model or are being embedded; others get 503 with ``Retry-After``.
        connections: The most open connections; requests on others get 503.

    Raises:
        ValueError: If a limit is not above 0.

    >>> Limits(pixels=1_000_000).pixels
    1000000
    """

    bytes: int = 20_000_000
    pixels: int = 50_000_000
    seconds: float = 30
    queue: int = 64
    connections: int = 512

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kinds = (int, float) if field.name == "seconds" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < float("inf"):
                what = "number" if field.name == "seconds" else "whole number"
                raise ValueError(f"{field.name} is {value!r}, but must be a {what} above 0.")
