"""Find the user's cache folder, in which everything may be deleted at any time."""

import os
from pathlib import Path

import platformdirs


def cache_folder(name: str) -> Path:
    """Return a folder of the user's cache; the environment variable ``PROXEMIC_CACHE`` moves the cache."""
    return Path(os.environ.get("PROXEMIC_CACHE") or platformdirs.user_cache_path("proxemic")) / name
