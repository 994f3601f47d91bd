"""docs/licences.md against uv.lock and the installed packages."""

import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
AGAIN = "python docs/make_licences.py writes it anew"


def test_the_page_names_all_that_is_installed_with_proxemic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs"), *sys.path])
    import make_licences

    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    found, page = make_licences.dependencies(lock), make_licences.read_page()
    assert {name: extras for name, (_, extras) in page.items()} == {
        name: make_licences.brings(extras) for name, extras in found.items()
    }, AGAIN
    assert {"torch", "numpy", "psycopg", "tqdm", "faiss-cpu"} <= page.keys()
    locked = {package["name"]: package.get("version") for package in lock["package"]}
    for name, (kind, _) in page.items():
        try:
            if version(name) != locked[name]:  # as make lowest has them
                continue
        except PackageNotFoundError:
            continue
        assert make_licences.licence(name) == kind, f"{name}: {AGAIN}"
