"""The server behind nginx and Caddy, with the examples of docs/serving.md."""

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from proxemic.errors import UserError
from proxemic.serve.access import Access
from proxemic.serve.app import make_app
from proxemic.serve.engine import Engine
from proxemic.serve.limits import Limits
from servings import Serving

TOKEN = "a-token-of-24-characters"
NAME = "search.example.org"
PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
PICTURE = "photos/class 03/2.png"


def example(kind: str, server: int, port: int) -> str:
    """The example of the page, without TLS, at other ports, and for every name."""
    (text,) = re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    text = re.sub(r"ssl_.*;", "", text.replace("listen 443 ssl", f"listen 127.0.0.1:{port}"))
    return text.replace(f"{NAME} {{", f"http://{NAME}:{port} {{").replace("127.0.0.1:8000", f"127.0.0.1:{server}")


@contextmanager
def proxy(kind: str, text: str, port: int, folder: Path) -> Iterator[None]:
    program = shutil.which(kind) or shutil.which(f"/usr/sbin/{kind}")
    if program is None:
        pytest.skip(f"{kind} is not installed")
    folder.mkdir()
    file = folder / "config"
    if kind == "nginx":
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{name}_temp_path {folder}/{name};" for name in kinds)
        user = "user root;" * (os.geteuid() == 0)  # whose workers otherwise may not write into the folder
        file.write_text(
            f"{user} daemon off; pid {folder}/pid; error_log {folder}/log; events {{}} "
            f"http {{ access_log off; {temporary} {text} }}"
        )
        words = [program, "-p", str(folder), "-c", str(file)]
    else:
        file.write_text("{\n admin off\n auto_https off\n}\n" + text)
        words = [program, "run", "--adapter", "caddyfile", "--config", str(file)]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output)
    try:
        for _ in range(500):
            assert process.poll() is None, (folder / "output").read_text()
            with closing(socket.socket()) as connection:
                if connection.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait(20)


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def shop(stall: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    words = ("--token", TOKEN, "--name", NAME, "--root-path", "/shop")
    started = Serving(tmp_path_factory.mktemp("shop"), stall / "shop", *words)
    yield started
    assert started.end() == 0


@pytest.mark.parametrize(
    ("kind", "host"), [("nginx", "$http_host"), ("nginx", "$host"), ("nginx", "$proxy_host"), ("caddy", "")]
)
def test_a_browser_searches_through_a_proxy(kind: str, host: str, shop: Serving, stall: Path, tmp_path: Path) -> None:
    port = free_port()
    text = example(kind, shop.port, port).replace("$http_host", host)
    own = f"http://{NAME}:{port}"
    headers = {"Host": f"{NAME}:{port}"}
    picture = {"picture": (stall / PICTURE).read_bytes()}
    with (
        proxy(kind, text, port, tmp_path / "proxy"),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30) as client,
    ):
        assert client.get("/shop").headers["location"].endswith("/shop/")
        assert client.get("/shop/health").status_code == 200
        assert client.get("/shop/gallery").status_code == 401
        answer = client.get("/shop/", params={"token": TOKEN})
        assert (answer.status_code, answer.headers["location"]) == (303, "/shop/")
        cookie, _, rest = answer.headers["set-cookie"].partition(";")
        assert "Path=/shop" in rest
        client.headers["Cookie"] = cookie
        assert 'src="page.js"' in client.get("/shop/").text
        for origin, status in ((own, 200), ("http://evil.example", 403), (f"http://127.0.0.1:{port + 1}", 403)):
            answer = client.post("/shop/search", files=picture, headers={"Origin": origin})
            assert answer.status_code == status, origin
        assert client.get("/shop/openapi.json").json()["servers"] == [{"url": "/shop"}]
        # More than nginx takes by default is for the server to judge.
        assert "detail" in client.post("/shop/search", files={"picture": bytes(2**21)}).json()


def test_the_path_of_a_proxy_is_that_of_cookie_and_redirect(shelf: Path) -> None:
    app = make_app(Engine(str(shelf / "shop")), Access("localhost", TOKEN, [NAME], "/search/"), Limits())
    with TestClient(app, "http://localhost", follow_redirects=False) as client:
        answer = client.get("/", params={"token": TOKEN})
        assert (answer.status_code, answer.headers["location"]) == (303, "/search/")
        assert answer.headers["set-cookie"].endswith("; Path=/search")
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        assert client.get("/search", params={"item": 0}).json()["hits"], "a route may be called as the path"
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize("path", ["shop", "/a b", "/a;Secure", "/a//b", "http://a/b"])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(UserError, match="--root-path is"):
        Access("localhost", None, (), path)


@pytest.mark.parametrize(
    ("host", "headers", "status"),
    [
        (NAME, {"Origin": f"https://{NAME}:8443"}, 200),
        ("127.0.0.1:8000", {"Origin": f"https://{NAME}"}, 200),
        ("127.0.0.1:8000", {"Origin": "http://localhost:8080", "Sec-Fetch-Site": "same-origin"}, 200),
        ("127.0.0.1:8000", {"Origin": "http://localhost:8080", "Sec-Fetch-Site": "same-site"}, 403),
        ("127.0.0.1:8000", {"Origin": "http://localhost:8080"}, 403),
        ("127.0.0.1:8000", {"Origin": f"https://{NAME}", "Sec-Fetch-Site": "same-site"}, 403),
        ("127.0.0.1:8000", {"Origin": "https://evil.example", "Sec-Fetch-Site": "same-origin"}, 403),
        (NAME, {"Origin": f"https://x.{NAME}"}, 403),
    ],
)
def test_the_origin_is_compared_with_the_names_of_the_server(
    shelf: Path, host: str, headers: dict[str, str], status: int
) -> None:
    app = make_app(Engine(str(shelf / "shop")), Access("localhost", None, [NAME]), Limits())
    with TestClient(app, f"http://{host}") as client:
        assert client.get("/gallery", headers=headers).status_code == status
