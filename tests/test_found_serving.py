"""Ends at the wrong moment: Ctrl-C while a server opens, and a killed export; and what a server keeps of pictures."""

import errno
import io
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import warm
from command_line import Here, warm_start
from servings import Serving


def children(process: int) -> list[int]:
    """Processes that a process has started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == process:
            found.append(int(status.parent.name))
    return found


def errors(process: warm.Process) -> str:
    return (process._folder / "err").read_text()


def wait_until(is_so: Callable[[warm.Process], object], process: warm.Process) -> None:
    while not is_so(process):
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def test_ctrl_c_while_a_gallery_opens_shows_no_traceback(shelf: Path) -> None:
    moments: list[Callable[[warm.Process], object]] = [
        lambda process: "Serving" in errors(process),
        lambda process: "Opening" in errors(process),
    ]
    for moment in moments:
        process = warm_start("serve", shelf / "shop", "--port", "0")
        wait_until(moment, process)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert "Traceback" not in out + err
        assert process.returncode in (0, 2, 130)


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
    status = Path(f"/proc/{process}/status").read_text()
    own = 1024 * int(re.findall(r"VmRSS:\s+(\d+)", status)[0])
    return own + sum(map(resident, children(process)))


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


HERE_TEMPORARY = """
import sys, tempfile
tempfile.tempdir = sys.argv.pop(1)
from proxemic.cli import main
sys.exit(main())
"""


def test_a_killed_export_leaves_nothing_for_ever(run: Path, tmp_path: Path) -> None:
    temporary, out = tmp_path / "tmp", tmp_path / "out"
    temporary.mkdir()
    # What another export finds is removed, so that at most the files of the last one stay.
    for _ in range(2):
        before = {*left(temporary, out)}
        process = warm.Process(
            "-c", HERE_TEMPORARY, temporary, "export", run, "--out", out / "net.pt2", "--to", "torch"
        )
        wait_until(lambda _, before=before: {*left(temporary, out)} - before, process)
        process.kill()
        process.communicate()
    assert len(left(temporary, out)) <= 1


def left(*folders: Path) -> list[Path]:
    return [path for folder in folders if folder.exists() for path in folder.iterdir()]
