"""What stands before the application: who may ask, how much may come and how slowly, and what goes with each answer."""

import asyncio
import json
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from proxemic.serve.access import Access
from proxemic.serve.limits import Limits
from proxemic.serve.messages import Refused

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self'; "
    "img-src 'self' blob:; script-src 'self'; style-src 'unsafe-inline'"
)
"""What the page may load: its own script, and pictures of this server and of the user."""

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_ALONE = {"Cross-Origin-Opener-Policy": "same-origin"}
"""Further ones for browsers that heed it, which say from which site they ask; others, without TLS, complain of it."""

_DRAINED = 5.0  # seconds in which the rest of a body that is not taken is thrown away: its sender reads no answer yet
_TAKEN = 30.0  # seconds in which a client must take the next part of an answer


class Guard:
    """An ASGI application before another one.

    Args:
        app: What answers.
        access: Who may ask.
        limits: How much may come.
    """

    def __init__(self, app: App, access: Access, limits: Limits) -> None:
        self._app = app
        self._access = access
        self._limits = limits

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        added = _HEADERS | (_ALONE if "sec-fetch-site" in headers else {})
        answer, body = _Answer(send, added), _Body(receive, self._limits)

        async def pass_on(message: Message) -> None:
            if body.refused is None:  # else it is what the application makes of that
                await answer.pass_on(message)

        try:
            self._access.check_name(headers.get("host", ""))
            self._access.check_page(headers, scope["method"])
            if self._access.token is not None:
                if scope["path"] == "/" and self._gives_token(scope["query_string"].decode("latin-1")):
                    return await answer.give(303, {"Location": "/", "Set-Cookie": self._access.set_cookie})
                self._access.check_token(headers)
            body.check(int(headers.get("content-length", "0")))
            # HEAD is answered as GET is, of which the protocol leaves the content out.
            asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
            await self._app(asked, body, pass_on)
        except Refused as refused:
            body.refused = refused
        except Exception as error:
            if body.refused is None:
                traceback.print_exception(error)
                body.refused = Refused(500, "The answer failed; the server's terminal says why.")
        if body.refused is not None and not answer.begun:
            if "expect" not in headers:  # its sender waits to be told to go on
                await body.drain()
            await answer.refuse(body.refused)
        sys.stderr.flush()
        return None

    def _gives_token(self, query: str) -> bool:
        """Whether the token is what the address ends in: as a program escapes it, or as people type it, & and + too."""
        given = query.removeprefix("token=")
        return given != query and (self._access.is_token(given) or self._access.is_token(unquote(given)))


class _Body:
    """Receives the body of a request, as long as it is within the limits."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive = receive
        self._limits = limits
        self._until = time.monotonic() + limits.seconds
        self._bytes = 0
        self._whole = False
        self.refused: Refused | None = None

    def check(self, size: int) -> None:
        if size > self._limits.bytes:
            most = f"at most {self._limits.bytes:,} bytes are taken"
            self.refused = Refused(413, f"The request is too large: {most}; send a smaller picture.")
            raise self.refused

    async def __call__(self) -> Message:
        if self._whole:  # what is awaited now is that the client goes
            return await self._receive()
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + self._until - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            self.refused = Refused(408, f"The request did not come within {self._limits.seconds:g} s.")
            raise self.refused from None
        self._bytes += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        self.check(self._bytes)
        return message

    async def drain(self) -> None:
        """Throw away what still comes: a client that sends does not read yet what is answered."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAINED):
                while not self._whole:
                    self._whole = not (await self._receive()).get("more_body", False)


class _Answer:
    """Sends an answer, with the headers of all answers, to a client that must take it in time."""

    def __init__(self, send: Send, added: Mapping[str, str]) -> None:
        self._send = send
        self._added = added
        self._gone = False
        self.begun = False

    async def pass_on(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            given = {name.lower() for name, _ in message["headers"]}
            added = [(name.lower().encode(), value.encode()) for name, value in self._added.items()]
            message["headers"] = [*message["headers"], *(each for each in added if each[0] not in given)]
        if self._gone:
            return
        try:
            async with asyncio.timeout(_TAKEN):
                await self._send(message)
        except TimeoutError:
            self._gone = True  # the connection is closed, as the answer is not whole

    async def refuse(self, refused: Refused) -> None:
        content = json.dumps({"detail": refused.why}).encode()
        headers = {"Content-Type": "application/json", "Connection": "close", **refused.headers}
        await self.give(refused.status, headers, content)

    async def give(self, status: int, headers: dict[str, str], content: bytes = b"") -> None:
        headers = {**headers, "Content-Length": str(len(content))}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.pass_on({"type": "http.response.start", "status": status, "headers": encoded})
        await self.pass_on({"type": "http.response.body", "body": content})
