"""Measure `proxemic serve` under the load of many clients, each of which sends one picture after the other.

    python benchmarks/serving.py                       # 60 s of each network, 32 clients
    python benchmarks/serving.py --at-once 1           # without batches
    python benchmarks/serving.py --attack              # beside slow clients, bombs and truncated uploads
    python benchmarks/serving.py --smoke               # seconds

The server is the command, in one process; the clients are threads of this process and use the same machine. A picture
is a JPEG file of 300 x 225 pixels; the answer has its 10 neighbours among 10,000 vectors. Latency is the time that a
client waits, and ``--at-once`` the largest batch of queries. Memory is the resident memory of the server after a tenth
of the time and at the end. The script fails if an answer is wrong.
"""

import http.client
import json
import os
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from measure import command, print_header, print_row, resident, write_photographs
from proxemic.data import Preprocessing
from proxemic.models import ModelConfig, build_model, save_model
from proxemic.retrieval import Gallery

SIDES = {"convnet": 64, "resnet50": 224}
"""Networks, and the side of their images in pixels."""
ROWS, DIM, PICTURES, K = 10_000, 128, 32, 10
BOUNDARY = "a0b1c2"
PROGRAM = """
import sys
from proxemic.cli import main
from proxemic.serve import engine
engine._AT_ONCE = int(sys.argv.pop(1))
sys.exit(main())
"""


@dataclass
class Load:
    """Latencies and wrong answers of all clients."""

    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)


def make_gallery(folder: Path, network: str) -> tuple[Path, list[bytes]]:
    """Create a gallery of pictures and many other vectors with an untrained network; return the pictures as bytes."""
    torch.manual_seed(0)
    side = SIDES[network]
    model = build_model(ModelConfig(network, DIM, image_size=side, pretrained=False)).eval()
    save_model(folder / "model", model, vars(Preprocessing(size=side, resize=side * 8 // 7)))
    (folder / "photos").mkdir()
    files = sorted(write_photographs(folder / "photos", PICTURES, (300, 225)))  # as a folder is listed
    gallery = Gallery.create(folder / "shop", folder / "model", folder / "photos")
    vectors = np.random.default_rng(0).standard_normal((ROWS - PICTURES, DIM), np.float32)
    gallery.add_vectors(vectors, [f"/{number}.jpg" for number in range(len(vectors))])
    return folder / "shop", [file.read_bytes() for file in files]


@contextmanager
def running(gallery: Path, at_once: int) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run a server, and yield its port and its process."""
    log = gallery.with_name("serve.log")
    words = ["serve", str(gallery), "--port", "0", "--max-seconds", "60"]
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(at_once), *words], stdout=file, stderr=file)
    try:
        while not (found := re.search(r":(\d+)/ \(Ctrl-C ends\)", log.read_text())):
            if process.poll() is not None:
                raise SystemExit(log.read_text())
            time.sleep(0.05)
        yield int(found[1]), process
    finally:
        process.terminate()
        process.wait()


def form(picture: bytes) -> bytes:
    """Return the body of an upload."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="picture"; filename="a.jpg"\r\n\r\n'
    return head.encode() + picture + f"\r\n--{BOUNDARY}--\r\n".encode()


def ask(port: int, bodies: Sequence[bytes], first: int, load: Load) -> None:
    """Send pictures until the load ends."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    number = first
    while not load.ended.is_set():
        began = time.perf_counter()
        try:
            connection.request("POST", f"/search?k={K}", bodies[number % len(bodies)], headers)
            answer = connection.getresponse()
            content = answer.read()
        except OSError as error:
            load.wrong.append(repr(error))
            return
        load.seconds.append(time.perf_counter() - began)
        if answer.status != 200 or json.loads(content)["hits"][0]["id"] != number % len(bodies):
            load.wrong.append(f"{answer.status}: {content[:200]!r}")
        number += 1


def attack(port: int, load: Load) -> None:
    """Send more and more slow requests, decompression bombs and uploads that break off."""
    head = f"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
    bomb = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", struct.pack(">IIBBBBB", 50_000, 50_000, 8, 0, 0, 0, 0))
    bomb += _chunk(b"IDAT", zlib.compress(bytes(50_000_000))) + _chunk(b"IEND", b"")
    slow = []
    while not load.ended.wait(0.5):
        with suppress(OSError):
            slow.append(socket.create_connection(("127.0.0.1", port)))
            slow[-1].sendall(f"{head}Content-Length: 1000".encode())  # and no more
            body = form(bomb)
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("POST", "/search", body, {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"})
            if (status := connection.getresponse().status) != 413:
                load.wrong.append(f"a bomb was answered by {status}")
            with socket.create_connection(("127.0.0.1", port)) as broken:
                broken.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[: len(body) // 2])


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def measure(network: str, clients: int, seconds: float, at_once: int, *, attacked: bool) -> list[str]:
    """Measure a network, and return a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        gallery, pictures = make_gallery(Path(folder), network)
        bodies, load = [form(picture) for picture in pictures], Load()
        with running(gallery, at_once) as (port, process):
            threads = [threading.Thread(target=ask, args=(port, bodies, first, load)) for first in range(clients)]
            threads += [threading.Thread(target=attack, args=(port, load))] * attacked
            for thread in threads:
                thread.start()
            time.sleep(seconds / 10)
            before = resident(process.pid) / 1e6
            time.sleep(seconds * 0.9)
            after = resident(process.pid) / 1e6
            load.ended.set()
            for thread in threads:
                thread.join()
    if load.wrong:
        raise SystemExit(f"{len(load.wrong)} of {len(load.seconds)} answers are wrong, the first: {load.wrong[0]}")
    centiles = statistics.quantiles(load.seconds, n=100, method="inclusive")
    memory = f"{before:.0f} → {after:.0f}"
    times = (f"{1e3 * value:.0f}" for value in (centiles[49], centiles[98], max(load.seconds)))
    return [network, str(at_once), str(len(load.seconds)), f"{len(load.seconds) / seconds:.0f}", *times, memory]


def main(
    *,
    networks: Sequence[str] = tuple(SIDES),
    clients: int = 32,
    seconds: float = 60,
    at_once: int = 16,
    attack: bool = False,
    smoke: bool = False,
) -> None:
    """Print a row for each network."""
    networks, seconds, attack = (["convnet"], 2.0, True) if smoke else (networks, seconds, attack)
    busy = os.getloadavg()[0]
    print(f"{clients} clients, {seconds:g} s, {os.cpu_count()} cores, load before {busy:.1f}, no wrong answer")
    print_header("network", "at once", "answers", "a second", "p50, ms", "p99, ms", "longest, ms", "MB")
    for network in networks:
        print_row(*measure(network, clients, seconds, at_once, attacked=attack))


if __name__ == "__main__":
    command(main)
