"""Fresh environments, into which uv installs a wheel as a user does: made in a second, as files are linked."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


@cache
def uv() -> str | None:
    """The program: that which runs the tests, one that is installed, or the Makefile's."""
    return os.environ.get("UV") or shutil.which("uv") or shutil.which("uv", path=str(ROOT / ".uv/bin"))


def run_uv(*words: str | Path, **options: str) -> subprocess.CompletedProcess[str]:
    """Run uv with its own cache, not with the caches of the tests; it must succeed."""
    program = uv()
    assert program is not None
    environment = {name: value for name, value in _environment().items() if name != "XDG_CACHE_HOME"} | options
    done = subprocess.run([program, *map(str, words)], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done


@cache
def pythons() -> dict[str, Path]:
    """The supported interpreters on this machine, by version, from uv, PATH and pyenv."""
    listed = json.loads(run_uv("python", "list", "--only-installed", "--output-format", "json").stdout)
    paths = [Path(item["path"]) for item in listed]
    paths += Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob("versions/*/bin/python3.1?")
    found: dict[str, Path] = {}
    for path in [Path(sys.executable), *paths]:
        with suppress(OSError, subprocess.SubprocessError):
            code = "import sys; print('%d.%d' % sys.version_info[:2])"
            said = subprocess.run([path, "-c", code], capture_output=True, text=True, timeout=20, check=True).stdout
            if said.strip() in ("3.11", "3.12", "3.13", "3.14"):
                found.setdefault(said.strip(), path)
    return dict(sorted(found.items()))


class Environment:
    """One folder, in which each environment takes the place of the one before.

    As paths and times of files are then the same, what one has compiled the next need not compile: torch alone takes
    ten seconds. Of this process's Python, that which it runs in has most of it compiled.
    """

    def __init__(self, folder: Path, compiled: Path) -> None:
        self.folder, self.compiled = folder / "environment", compiled
        self.work = folder
        self._versions = folder / "versions.txt"
        self._taken = {"__pycache__"}
        words = ("--frozen", "--all-extras", "--no-dev", "--no-hashes", "--no-emit-project", "--quiet")
        self._versions.write_text(run_uv("export", *words).stdout)

    def install(self, python: Path, wheel: Path, extras: Sequence[str]) -> None:
        """Create it with the versions of uv.lock."""
        run_uv("venv", "--clear", "--quiet", "--python", python, self.folder)
        asked = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
        run_uv("pip", "install", "--quiet", "--python", self.folder, "--constraint", self._versions, asked)
        if python == Path(sys.executable):
            self._take_over_compiled()

    def _take_over_compiled(self) -> None:
        (site,) = self.folder.glob("lib/python*/site-packages")
        own = Path(sys.prefix, *site.relative_to(self.folder).parts)
        target = self.compiled / site.relative_to("/")
        names = {path.name for path in site.iterdir()} - self._taken
        self._taken |= names
        for name in names:
            for file in own.glob(f"{name}/**/__pycache__/*.pyc"):
                if re.search(r"\.cpython-\d+\.pyc$", file.name):
                    link = target / file.parent.parent.relative_to(own) / file.name
                    link.parent.mkdir(parents=True, exist_ok=True)
                    link.symlink_to(file)

    def run(self, program: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run one of its programs."""
        path = self.folder / ("Scripts" if os.name == "nt" else "bin") / program
        environment = {**_environment(), "PYTHONPYCACHEPREFIX": str(self.compiled), "COLUMNS": "120"}
        return subprocess.run(
            [path, *map(str, words)], cwd=self.work, capture_output=True, text=True, env=environment, timeout=300
        )


def _environment() -> dict[str, str]:
    """The environment of this process, without variables that lead to its own packages."""
    leading = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE", "UV_PROJECT_ENVIRONMENT", "PYTHONHOME")
    return {name: value for name, value in os.environ.items() if name not in leading}
