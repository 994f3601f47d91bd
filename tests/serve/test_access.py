"""Who may ask: names, tokens and pages."""

import pytest

from proxemic.errors import UserError
from proxemic.serve.access import Access
from proxemic.serve.limits import Refused

TOKEN = "a-token-of-24-characters"


def status(check: object, *arguments: object) -> int:
    try:
        check(*arguments)  # pyright: ignore[reportCallIssue]
    except Refused as refused:
        return refused.status_code
    return 200


def test_others_need_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.168.0.7", "example.org", ""):
        with pytest.raises(UserError, match="also give a --token"):
            Access(host, None)
        assert Access(host, TOKEN).token == TOKEN
    for host in ("localhost", "127.0.0.1", "127.9.9.9", "::1"):
        assert Access(host, None).token is None
    for token in ("", "short", "0123456789abcde", "0123456789 abcdef", "0123456789abcdeé", f"{TOKEN}\n"):
        with pytest.raises(UserError, match="16 or more characters"):
            Access("localhost", token)


def test_a_token_or_its_cookie_lets_in() -> None:
    access = Access("0.0.0.0", TOKEN)
    cookie = access.set_cookie.partition(";")[0]
    assert TOKEN not in cookie
    for headers, expected in (
        ({"authorization": f"Bearer {TOKEN}"}, 200),
        ({"authorization": f"bearer  {TOKEN} "}, 200),
        ({"cookie": f"other=1; {cookie}"}, 200),
        ({}, 401),
        ({"authorization": f"Basic {TOKEN}"}, 401),
        ({"authorization": TOKEN}, 401),
        ({"authorization": f"Bearer {TOKEN}x"}, 401),
        ({"authorization": f"Bearer {TOKEN[:-1]}"}, 401),
        ({"authorization": "Bearer é"}, 401),
        ({"cookie": f"proxemic={TOKEN}"}, 401),
        ({"cookie": Access("0.0.0.0", TOKEN).set_cookie.partition(";")[0]}, 401),
        ({"cookie": "proxemic=é; ;;=="}, 401),
    ):
        assert status(access.check_token, headers) == expected, headers
    assert status(Access("localhost", None).check_token, {}) == 200


def test_names() -> None:
    everywhere = Access("0.0.0.0", TOKEN, ["search.example.org"])
    for name, expected in (
        ("192.168.0.7:8000", 200),
        ("[fe80::1]:8000", 200),
        ("Search.Example.Org", 200),
        ("search.example.org.", 200),
        ("evil.example", 421),
        ("192.168.0.7.evil.example", 421),
        ("", 421),
        ("a b", 421),
        ("[", 421),
    ):
        assert status(everywhere.check_name, name) == expected, name
