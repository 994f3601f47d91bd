"""Who may ask: by the token, the name that the server is called by, and the page that a request comes from."""

import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Collection, Mapping
from http.cookies import CookieError, SimpleCookie

from proxemic.errors import UserError
from proxemic.serve.messages import Refused

_HERE = ("localhost", "127.0.0.1", "::1")
_COOKIE = "proxemic"
_SHORTEST = 16  # characters of a token


class Access:
    """Who may ask a server.

    Args:
        host: The address that it listens on.
        token: What others must give; None lets everybody on this machine ask.
        names: Further names that it is reached by.

    Raises:
        UserError: If other machines may reach it and there is no token, or one that is easily guessed.
    """

    def __init__(self, host: str, token: str | None, names: Collection[str] = ()) -> None:
        self._only_here = _is_loopback(host)
        if token is None and not self._only_here:
            raise UserError(
                f"--host {host} lets other machines in: also give a --token that they must know, such as "
                f"{secrets.token_urlsafe(24)}."
            )
        if token is not None and not re.fullmatch(rf"[!-~]{{{_SHORTEST},}}", token):
            raise UserError(
                f"The token must have {_SHORTEST} or more characters, of ASCII and without spaces, so that nobody "
                f"guesses it: take {secrets.token_urlsafe(24)}, for example."
            )
        self.token = token
        self._names = {name.lower() for name in (*_HERE, host, socket.gethostname(), *names)}
        # A browser gives the cookie to every server of this name, whatever its port: so the token is not in it.
        self._session = secrets.token_urlsafe(24)

    def check_name(self, host: str) -> None:
        """Refuse requests to another name: by one that leads here, a page of others would pass for the server's own."""
        found = re.fullmatch(r"(\[[\da-f:.]+\]|[\w.-]+)(:\d+)?", host.lower())
        name = "" if found is None else found[1].strip("[]").rstrip(".")
        if name in self._names or (not self._only_here and _is_address(name)):
            return
        raise Refused(421, "The server does not go by this name: call it by its address, or start it with --name NAME.")

    def check_page(self, headers: Mapping[str, str], method: str) -> None:
        """Refuse what pages of others ask a browser for; links on them may lead here."""
        origin, from_where = headers.get("origin"), headers.get("sec-fetch-site", "none")
        follows_link = headers.get("sec-fetch-mode") == "navigate" and method == "GET"
        host = headers.get("host", "").lower()
        own = origin is None or origin.lower() in (f"http://{host}", f"https://{host}")
        if not own or not (from_where in ("same-origin", "none") or follows_link):
            raise Refused(403, "Pages of other sites may not ask this server.")

    def check_token(self, headers: Mapping[str, str]) -> None:
        """Refuse who gives neither the token (``Authorization: Bearer``) nor the cookie that the page gets for it."""
        if self.token is None:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(given.strip()):
            return
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(_COOKIE)
        except CookieError:
            cookie = None
        if cookie is not None and _same(cookie.value, self._session):
            return
        raise Refused(401, "A token is needed: give it as Authorization: Bearer TOKEN, or open the page /?token=TOKEN.")

    def is_token(self, given: str) -> bool:
        """Whether this is the token; the time that this takes does not say how much of it is right."""
        return self.token is not None and _same(given, self.token)

    @property
    def set_cookie(self) -> str:
        """The cookie that the page gets for the token."""
        return f"{_COOKIE}={self._session}; HttpOnly; SameSite=Lax; Path=/"


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host.lower() == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
