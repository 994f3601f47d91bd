"""Sharded tensors written by some processes and read by others."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import warm
from proxemic.distributed.checkpoint import load_shards, load_whole, save_shards

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def journey() -> dict[str, dict[str, list]]:  # type: ignore[type-arg]
    done = warm.run(ROOT / "benchmarks" / "resharding.py", "--json", environment={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_checkpoint_of_4_processes_is_read_by_1_to_3(journey: dict[str, dict[str, list]]) -> None:  # type: ignore[type-arg]
    assert len(journey) == 2
    for row in journey.values():
        assert row["files"] == [4, 1, 3, 4]
        assert row["same"] == [True] * 4
        first, *others, last = (torch.tensor(losses, dtype=torch.float64) for losses in row["losses"])
        assert torch.equal(first, last)
        for other in others:
            torch.testing.assert_close(other, first, rtol=1e-6, atol=0)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_shards(tmp_path / "whole", {"proxies": torch.arange(12.0).view(6, 2), "momentum": torch.ones(6, 2)}, 6)
    return tmp_path / "whole"


def test_what_one_process_writes_it_reads(saved: Path) -> None:
    assert load_whole(saved, "proxies").tolist() == torch.arange(12.0).view(6, 2).tolist()
    (file,) = saved.iterdir()
    assert sorted(load_file(file)) == ["momentum", "proxies"]
    assert list(saved.parent.iterdir()) == [saved]  # the temporary one has become it


@pytest.mark.parametrize(
    ("starts", "rows", "there"),
    [
        ((0, 4), (4, 2), 6),
        ((0, 4), (3, 2), 3),  # a gap
        ((0, 2), (3, 4), 3),  # an overlap
        ((1, 4), (3, 2), 0),  # the first one is missing
        ((0, 4), (4, 1), 5),  # the last one is missing
    ],
)
def test_rows_that_are_missing_or_come_twice_are_refused(
    tmp_path: Path, starts: tuple[int, int], rows: tuple[int, int], there: int
) -> None:
    """Files as two processes would write them."""
    for number, (start, count) in enumerate(zip(starts, rows, strict=True)):
        values = torch.arange(start * 2.0, (start + count) * 2).view(count, 2)
        save_file({"proxies": values}, tmp_path / f"{number}.safetensors", {"first row": str(start), "rows": "6"})
    if there == 6:
        assert load_whole(tmp_path, "proxies").tolist() == torch.arange(12.0).view(6, 2).tolist()
        return
    with pytest.raises(ValueError, match=rf"is missing or incomplete: it has only the first {there} rows of proxies"):
        load_whole(tmp_path, "proxies")


def test_what_does_not_fit_is_refused(saved: Path, tmp_path: Path) -> None:
    for other in (torch.empty(7, 2), torch.empty(6, 3), torch.empty(6, 2, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"holds proxies as torch.float32 \[6, 2\], but"):
            load_shards(saved, {"proxies": other}, 7)
    with pytest.raises(ValueError, match="exp_avg"):
        load_whole(saved, "exp_avg")
    with pytest.raises(ValueError, match="is missing"):
        load_whole(tmp_path / "nowhere", "proxies")
    (file,) = saved.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is damaged"):
        load_whole(saved, "proxies")


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, torch; from pathlib import Path; from proxemic.distributed.checkpoint import save_shards\n"
        "try: save_shards(Path(sys.argv[1]), {'proxies': torch.zeros(1000, 100)}, 1000)\n"
        "except OSError as error: print(error)"
    )
    done = warm.run("-c", code, tmp_path / "full", largest_file=100_000)
    assert "cannot be written" in done.stdout, done.stderr
    assert list(tmp_path.iterdir()) == []
