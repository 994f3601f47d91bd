"""Download files, resume interrupted downloads, and verify checksums before a file gets its name."""

import os
import ssl
import time
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from filelock import FileLock
from tqdm import tqdm

from proxemic import __version__
from proxemic.files import md5_of

_CHUNK = 1 << 20
_ATTEMPTS = 5  # attempts in a row without new data
_PAUSE = 1.0  # seconds, doubled from attempt to attempt
_TIMEOUT = 30.0  # seconds without a byte


class _Refused(Exception):
    """Raised if the server or this machine refuses, so that another attempt would not help."""


def download(url: str, target: Path, md5: str | None = None) -> None:
    """Fetch a file unless it exists; ``target`` only exists once the file is complete and its checksum is right.

    Until then, the received part is in ``NAME.part``. A later call, even after the process was killed, asks the server
    for the rest. If the file on the server has changed meanwhile, the checksum of the file or of the archive reveals
    it.

    >>> download("ftp://example.org/a.zip", Path("a.zip"))
    Traceback (most recent call last):
    ValueError: ftp://example.org/a.zip is not an http:// or https:// URL.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"{url} is not an http:// or https:// URL.")
    part, lock = (target.with_name(name) for name in (f"{target.name}.part", f".{target.name}.lock"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):  # two processes may download it
            if not target.exists():
                _fetch(url, part)
                actual = None if md5 is None else md5_of(part)
                if actual != md5:
                    part.unlink()
                    raise _Refused(
                        f"what came is corrupted or another file, with MD5 {actual} instead of {md5}, and was removed"
                    )
                part.replace(target)
    except (_Refused, OSError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        again = "try again, which continues the download" if part.exists() else "try again"
        raise ValueError(
            f"{url} could not be downloaded to {target.parent} ({why}): {again}, or fetch it by hand "
            f"and put it there as {target.name}."
        ) from error
    finally:
        with suppress(OSError):
            lock.unlink()


def _fetch(url: str, part: Path) -> None:
    failures, arrived = 0, False
    while True:
        before = _size(part)
        try:
            return _ask(url, part)
        except HTTPError as error:
            error.close()
            if error.code not in (408, 429) and error.code < 500:
                raise _Refused(str(error)) from error
            reason: object = error
        except (HTTPException, URLError, ssl.SSLError, ConnectionError, TimeoutError) as error:
            reason = getattr(error, "reason", error)
        grown = _size(part) > before
        arrived |= grown
        failures = 0 if grown else failures + 1
        # A server that never answered is more likely to be mistyped or down than to come back in a minute.
        if failures == _ATTEMPTS or not arrived:
            raise _Refused(str(reason) or type(reason).__name__)
        time.sleep(_PAUSE * 2**failures)


def _ask(url: str, part: Path) -> None:
    headers, have = {"User-Agent": f"proxemic/{__version__}", "Accept-Encoding": "identity"}, _size(part)
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = urlopen(Request(url, headers=headers), timeout=_TIMEOUT)
    except HTTPError as error:
        if error.code != 416:  # there is nothing after what we have; the checksum shows whether it is complete
            raise
        error.close()
        return
    with response:
        start = have if response.status == 206 else 0  # a server may ignore the range
        if start and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise _Refused("the server sent another part than it was asked for")
        whole = None if response.length is None else start + response.length
        with (
            open(part, "ab" if start else "wb", opener=_no_link) as file,
            # silent if the output is not a terminal
            tqdm(total=whole, initial=start, unit="B", unit_scale=True, desc=part.stem, disable=None) as bar,
        ):
            while chunk := response.read1(_CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
        if whole is not None and _size(part) < whole:
            raise ConnectionError(f"the connection broke after {_size(part):,} of {whole:,} bytes")


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
