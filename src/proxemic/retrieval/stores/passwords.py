"""Addresses in messages."""

import re


def without_password(address: str) -> str:
    """An address that may not be one, without anything that may be a password.

    >>> without_password("postgresql://me:a/b@c@host/shop")
    'postgresql://me@host/shop'
    """
    shown = re.sub(r"(?<=//)([^:@/?#]*):.*@", r"\1@", address)
    return re.sub(r"(?i)(password=)[^&]*", r"\1…", shown)
