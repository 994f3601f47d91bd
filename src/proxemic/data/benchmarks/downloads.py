"""Downloads that go on where they were broken off, and that are checked before they bear their name."""

import os
import re
import shutil
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from filelock import FileLock
from tqdm import tqdm

from proxemic import __version__
from proxemic.files import md5_of

_CHUNK = 1 << 20
_ATTEMPTS = 5  # in a row that bring nothing new
_PAUSE = 1.0  # seconds, doubled from attempt to attempt
_TIMEOUT = 30.0  # seconds without a byte


class _Refused(Exception):
    """The server, or this machine, says no: not worth another attempt."""


def download(url: str, target: Path, md5: str | None = None) -> None:
    """Fetch a file, unless it is there; ``target`` exists only once it is whole and its checksum is right.

    Until then what has arrived lies in ``NAME.part``. A later call, also after the process was killed, asks the server
    for the rest; it starts anew where the server cannot do that, or its file has changed.

    >>> download("ftp://example.org/a.zip", Path("a.zip"))
    Traceback (most recent call last):
    ValueError: ftp://example.org/a.zip is no http:// or https:// address.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"{url} is no http:// or https:// address.")
    lock = target.with_name(f".{target.name}.lock")
    part = _Part(url, target, checked=md5 is not None)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):  # two processes may want it
            if not target.exists():
                _fetch(part)
                _finish(part, md5)
    except (_Refused, OSError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        again = "try again, which goes on from what has arrived" if part.path.exists() else "try again"
        raise ValueError(
            f"{url} could not be downloaded to {target.parent} ({why}): {again}, or fetch it by hand "
            f"and put it there as {target.name}."
        ) from error
    finally:
        with suppress(OSError):
            lock.unlink()


@dataclass(frozen=True)
class _Part:
    """What has arrived of a file, and the server's name for the version it is of."""

    url: str
    target: Path
    checked: bool

    @property
    def path(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part")

    @property
    def note(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part.version")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def version(self) -> str | None:
        """What `If-Range` may be asked with; None where what is there is of no use: of another address, or unknown."""
        with suppress(OSError, ValueError):
            url, version = self.note.read_text(encoding="utf-8").split("\n")
            if url == self.url and (version or self.checked):
                return version
        return None


def _fetch(part: _Part) -> None:
    failures, arrived = 0, False
    while True:
        before = part.size
        try:
            return _ask(part)
        except HTTPError as error:
            error.close()
            if error.code not in (408, 429) and error.code < 500:
                raise _Refused(str(error)) from error
            reason = str(error)
        except (HTTPException, ssl.SSLError, ConnectionError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
        except URLError as error:
            reason = str(error.reason)
        grown = part.size > before
        arrived |= grown
        failures = 0 if grown else failures + 1
        # A server that never answered is more likely to be mistyped or down than to come back in a minute.
        if failures == _ATTEMPTS or not arrived:
            raise _Refused(reason)
        time.sleep(_PAUSE * 2**failures)


def _ask(part: _Part) -> None:
    headers = {"User-Agent": f"proxemic/{__version__}", "Accept-Encoding": "identity"}
    have, version = part.size, part.version
    if have and version is not None:
        headers["Range"] = f"bytes={have}-"
        if version:
            headers["If-Range"] = version
    try:
        with urlopen(Request(part.url, headers=headers), timeout=_TIMEOUT) as response:
            _receive(response, part)
    except HTTPError as error:
        # Nothing lies beyond what is there: it is all, unless it is too much.
        if error.code != 416:
            raise
        error.close()
        if error.headers.get("Content-Range") != f"bytes */{have}":
            part.path.unlink(missing_ok=True)
            _ask(part)


def _receive(response: HTTPResponse, part: _Part) -> None:
    if response.headers.get_content_type() == "text/html":
        raise _Refused("the server sent a web page in its place")
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    start = 0 if response.status != 206 else int(match[1]) if match else -1
    if start not in (0, part.size):
        raise _Refused("the server sent another part than it was asked for")
    if start == 0:
        tag = response.headers.get("ETag", "")
        # A weak tag names no exact bytes and may not be asked with.
        version = response.headers.get("Last-Modified", "") if not tag or tag.startswith("W/") else tag
        part.path.write_bytes(b"")
        part.note.write_text(f"{part.url}\n{version}", encoding="utf-8")
    total = None if response.length is None else start + response.length
    free = shutil.disk_usage(part.path.parent).free
    if total is not None and total - start > free:
        raise _Refused(f"{(total - start) / 1e9:.1f} GB are to come, but {free / 1e9:.1f} GB are free")
    with (
        part.path.open("ab") as file,
        # silent where nobody watches
        tqdm(total=total, initial=start, unit="B", unit_scale=True, desc=part.target.name, disable=None) as bar,
    ):
        while chunk := response.read1(_CHUNK):
            file.write(chunk)
            bar.update(len(chunk))
    if total is not None and part.size < total:
        raise ConnectionError(f"the connection broke after {part.size:,} of {total:,} bytes")


def _finish(part: _Part, md5: str | None) -> None:
    with part.path.open("r+b") as file:  # Windows flushes writable files only
        os.fsync(file.fileno())
    actual = None if md5 is None else md5_of(part.path)
    if actual != md5:
        part.path.unlink()
        part.note.unlink(missing_ok=True)
        raise _Refused(f"what came is corrupted or another file, with MD5 {actual} instead of {md5}, and was removed")
    part.path.replace(part.target)
    part.note.unlink(missing_ok=True)
