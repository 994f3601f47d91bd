"""One spelling for texts that look the same."""

import re
import unicodedata

_INVISIBLE = re.compile("[\u00ad\u200b\u200e\u200f\u2060\ufeff]")
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)\.0+")


def without_invisible(text: str) -> str:
    r"""Compose letters (NFC), drop invisible characters, and remove white space around a text.

    >>> without_invisible("\ufeffCafe\u0301 ") == "Caf\u00e9"
    True
    """
    if text.isascii():
        return text.strip()
    return unicodedata.normalize("NFC", _INVISIBLE.sub("", text).replace("\u00a0", " ")).strip()


def canonical(text: str) -> str:
    r"""Return the spelling by which labels and other texts are compared.

    Beyond `without_invisible`, whole numbers lose an empty fraction, and truth values are in lower case. Other numbers
    stay as they are: 1.1 and 1.10 may be two chapters.

    >>> canonical("red\u200b car"), canonical("7.0"), canonical("True"), canonical("1.10"), canonical("007")
    ('red car', '7', 'true', '1.10', '007')
    """
    text = without_invisible(text)
    if _WHOLE.fullmatch(text):
        return text.partition(".")[0]
    return text.lower() if text.lower() in ("true", "false") else text
