"""What the guard does with bodies and clients that take too long, and with a token in the address."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from starlette.responses import JSONResponse

from proxemic.errors import UserError
from proxemic.serve import guard
from proxemic.serve.access import Access
from proxemic.serve.guard import Guard
from proxemic.serve.limits import Limits, Refused

TOKEN = "a-token-of-24-characters"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the length of the body; refuse as FastAPI does."""
    size, status, headers = 0, 200, None
    try:
        while (message := await receive()).get("more_body"):
            size += len(message["body"])
        content: object = size
    except Refused as refused:
        status, headers, content = refused.status_code, refused.headers, {"detail": refused.detail}
    await JSONResponse(content, status, headers)(scope, receive, send)


def ask(
    receive: Any,
    path: str = "/",
    query: str = "",
    app: Any = echo,
    limits: Limits = Limits(bytes=100, seconds=0.2),
    send: Callable[[Any], Any] | None = None,
    token: str | None = None,
    **headers: str,
) -> tuple[int, dict[str, str], bytes]:
    given = {"host": "localhost", "transfer-encoding": "chunked"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }
    sent: list[Any] = []

    async def keep(message: Any) -> None:
        sent.append(message)

    asyncio.run(Guard(app, Access("localhost", token), limits)(scope, receive, send or keep))
    if not sent:
        return 0, {}, b""
    answered = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered, b"".join(message.get("body", b"") for message in sent[1:])


def parts(*bodies: bytes, forever: bool = False) -> Any:
    left = list(bodies)

    async def receive() -> Any:
        if not left:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left) or forever}

    return receive


def test_a_body_that_does_not_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_DRAINED", 0.1)
    began = time.monotonic()
    status, headers, content = ask(parts(b"a", forever=True))
    assert time.monotonic() - began >= 0.2
    assert (status, headers["connection"]) == (408, "close")
    assert "within 0.2 s" in json.loads(content)["detail"]


def test_a_body_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_DRAINED", 0.1)
    wide = Limits(bytes=100, seconds=30)
    assert ask(parts(bytes(50), bytes(50), b""), limits=wide)[::2] == (200, b"100")
    assert ask(parts(bytes(50), bytes(51), b""), limits=wide)[0] == 413
    assert ask(parts(b""), limits=wide, content_length="101")[0] == 413
    assert ask(parts(forever=True), limits=wide, content_length="101", expect="100-continue")[0] == 413


def test_browsers_keep_windows_apart_where_they_can() -> None:
    assert ask(parts(b""), sec_fetch_site="none")[1]["cross-origin-opener-policy"] == "same-origin"
    assert "cross-origin-opener-policy" not in ask(parts(b""))[1], "which they complain of without TLS"


def test_a_client_that_does_not_take_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_TAKEN", 0.05)

    async def never(message: Any) -> None:
        await asyncio.Event().wait()

    ask(parts(b""), send=never)  # ends


@pytest.mark.parametrize(
    ("token", "query"),
    [
        ("0123456789+/abc==", "token=0123456789+/abc=="),
        ("0123456789+/abc==", "token=0123456789%2B%2Fabc%3D%3D"),
        ("01234567&token=%9", "token=01234567&token=%9"),
        ("01234567&token=%9", "token=01234567%26token%3D%259"),
    ],
)
def test_a_token_may_be_typed_or_escaped(token: str, query: str) -> None:
    assert ask(parts(b""), query=query, token=token)[0] == 303
    assert ask(parts(b""), query=query.removeprefix("token="), token=token)[0] == 401
    assert ask(parts(b""), query=f"{query}x", token=token)[0] == 401


@pytest.mark.parametrize("token", ["", "short", "0123456789 abcdef", "0123456789abcdeé", f"{TOKEN}\n"])
def test_a_token_is_not_easily_guessed(token: str) -> None:
    with pytest.raises(UserError, match="16 or more characters"):
        Access("localhost", token)


def test_a_token_in_the_address_becomes_a_cookie() -> None:
    status, headers, _ = ask(parts(b""), query=f"token={TOKEN}", token=TOKEN)
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"]
    assert cookie.endswith("; HttpOnly; SameSite=Lax; Path=/")
    assert TOKEN not in cookie
    for path, query in (("/", "token=wrong"), ("/", ""), ("/gallery", f"token={TOKEN}")):
        status, headers, _ = ask(parts(b""), path, query, token=TOKEN)
        assert (status, headers["www-authenticate"]) == (401, "Bearer"), path
    headers_given: list[tuple[dict[str, Any], int]] = [
        ({"authorization": f"bearer  {TOKEN} "}, 200),
        ({"authorization": f"Basic {TOKEN}"}, 401),
        ({"authorization": f"Bearer {TOKEN[:-1]}"}, 401),
        ({"cookie": f"proxemic={TOKEN}"}, 401),
        ({"cookie": cookie.partition(";")[0]}, 401),  # of another server
        ({"cookie": "proxemic=; ;;=="}, 401),
    ]
    for given, expected in headers_given:
        assert ask(parts(b""), "/gallery", token=TOKEN, **given)[0] == expected, given
    assert ask(parts(b""), "/health", token=TOKEN)[0] == 200, "what watches the server knows no token"
    assert ask(parts(b""), "/health", token=TOKEN, host="evil.example")[0] == 421
