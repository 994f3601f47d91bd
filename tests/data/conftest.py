from pathlib import Path

import pytest

from proxemic.data import Glyphs


@pytest.fixture(scope="session")
def glyphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with the glyphs, since drawing them takes seconds."""
    folder = tmp_path_factory.mktemp("glyphs")
    Glyphs(cache_dir=folder).load()
    return folder
