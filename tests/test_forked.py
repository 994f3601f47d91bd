"""Tests in forked workers are reported as in one process, and a worker that crashes fails the test that it ran."""

import re
import subprocess
from pathlib import Path

import pytest

import warm

FIRST = """
import os, signal, time
from pathlib import Path
import pytest

@pytest.fixture(scope="session")
def resource(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    yield folder
    Path("closed").open("a").write(f"{folder.name} ")

@pytest.fixture(scope="module")
def opened():
    print("opens")
    yield
    print("closes")

def test_passes(resource, opened):
    time.sleep(0.3)

def test_crashes(opened):
    os.kill(os.getpid(), signal.SIGSEGV)

def test_stays(resource, opened, tmp_path):
    assert os.environ["PYTEST_WORKER"] in tmp_path.parent.name

@pytest.mark.parametrize("number", range(3))
def test_fails(number):
    print("printed before")
    assert number < 2
"""
SECOND = """
import os
import module

def test_covered(tmp_path):
    assert module.double(2) == 4

def test_worker():
    assert "PYTEST_WORKER" not in os.environ
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "test_first.py").write_text(FIRST)
    (tmp_path / "test_second.py").write_text(SECOND)
    (tmp_path / "module.py").write_text("def double(number):\n    return number + number\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (tmp_path / ".coveragerc").write_text("[run]\nparallel = true\npatch = fork\n    _exit\n")
    return tmp_path


def run(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # With a data file of its own: pytest-cov would remove that of the coverage of the package.
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COVERAGE_FILE": str(project / ".coverage")}
    return warm.run("-m", "pytest", "-p", "forked", "--workers=2", *words, cwd=project, environment=alone)


def outcomes(output: str) -> str:
    return output.strip().splitlines()[-1].strip("= ").rpartition(" in ")[0]


def test_a_crashed_worker_fails_its_test_and_the_others_run(project: Path) -> None:
    result = run(project, "--durations=1", "--durations-min=0.2")
    assert outcomes(result.stdout) == "3 failed, 5 passed", result.stdout
    assert result.returncode == 1
    failed = re.findall(r"^FAILED (\S+)", result.stdout, flags=re.MULTILINE)
    assert {*failed} == {
        "test_first.py::test_crashes",
        "test_first.py::test_fails[2]",
        "test_second.py::test_worker",
    }
    assert "exit code -11" in result.stdout
    assert "printed before" in result.stdout
    assert re.search(r"0\.3\ds call +test_first.py::test_passes", result.stdout)
    # The session's fixtures are closed once by each worker that lived; the crashed one closed none.
    assert len((project / "closed").read_text().split()) == 1


def test_x_stops_and_k_selects(project: Path) -> None:
    selected = run(project, "-k", "fails or covered")
    assert outcomes(selected.stdout) == "1 failed, 3 passed, 4 deselected", selected.stdout
    stopped = run(project, "-x", "-k", "crashes or stays or fails or covered")
    assert outcomes(stopped.stdout).startswith("1 failed"), stopped.stdout
    assert "stopping after 1 failures" in stopped.stdout
    assert "test_fails" not in stopped.stdout


def test_a_debugger_finds_all_tests_in_its_own_process(project: Path) -> None:
    assert outcomes(run(project, "--pdb", "-k", "worker or covered").stdout) == "2 passed, 6 deselected"


def test_coverage_sees_what_workers_run(project: Path) -> None:
    result = run(project, "-p", "pytest_cov", "--cov=module", "-k", "passes or covered")
    assert re.search(r"^module.py +2 +0 +100%", result.stdout, flags=re.MULTILINE), result.stdout
