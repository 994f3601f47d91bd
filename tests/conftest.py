"""Fixtures of all tests."""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings
from jaxtyping import config

import images
from command_line import Here, warm_proxemic
from device import OnDevice
from disk import wait_for_no_disk
from images import write_folder, write_recipe

if TYPE_CHECKING:
    from browser import Opened

# A limit of time for an example measures the machine, and fails on a busy one. The same examples at every run: what
# fails is what was changed. Many others are tried by pytest --hypothesis-profile=explore.
settings.register_profile("any machine", deadline=None, derandomize=True, max_examples=40)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("any machine")

wait_for_no_disk()

# Tests embed the same pictures again and again, with networks that they replace: nothing is kept unless it is tested.
os.environ["PROXEMIC_CACHE_GB"] = "0"

# It changes what processes draw, and is for those that `warm` forks alone: not to be imported in search of doctests.
collect_ignore = ["preloaded.py"]

THREADS = torch.get_num_threads()

# Many short-lived objects are made, few in cycles. By default, looking for these takes a sixteenth of the tests' time.
gc.set_threshold(50_000, 20, 100)

# Ctrl-C is tested also where a shell has started the tests in the background, which then ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where losses and metrics are tested, and recipes trained")


def pytest_configure(config: pytest.Config) -> None:
    images.ACCELERATOR = config.getoption("device")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    _seed()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    left = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    assert left == THREADS, "a test leaves another number of threads, on which the last digits depend"


def _seed() -> None:
    """Random numbers of a test must not depend on earlier tests, which differ with the number of workers."""
    # Without a GPU, `torch.manual_seed` writes down the stack for each kind of GPU that torch knows.
    (torch if torch.accelerator.is_available() else torch.default_generator).manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _no_pictures() -> Iterator[None]:
    """Runs in this process draw none, unless a test asks for `pictures`."""
    with pytest.MonkeyPatch.context() as patch:
        if "proxemic.training" in sys.modules:  # not for losses alone, on a GPU
            from quick import draw_no_pictures

            draw_no_pictures(patch)
        yield


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of a test's tensors: that of --device, or the CPU for CPU-only tests."""
    name = str(request.config.getoption("device"))
    return torch.device("cpu" if request.node.get_closest_marker("cpu") else name)


@pytest.fixture
def on_device(device: torch.device) -> Iterator[None]:
    """New tensors are on the device; on a CPU nothing changes."""
    with nullcontext() if device.type == "cpu" else OnDevice(device):
        yield


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Turn off type checks, as in a user's process, so that functions must reject wrong values themselves."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


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


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A copy of the run, which may be spoilt."""
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos in 7 classes, the model of an untrained network, and their gallery, shop."""
    from shelves import write_shelf  # not with this file: older jaxtyping checks only what is imported after it

    return write_shelf(tmp_path_factory.mktemp("shelf"))


@pytest.fixture(scope="session")
def browse() -> "Iterator[Opened]":
    from browser import chromium  # not with this file: what tests losses on a GPU has no browser

    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, in which the tests of a module may put their runs."""
    folder = tmp_path_factory.mktemp("recipe")
    return write_recipe(folder / "tiny.yaml", write_folder(folder / "images"))
