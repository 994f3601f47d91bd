"""Put a copy of uv into a folder, with nothing but Python's standard library: ``python3 bootstrap_uv.py FOLDER``.

The Makefile calls it where uv is not installed. pip is used where this Python has it, as it knows the user's mirrors;
a bare Python, as Debian's, has neither pip nor venv, and gets the wheel from PyPI, checked by its SHA-256.
"""

import hashlib
import io
import platform
import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

VERSION = "0.13.8"
INDEX = "https://pypi.org/simple/uv/"


def main(folder: Path) -> None:
    """Make ``folder/bin/uv``."""
    if not by_pip(folder):
        by_download(folder)
    (folder / "bin" / "uv").chmod(0o755)


def by_pip(folder: Path) -> bool:
    """Install with pip; False where there is none, or it fails."""
    words = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--target",
        str(folder),
        f"uv=={VERSION}",
    ]
    return subprocess.run([sys.executable, *words], stderr=subprocess.DEVNULL).returncode == 0


def by_download(folder: Path) -> None:
    """Fetch and unpack the wheel for this machine."""
    with urllib.request.urlopen(INDEX, timeout=60) as answer:
        page = answer.read().decode()
    wheel = rf'href="([^"#]*/uv-{re.escape(VERSION)}-py3-none-{tag()}\.whl)#sha256=([0-9a-f]{{64}})"'
    found = re.search(wheel, page)
    if found is None:
        raise SystemExit(f"uv has no build for {platform.platform()}: install it yourself, see docs.astral.sh/uv.")
    with urllib.request.urlopen(urllib.parse.urljoin(INDEX, found[1]), timeout=300) as answer:
        content = answer.read()
    if hashlib.sha256(content).hexdigest() != found[2]:
        raise SystemExit("uv could not be fetched: its checksum is wrong; try again, or install uv yourself.")
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        (folder / "bin" / "uv").write_bytes(archive.read(f"uv-{VERSION}.data/scripts/uv"))


def tag() -> str:
    """A pattern of the wheel's platform tag for this machine."""
    machine = {"amd64": "x86_64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())
    if sys.platform == "darwin":
        return rf"macosx_\d+_\d+_{machine}"
    libc = "musllinux" if platform.libc_ver()[0] == "" else "manylinux"
    return rf"{libc}_\d+_\d+_{machine}(?:\.{libc}\w*)?"


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except (urllib.error.URLError, OSError) as error:
        raise SystemExit(f"uv could not be fetched ({error}): check the network, or install uv yourself.") from None
