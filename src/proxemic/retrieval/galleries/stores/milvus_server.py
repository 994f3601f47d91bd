"""Addresses of Milvus, and connections to a server or to Milvus Lite, which runs in this process."""

import logging
import os
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl, unquote

from proxemic.addresses import misread, split_server, without_password
from proxemic.errors import UserError
from proxemic.extras import optional_dependency

with optional_dependency("milvus"):
    import grpc
    from pymilvus import MilvusClient, MilvusException


T = TypeVar("T")
LITE = "milvus-lite:"
_CONNECTING = 5  # seconds
_NO_COLLECTION, _NOT_LOADED = 100, 101
_AWAY = ("Fail connecting", "UNAVAILABLE", "Retry", "DEADLINE_EXCEEDED", "closed channel")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_LOCK = threading.Lock()
_OPEN: Counter[Path] = Counter()  # open stores of this process, by their file of Milvus Lite
_LEFT: deque["Server"] = deque()  # servers of stores that nobody closed; see `leave`


@dataclass(frozen=True)
class Address:
    """Address of a gallery in Milvus; `shown` has no password."""

    shown: str
    gallery: str
    file: Path | None = None
    uri: str = ""
    token: str = field(default="", repr=False)
    database: str = ""

    @classmethod
    def parse(cls, address: str) -> Self:
        """Parse ``milvus://user:password@host:port/database/gallery`` or ``milvus-lite:FILE``."""
        if address.startswith(LITE):
            shown, file = without_password(address), address.removeprefix(LITE)
            if not file or (file.startswith("//") and not file.startswith("///")):
                raise UserError(f"{shown} does not name a file: give {LITE}FILE, or milvus://HOST:PORT/NAME.")
            return cls(shown, "gallery", Path(file).absolute())
        form = "milvus://user:password@host:port/gallery, or …/database/gallery, also with ?secure=true"
        url, parts = split_server(address, form, (1, 2))
        parts, options = [unquote(part) for part in parts], dict(parse_qsl(url.query))
        try:
            host, port = url.hostname, url.port or 19530
        except ValueError:
            host = port = None
        if not host or not options.keys() <= {"secure"}:
            raise misread(address, form)
        for name in parts:
            if not _NAME.fullmatch(name):
                raise UserError(
                    f"{name!r} is not a name for Milvus, which takes up to 255 letters a to z, digits and _, and "
                    "no digit first: choose another."
                )
        user, colon, password = url.netloc.rpartition("@")[0].partition(":")
        bracketed = f"[{host}]" if ":" in host else host
        return cls(
            without_password(address),
            parts[-1],
            None,
            f"{'https' if options.get('secure') == 'true' else 'http'}://{bracketed}:{port}",
            unquote(user) + colon + unquote(password),
            parts[0] if len(parts) == 2 else "",
        )


@contextmanager
def in_a_sentence(shown: str) -> Iterator[None]:
    """Convert exceptions of pymilvus and gRPC in the block to `UserError`."""
    try:
        yield
    except MilvusException as error:
        said = " ".join(str(error.message).split()).rstrip(".")
        if any(word in said for word in _AWAY):
            raise UserError(
                f"{shown} cannot be reached: {said}. Start the server, or correct host, port, user, password or "
                "database."
            ) from error
        if error.code == _NO_COLLECTION:
            raise UserError(f"{shown} holds no gallery any more ({said}): create it again.") from error
        raise UserError(f"{shown} refuses this: {said}.") from error
    except ValueError as error:
        if "closed channel" not in str(error):
            raise
        raise UserError(f"{shown} cannot be reached: its connection was closed. Open it again.") from error
    except grpc.RpcError as error:
        said = " ".join(str(getattr(error, "details", lambda: error)()).split()).rstrip(".")
        raise UserError(f"{shown} cannot be reached: {said}. Start the server, or correct the address.") from error


class Server:
    """A client of a Milvus server, or of Milvus Lite, which runs in this process."""

    def __init__(self, address: Address, *, create: bool) -> None:
        self.address = address
        # pymilvus logs every failure with a traceback.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        # Otherwise gRPC logs each start of a process that reads images.
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
        while _LEFT:
            _LEFT.popleft().close()
        uri = address.uri if address.file is None else _start(address.file, address.shown, create=create)
        self._file = address.file
        try:
            with in_a_sentence(address.shown):
                self.client: Any = MilvusClient(
                    uri, token=address.token, db_name=address.database, timeout=_CONNECTING, dedicated=True
                )
                # Milvus Lite may also run as a server of its own.
                self.is_lite = "lite" in self.client.get_server_version()
        except UserError:
            self.close()
            raise

    def read(self, collection: str, reading: Callable[[], T]) -> T:
        """Read a collection, and load it first if the server was restarted."""
        try:
            return reading()
        except MilvusException as error:
            # Milvus Lite has no error code for this.
            if error.code != _NOT_LOADED and "in state 'released'" not in str(error.message):
                raise
        self.client.load_collection(collection)
        return reading()

    def close(self) -> None:
        """Close the connection, and release the file if nothing else in this process uses it."""
        with suppress(Exception):  # the server may be gone
            self.client.close()
        if self._file is not None:
            _stop(self._file)
            self._file = None


def leave(server: Server) -> None:
    """Remember to close a server, which the garbage collector must not do as it may run while locks are held."""
    _LEFT.append(server)


def _start(file: Path, shown: str, *, create: bool) -> str:
    if not create and not file.exists():
        raise UserError(f"{shown} does not exist: create a gallery there, or correct the name.")
    if file.is_dir() and any(file.iterdir()) and not (file / "LOCK").exists():
        raise UserError(f"{shown} is a folder of something else: choose another name.")
    if not file.parent.is_dir():
        raise UserError(f"{shown} is in a folder that does not exist: make {without_password(str(file.parent))} first.")
    with optional_dependency("milvus"):
        from milvus_lite.server_manager import server_manager_instance
    logging.getLogger("milvus_lite").setLevel(logging.CRITICAL)
    with _LOCK:
        uri = server_manager_instance.start_and_get_uri(str(file))
        if uri is None:
            raise UserError(
                f"{shown} cannot be opened: another process has it open, or it cannot be "
                "written, or is damaged. Wait for the other, or look at the file."
            )
        _OPEN[file] += 1
    return uri


def _stop(file: Path) -> None:
    from milvus_lite.server_manager import server_manager_instance

    with _LOCK:
        _OPEN[file] -= 1
        if not _OPEN[file]:
            server_manager_instance.release_server(str(file))
