"""The guard in front of the application: access, sizes and times of requests, and headers of all answers."""

import asyncio
from contextlib import suppress
from urllib.parse import unquote

from proxemic.extras import optional_dependency
from proxemic.serve.access import Access
from proxemic.serve.limits import Limits, Refused

with optional_dependency("serve"):
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.responses import JSONResponse, RedirectResponse
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self'; "
    "img-src 'self' blob:; script-src 'self'; style-src 'unsafe-inline'"
)
"""The content security policy: pages may load their own scripts, and images of this server and of the user."""

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_DRAINED = 5.0  # seconds for discarding the rest of a refused body, whose sender does not read an answer yet
_TAKEN = 30.0  # seconds for a client to read the next part of an answer


class Guard:
    """Pass requests on to an ASGI application, or refuse them.

    Starlette has middleware for some of this, but it answers in plain text.
    """

    def __init__(self, app: ASGIApp, access: Access, limits: Limits) -> None:
        self._app, self._access, self._limits = app, access, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        path, root = scope["path"], self._access.root_path
        scope = {**scope, "root_path": root, "path": root + path}  # the proxy has removed the root path
        headers = Headers(scope=scope)
        until = asyncio.get_running_loop().time() + self._limits.seconds
        length = int(headers.get("content-length", "0"))
        size, complete, gone = 0, not (length or "transfer-encoding" in headers), False

        async def receive_bounded() -> Message:
            nonlocal size, complete
            if complete:  # the application waits for the client to leave
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise Refused(408, f"The request did not arrive within {self._limits.seconds:g} s.") from None
            size, complete = size + len(message.get("body", b"")), not message.get("more_body", False)
            self._check_size(size)
            return message

        async def send_bounded(message: Message) -> None:
            nonlocal gone
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    added.setdefault(name, value)
                if "sec-fetch-site" in headers:  # without TLS, other browsers warn about it
                    added["Cross-Origin-Opener-Policy"] = "same-origin"
                if not complete:
                    added["Connection"] = "close"
                    if "expect" not in headers:  # else the client waits before it sends
                        await _drain(receive)
            if gone:
                return
            try:
                async with asyncio.timeout(_TAKEN):
                    await send(message)
            except TimeoutError:
                gone = True  # uvicorn closes the connection, as the answer is incomplete

        try:
            self._access.check_name(headers.get("host", ""))
            self._access.check_page(headers, scope["method"])
            if self._access.token is not None and path != "/health":
                if path == "/" and self._gives_token(scope["query_string"].decode("latin-1")):
                    redirect = RedirectResponse(f"{root}/", 303, {"Set-Cookie": self._access.set_cookie})
                    return await redirect(scope, receive, send_bounded)
                self._access.check_token(headers)
            self._check_size(length)
        except Refused as refused:
            answer = JSONResponse({"detail": refused.detail}, refused.status_code, refused.headers)
            return await answer(scope, receive, send_bounded)
        # HEAD is answered like GET, and the protocol drops the content.
        asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        return await self._app(asked, receive_bounded, send_bounded)

    def _check_size(self, size: int) -> None:
        if size > self._limits.bytes:
            why = f"The request has more than {self._limits.bytes:,} bytes: send a smaller photo."
            raise Refused(413, why)

    def _gives_token(self, query: str) -> bool:
        """Return whether a URL ends in the token, with & and + either escaped or as typed."""
        given = query.removeprefix("token=")
        return given != query and (self._access.is_token(given) or self._access.is_token(unquote(given)))


async def _drain(receive: Receive) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAINED):
            while (await receive()).get("more_body"):
                pass
