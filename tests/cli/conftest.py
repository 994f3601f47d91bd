from pathlib import Path

import pytest

from command_line import Here, warm_proxemic
from images import write_folder, write_recipe


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    return Here(capsys, monkeypatch)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("commands") / "images")


@pytest.fixture(scope="session")
def tiny(folder: Path) -> Path:
    return write_recipe(folder.parent / "tiny.yaml", folder)


@pytest.fixture(scope="session")
def run(folder: Path, tiny: Path) -> Path:
    result = warm_proxemic("train", "--recipe", tiny, "--out", folder.parent / "run", "--training.epochs", "2")
    assert result.returncode == 0, result.stderr
    return folder.parent / "run"
