"""A local web server for a test, with configurable behaviour."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread


@dataclass
class Site:
    """The files of the server, its behaviour, and the requests that it received."""

    files: dict[str, bytes]
    url: str = ""
    ranges: bool = True
    ahead: int = 0  # bytes after the start of the asked range at which the answer begins
    version: str = '"1"'
    kind: str = "application/octet-stream"
    breaks: list[int] = field(default_factory=list)  # bytes of each coming answer after which the connection drops
    status: list[int] = field(default_factory=list)  # of each coming answer
    stalled: Event | None = None  # wait for this before a connection drops
    asked: list[str | None] = field(default_factory=list)  # the Range of each request
    sent: list[int] = field(default_factory=list)  # bytes of each answer, known before the first of them leaves
    agents: set[str | None] = field(default_factory=set)


@contextmanager
def serve(site: Site) -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

        def do_GET(self) -> None:
            answer(self, site)

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that has left early, as some are to

    with Server(("127.0.0.1", 0), Handler) as http:
        site.url = f"http://127.0.0.1:{http.server_port}"
        thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield site
        finally:
            http.shutdown()
            thread.join()


def answer(request: BaseHTTPRequestHandler, site: Site) -> None:
    content = site.files.get(request.path.partition("?")[0].lstrip("/"))
    wanted = request.headers.get("Range")
    site.asked.append(wanted)
    site.agents.add(request.headers.get("User-Agent"))
    status = site.status.pop(0) if site.status else 200
    if status != 200 or content is None:
        request.send_error(404 if status == 200 else status)
        return
    start, total = 0, len(content)
    if wanted and site.ranges and request.headers.get("If-Range") in (None, site.version):
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) + site.ahead
        status = 206 if start < total else 416
    end = start + site.breaks.pop(0) if site.breaks else total
    site.sent.append(len(content[start:end]))
    request.send_response(status)
    if status == 206:
        request.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
    elif status == 416:
        request.send_header("Content-Range", f"bytes */{total}")
    if site.version:
        request.send_header("ETag", site.version)
    request.send_header("Content-Type", site.kind)
    request.send_header("Content-Length", str(max(0, total - start)))
    request.end_headers()
    request.wfile.write(content[start:end])
    request.wfile.flush()
    if end < total and site.stalled:
        site.stalled.wait(30)
