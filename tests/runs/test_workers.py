"""Processes that load images with little shared memory, as in a container, where Docker's default is 64 MB."""

import subprocess
from pathlib import Path

import pytest

import warm
from command_line import TERMINAL, assert_refused
from proxemic.retrieval.vectors.bulk import embed_to_file

LITTLE = "100k"
IN_A_CONTAINER = """
import ctypes, subprocess, sys
from proxemic.cli import main

if ctypes.CDLL(None).unshare(0x00020000):  # CLONE_NEWNS
    sys.exit(77)
for words in (["--make-rprivate", "/"], ["-t", "tmpfs", "-o", "size=LITTLE", "tmpfs", "/dev/shm"]):
    if subprocess.call(["mount", *words]):
        sys.exit(77)
sys.exit(main())
""".replace("LITTLE", LITTLE)


def in_a_container(*words: str | Path) -> subprocess.CompletedProcess[str]:
    done = warm.run("-c", IN_A_CONTAINER, *words, environment=TERMINAL, timeout=60)
    if done.returncode == 77:
        pytest.skip("only root may mount a small /dev/shm")
    return done


def test_embeddings_are_the_same_with_little_shared_memory(shelf: Path, tmp_path: Path) -> None:
    words = (
        "embed",
        shelf / "photos",
        "--model",
        shelf / "model",
        "--out",
        tmp_path / "found.parquet",
        "--workers",
        "1",
    )
    done = in_a_container(*words)
    assert done.returncode == 0, done.stderr
    embed_to_file(shelf / "photos", tmp_path / "local.parquet", shelf / "model", workers=0)
    assert (tmp_path / "found.parquet").read_bytes() == (tmp_path / "local.parquet").read_bytes()


@pytest.mark.parametrize(
    "words",
    [
        ["gallery", "create", "OUT", "SHELF/photos", "--model", "SHELF/model"],
        ["clean", "SHELF/photos", "--model", "SHELF/model"],
    ],
    ids=lambda words: words[0],
)
def test_pictures_are_embedded_with_little_shared_memory(words: list[str], shelf: Path, tmp_path: Path) -> None:
    given = [word.replace("SHELF", str(shelf)).replace("OUT", str(tmp_path / "out")) for word in words]
    done = in_a_container(*given, "--workers", "1")
    assert done.returncode == 0, done.stderr


def test_an_evaluation_with_little_shared_memory_is_one_sentence(run: Path) -> None:
    assert_refused(in_a_container("evaluate", run, "--batches.workers", "1"), ["/dev/shm", "--shm-size"])
