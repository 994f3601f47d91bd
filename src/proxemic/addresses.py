"""Parse addresses of galleries, and show them in messages without their passwords."""

import re
from collections.abc import Collection
from urllib.parse import SplitResult, unquote, urlsplit

from proxemic.errors import UserError

GALLERY_ADDRESS = "a folder, postgresql://USER@HOST/DATABASE/NAME, milvus://HOST:PORT/NAME, or milvus-lite:FILE"
GALLERY_FILE = "gallery.sqlite"
"""A folder with this file is a gallery."""
MASK = "***"
TIMM, TRANSFORMERS = "timm:", "hf:"  # before the name of a pretrained network

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//)?")  # single letters are drives of Windows
# A password may have any character, so it extends to the last @. Without an @, a text that is not a port is a password.
_PASSWORD = re.compile(
    r"([A-Za-z][\w+.-]+:/*(?:\[[^]]*\]|(?!\[)[^:@/?#]*):)(?:.*(?=@)|(?!\d*(?:[,/?#]|$))[^/?#]+)", re.DOTALL
)
_PARAMETER = re.compile(r"([?&;])([^=?&;]+)=([^&]+)")
_SECRET = re.compile(r"pass|pwd|token|secret|credential|key|signature", re.IGNORECASE)
_IN_TEXT = re.compile(
    r"(\b[A-Za-z][\w+.-]+:/*[^\s:@/]*:)\S*(?=@)|"
    r"([?&;][\w%-]*(?:pass|pwd|token|secret|credential|key|signature)[\w%-]*=)[^\s&]+",
    re.IGNORECASE,
)
_HOST = re.compile(r"(\[[^]]*\]|[^:\[\]]*)(:\d*)?")


def read_scheme(address: str) -> tuple[str, bool]:
    """Return the scheme of an address in lower case, or an empty text, and whether ``//`` follows it.

    Spaces around the address do not count.

    >>> read_scheme("S3://bucket/shop"), read_scheme("milvus-lite:shop"), read_scheme("photos/shop")
    (('s3', True), ('milvus-lite', False), ('', False))
    """
    match = _SCHEME.match(address.strip())
    return (match[1].lower(), match[2] is not None) if match else ("", False)


def without_password(address: str) -> str:
    """Replace passwords and other secrets in an address by ``***``, even if the address is invalid.

    >>> without_password("postgresql://me:a/b@c@host/shop?sslmode=require")
    'postgresql://me:***@host/shop?sslmode=require'
    >>> without_password("milvus://host:19530/shop?secure=true&Token=s3cr3t")
    'milvus://host:19530/shop?secure=true&Token=***'
    """

    def mask(match: re.Match[str]) -> str:
        return f"{match[1]}{match[2]}={MASK}" if _SECRET.search(unquote(match[2])) else match[0]

    return _PARAMETER.sub(mask, _PASSWORD.sub(rf"\1{MASK}", address, count=1))


def without_passwords(text: str) -> str:
    """Replace the passwords that can be recognised in the addresses of a text, such as an error message.

    >>> without_passwords("photos postgresql:/me:s3cr3t@host/shop does not exist: give me@host or a folder.")
    'photos postgresql:/me:***@host/shop does not exist: give me@host or a folder.'
    """
    return _IN_TEXT.sub(lambda match: f"{match[1] or match[2]}{MASK}", text)


def split_server(address: str, form: str, counts: Collection[int]) -> tuple[SplitResult, list[str]]:
    """Split the address of a gallery on a server, and return the parts and the names in its path.

    Args:
        address: The address.
        form: The expected form, for the message.
        counts: How many names the path may have.

    Raises:
        UserError: If the address has another form, perhaps because a character of the password is not escaped.
    """
    try:
        url = urlsplit(address)
    except ValueError:  # its message shows the password
        raise misread(address, form) from None
    names = url.path.split("/")[1:]
    hosts = url.netloc.rpartition("@")[2].split(",")
    is_named = len(names) in counts and all(names) and "@" not in url.path and not url.fragment
    if not (is_named and all(map(_HOST.fullmatch, hosts))):
        raise misread(address, form)
    return url, names


def misread(address: str, form: str) -> UserError:
    """Return the error to raise if the address of a gallery has another form."""
    return UserError(
        f"{without_password(address)} does not name a gallery: give {form}, with %23, %2F, %3F and %40 for #, /, ? "
        "and @ in a name or password."
    )


def is_pretrained_name(model: object) -> bool:
    """Return whether a model is named ``timm:NAME``, ``hf:NAME`` or ``hf:FOLDER`` instead of by its path.

    >>> is_pretrained_name("timm:resnet50"), is_pretrained_name("runs/photos")
    (True, False)
    """
    return str(model).startswith((TIMM, TRANSFORMERS))
