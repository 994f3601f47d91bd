"""Ends at the wrong moment: Ctrl-C while a server opens, and a killed export; and what a server keeps of pictures."""

import errno
import io
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn.server
from PIL import Image

import warm
from command_line import Here, warm_start
from servings import Serving


def wait_until(is_so: Callable[[warm.Process], object], process: warm.Process) -> None:
    while not is_so(process):
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def test_ctrl_c_while_a_gallery_opens_shows_no_traceback(shelf: Path) -> None:
    for word, codes in (("Serving", (0,)), ("Opening", (0, 2, 130))):
        process = warm_start("serve", shelf / "shop", "--port", "0")
        wait_until(lambda process, word=word: word in (process._folder / "err").read_text(), process)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert "Traceback" not in out + err
        assert process.returncode in codes


def test_ctrl_c_in_the_start_of_the_loop_ends_the_server(
    shelf: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = uvicorn.server.asyncio_run

    def interrupted(*arguments: Any, **settings: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        start(*arguments, **settings)

    monkeypatch.setattr("uvicorn.server.asyncio_run", interrupted)
    assert here("serve", shelf / "shop", "--port", "0").returncode == 0


SERVE_TWO = """
import sys
from proxemic.serve import serve
from proxemic.serve.limits import Limits
serve(sys.argv[1], port=0, limits=Limits(connections=2), report=lambda line: print(line, flush=True))
"""


def test_one_connection_more_than_allowed_is_answered_503(shelf: Path) -> None:
    process = warm.Process("-c", SERVE_TWO, shelf / "shop")
    wait_until(lambda process: "(Ctrl-C" in process.outputs[0].read_text(), process)
    address = re.findall(r"http://\S+/", process.outputs[0].read_text())[0]
    try:
        clients = [httpx.Client(base_url=address, timeout=60) for _ in range(3)]
        assert [client.get("/gallery").status_code for client in clients] == [200, 200, 503]
        for client in clients:
            client.close()
    finally:
        process.kill()
        process.communicate(60)


def test_why_a_server_cannot_start_is_said(shelf: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("uvicorn.Server.run", fail)
    result = here("serve", shelf / "shop", "--port", "0")
    assert result.returncode == 2
    assert "Cannot allocate memory" in result.stderr
    assert "Traceback" not in result.stderr


def resident(process: int) -> int:
    """Bytes of memory of a process and those that it has started."""
    own = 1024 * int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())[0])
    return own + sum(
        resident(int(child)) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    )


def test_a_server_gives_back_the_memory_of_large_pictures(shelf: Path, tmp_path: Path) -> None:
    side = 4000
    large, small = io.BytesIO(), io.BytesIO()
    Image.fromarray(np.zeros((side, side), np.uint16)).save(large, "PNG")
    Image.new("L", (16, 16)).save(small, "PNG")
    serving = Serving(tmp_path, shelf / "shop")  # not warm, where threads have had heaps of their own
    try:
        sizes = []
        for picture in (small, large, large, large):
            answer = serving.client.post("/search", files={"picture": ("a.png", picture.getvalue())})
            assert answer.status_code == 200, answer.text
            sizes.append(resident(serving.process.pid))
        assert sizes[-1] - sizes[0] < 2 * side**2  # bytes of a decoded picture, at least
    finally:
        serving.end()


def test_a_killed_export_leaves_nothing_for_ever(run: Path, tmp_path: Path) -> None:
    temporary, out = tmp_path / "tmp", tmp_path / "out"
    temporary.mkdir()

    def left() -> set[Path]:
        return {path for folder in (temporary, out) if folder.exists() for path in folder.iterdir()}

    code = f"import tempfile; tempfile.tempdir = {str(temporary)!r}; from proxemic.cli import main; main()"
    # The next export removes the files of killed ones, so that only those of the last may stay.
    for _ in range(2):
        before = left()
        process = warm.Process("-c", code, "export", run, "--out", out / "net.pt2", "--to", "torch")
        wait_until(lambda _, before=before: left() - before, process)
        process.kill()
        process.communicate()
    assert len(left()) <= 1
