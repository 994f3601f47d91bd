"""Serving a gallery until Ctrl-C."""

import logging
import os
import socket
from collections.abc import Callable, Collection

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.serve.access import Access
from proxemic.serve.limits import Limits
from proxemic.serve.messages import Settings
from proxemic.serve.process import WorkerProcess

_logger = logging.getLogger(__name__)


def serve(
    gallery: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    names: Collection[str] = (),
    rate: float | None = None,
    threshold: float | None = None,
    limits: Limits = Limits(),
    report: Callable[[str], object] | None = None,
) -> None:
    """Serve a gallery over HTTP, as a page and as JSON, until Ctrl-C or SIGTERM.

    Pictures are embedded by a process of its own, which is started again if it ends. Of files, only pictures of the
    gallery are given out, by their ids. What other processes change in the gallery is seen by the next request.

    Args:
        gallery: Its address, as `proxemic.retrieval.Gallery.open` takes it.
        model: Where the gallery's model is now; None where it was.
        host: The address to listen on; by default only this machine reaches it.
        port: The port, 0 to 65535; 0 takes a free one.
        token: What others must give, 16 characters or more; needed where other machines reach the server.
        names: Further host names that it is reached by, such as that of a proxy before it.
        rate: The false accept rate whose calibrated threshold says what is unknown; None takes 0.01,
            or the smallest that was learnt.
        threshold: A distance instead.
        limits: What a request may ask for.
        report: Called with lines for the user. None logs them.

    Raises:
        UserError: If there is no such gallery, its model is not there, the port is taken, or a token is missing.
        ValueError: If `threshold` is no distance, or `port` no port.
        ImportError: If FastAPI, uvicorn or python-multipart is not installed.

    Example:
        >>> serve("shop", port=8080)  # doctest: +SKIP
    """
    from proxemic.serve.app import make_app

    with optional_dependency("serve"):
        import uvicorn

        from proxemic.serve.protocol import ImpatientProtocol

    say = report or _logger.info
    access = Access(host, token, names)
    listener = _listen(host, port)
    settings = Settings(os.fspath(gallery), None if model is None else os.fspath(model), rate, threshold, limits.pixels)
    worker = WorkerProcess(settings, limits.queue, say)
    try:
        about = worker.start()
        from proxemic.serve.guard import Guard

        app = Guard(make_app(worker, limits, about["name"], with_token=token is not None), access, limits)
        config = uvicorn.Config(
            app,
            http=ImpatientProtocol,
            ws="none",
            access_log=False,  # it would show tokens
            log_level="critical",
            proxy_headers=False,
            server_header=False,
            limit_concurrency=limits.connections,
            timeout_graceful_shutdown=3,
        )
        for line in about["said"]:
            say(line)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}/"
        say(f"Serving {about['name']}, {about['rows']:,} pictures, at {address} (Ctrl-C ends)")
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        pass  # how it is meant to end
    finally:
        listener.close()
        worker.kill()


def _listen(host: str, port: int) -> socket.socket:
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 65536:
        raise ValueError(f"port is {port!r}, but must be a whole number from 0 to 65535.")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        listener = socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        raise UserError(
            f"Port {port} of {host} cannot be listened on ({error.strerror or error}): give another --port, or end "
            "what listens there."
        ) from error
    # Connections inherit it. Without it, the body of an answer waits until the client has acknowledged the headers.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
