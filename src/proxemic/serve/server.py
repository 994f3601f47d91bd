"""Serve a gallery until Ctrl-C."""

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection
from dataclasses import astuple
from functools import partial
from typing import TYPE_CHECKING, Any

from proxemic.addresses import read_scheme
from proxemic.allocator import keep_freed_memory, share_one_heap
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.safe_path import safe_path
from proxemic.serve.access import Access
from proxemic.serve.limits import Limits

# Workers import this module before they answer uvicorn's health checks, so what takes seconds is imported later.
if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxemic.retrieval.curation.doubts import Doubt
    from proxemic.serve.engine import Engine
    from proxemic.serve.guard import Guard

_Settings = tuple[str, str | None, float | None, float | None, Limits]
_logger = logging.getLogger(__name__)


def serve(
    gallery: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    names: Collection[str] = (),
    root_path: str = "",
    rate: float | None = None,
    threshold: float | None = None,
    review: bool = False,
    limits: Limits = Limits(),
    workers: int = 1,
    report: Callable[[str], object] | None = None,
) -> None:
    """Serve a gallery over HTTP, as a page and as JSON, until Ctrl-C or SIGTERM.

    The server sends no files but images of the gallery, by their ids. The next request sees what other processes change
    in the gallery.

    Args:
        gallery: The address of a gallery, as `proxemic.retrieval.Gallery.open` takes it.
        model: Path of the gallery's model if it has moved.
        host: The host name or IP address to listen on; by default only this machine can reach the server.
        port: The port, 0 to 65535; 0 takes a free one.
        token: The secret that clients must send, 16 characters or more; needed if other machines can reach the server.
        names: Further host names of the server, such as the name of a proxy in front of it.
        root_path: The path below which a proxy shows the server, such as ``/shop``; the proxy removes it from
            requests.
        rate: The false accept rate for which the threshold must have been learnt; None takes any. Images beyond the
            threshold are unknown.
        threshold: A distance to use instead of a calibrated threshold.
        review: Whether people may review suspected labels, duplicates and outliers on the page ``/review``. The server
            finds them before it starts, and keeps decisions next to the gallery; see
            `proxemic.retrieval.curation.apply_decisions`.
        limits: The limits of requests, for each worker.
        workers: The number of processes that answer, each with the gallery and its model. A process that ends is
            started again. A file of Milvus Lite allows only one.
        report: Called with lines for the user, once the gallery is open. None logs them.

    Raises:
        UserError: If there is no such gallery, its model is missing, the port is taken, a token is missing, `root_path`
            is not a path, or the gallery cannot be reviewed.
        ValueError: If `threshold` is not a distance, `port` is not a port, or `workers` is less than 1.
        ImportError: If FastAPI, uvicorn or python-multipart is not installed.

    Example:
        >>> serve("shop", port=8080)  # doctest: +SKIP
    """
    with optional_dependency("serve"):
        import uvicorn

        from proxemic.serve.app import make_app
        from proxemic.serve.engine import Engine
        from proxemic.serve.protocol import ImpatientProtocol
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ValueError(f"workers is {workers!r}, but must be a whole number above 0.")
    if workers > 1 and read_scheme(os.fspath(gallery))[0] == "milvus-lite":
        raise UserError("Only one process can open a file of Milvus Lite: serve it with --workers 1.")
    say = report or _logger.info
    access = Access(host, token, names, root_path)
    with _listen(host, port) as listener:
        moved = None if model is None else os.fspath(model)
        settings = (os.fspath(gallery), moved, rate, threshold, limits)
        engine = Engine(*settings)  # even if workers open it again, so that an error is reported once
        about = engine.about()
        doubts = _find_doubts(engine, say) if review else None
        if workers > 1:
            engine.close()
        config = uvicorn.Config(
            # Doubts as plain data: to read them, workers would import torch before they answer health checks.
            partial(_work, settings, access, workers, None if doubts is None else [*map(astuple, doubts)])
            if workers > 1
            else make_app(engine, access, limits, doubts),
            factory=workers > 1,
            workers=workers,
            http=ImpatientProtocol,
            ws="none",
            access_log=False,  # which would show tokens
            log_level="critical",
            proxy_headers=False,
            server_header=False,
            limit_concurrency=limits.connections + 1,  # from this number of connections on, uvicorn answers 503
            timeout_graceful_shutdown=3,
        )
        for line in engine.messages:
            say(line)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}/"
        try:
            say(f"Serving {about['name']}, {about['rows']:,} photos, at {address} (Ctrl-C ends)")
            if doubts is not None:
                say(f"Review its labels at {address}review")
            if workers == 1:
                server = uvicorn.Server(config)
                with server.capture_signals():  # otherwise Ctrl-C could interrupt asyncio while it starts
                    server.run(sockets=[listener])
            else:
                from proxemic.serve.workers import run_workers

                with safe_path():
                    run_workers(config, listener)
        except KeyboardInterrupt:
            pass  # the normal end


def _find_doubts(engine: "Engine", say: Callable[[str], object]) -> "Sequence[Doubt]":
    """Find suspected images; refuse galleries that cannot store decisions first, because finding takes minutes."""
    from proxemic.retrieval.curation.decisions import list_decisions
    from proxemic.retrieval.curation.doubts import find_doubts

    list_decisions(engine.gallery)
    say("Looking for suspected labels, duplicates and outliers")
    return find_doubts(engine.gallery, report=say)


def _work(settings: "_Settings", access: Access, workers: int, found: list[tuple[Any, ...]] | None) -> "Guard":
    """Make the application in a worker process."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # uvicorn's handler waits until the gallery is open
    keep_freed_memory()
    share_one_heap()
    import torch
    from uvicorn.config import STARTUP_FAILURE

    from proxemic.retrieval.curation import Doubt
    from proxemic.serve.app import make_app
    from proxemic.serve.engine import Engine
    from proxemic.serve.workers import end_with_parent

    end_with_parent()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    try:
        doubts = None if found is None else [Doubt(*item) for item in found]
        return make_app(Engine(*settings), access, settings[-1], doubts)
    except (UserError, ValueError, OSError) as error:
        print(f"A worker cannot open the gallery: {error}", file=sys.stderr, flush=True)
        sys.exit(STARTUP_FAILURE)  # otherwise uvicorn would start another one, which would fail in the same way
    finally:
        signal.signal(signal.SIGTERM, before)


def _listen(host: str, port: int) -> socket.socket:
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 65536:
        raise ValueError(f"port is {port!r}, but must be a whole number from 0 to 65535.")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        listener = socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        raise UserError(
            f"The server cannot listen on port {port} of {host} ({error.strerror or error}): give another --port, or "
            "end the program that uses this one."
        ) from error
    # Without this, which connections inherit, a body waits until the client has acknowledged the headers.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
