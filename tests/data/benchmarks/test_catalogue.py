"""The catalogue of published data sets, called from Python."""

from dataclasses import replace
from pathlib import Path

import pytest

from data.benchmarks.miniature import write_cub
from proxemic.data import CUB200, FashionMNIST
from proxemic.data.benchmarks import AbsentError, check_benchmark, list_benchmarks

COUNTS = {"train classes": 4, "train images": 16, "test classes": 4, "test images": 16}


def test_a_folder_is_listed_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CUB200, "facts", replace(CUB200.facts, counts=COUNTS))
    assert {status.state for status in list_benchmarks()} == {None}
    assert {status.state for status in list_benchmarks(tmp_path)} == {"-"}
    root = write_cub(tmp_path / "cub")
    states = {status.facts.key: status.state for status in list_benchmarks(tmp_path)}
    assert (states.pop("cub"), {*states.values()}) == ("whole", {"-"})
    report = check_benchmark(CUB200(root), decode=True)
    assert (report.expected, report.found, report.flaws, report.unreadable) == (COUNTS, COUNTS, (), {})
    assert report.problem is None
    assert "problem" not in report.as_dict()

    cut, *_, gone = sorted(root.rglob("*.jpg"))
    cut.write_bytes(cut.read_bytes()[:200])
    assert check_benchmark(CUB200(root)).problem is None, "no image was opened"
    report = check_benchmark(CUB200(root), decode=True)
    assert [Path(path).name for path in report.unreadable] == [cut.name]
    assert "1 images that cannot be read" in (report.problem or "")
    gone.unlink()
    report = check_benchmark(CUB200(root))
    assert report.found["test images"] == 15
    assert gone.name in (report.problem or "")
    assert next(status.state for status in list_benchmarks(tmp_path)) == "not whole: see datasets check"


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AbsentError, match="run proxemic datasets prepare fashion-mnist"):
        check_benchmark(FashionMNIST(tmp_path))
