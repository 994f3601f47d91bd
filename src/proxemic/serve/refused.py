"""Requests that are refused."""

from proxemic.extras import optional_dependency

with optional_dependency("serve"):
    from starlette.exceptions import HTTPException

_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}


class Refused(HTTPException):
    """Refuse a request.

    Args:
        status: The status of HTTP.
        why: One sentence for the client.

    >>> Refused(503, "4 requests are waiting already: try again in a moment.").headers
    {'Retry-After': '1'}
    """

    def __init__(self, status: int, why: str) -> None:
        super().__init__(status, why, _HEADERS.get(status))
