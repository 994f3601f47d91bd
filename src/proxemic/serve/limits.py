"""What one request may ask for."""

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Limits:
    """What one request, and all requests together, may take of the machine.

    Args:
        bytes: Of the body of a request; more is answered by 413.
        pixels: Width times height of a query, which are known before it is decoded; more is answered by 413.
        seconds: In which the body must have come (408), and in which a request is answered (504).
        queue: Requests that wait for the model or are embedded; further ones are answered by 503 with ``Retry-After``.
        connections: Open at once; requests on further ones are answered by 503.

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
        for each in fields(self):
            value = getattr(self, each.name)
            kinds = (int, float) if each.name == "seconds" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < float("inf"):
                what = "number" if each.name == "seconds" else "whole number"
                raise ValueError(f"{each.name} is {value!r}, but must be a {what} above 0.")
