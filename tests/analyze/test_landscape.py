"""``proxemic analyze landscape`` as a user runs it."""

from pathlib import Path

import pytest

from command_line import Here, assert_refused, cells, csv_rows
from proxemic.analysis.landscape import pushes_off_proxies
from proxemic.errors import UserError
from proxemic.losses import EuclideanSoftmaxLoss


def written(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def table(output: str) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in cells(output)}


def test_the_paper_s_figures(tmp_path: Path, here: Here) -> None:
    result = here("analyze", "landscape", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    found = table(result.stdout)
    assert found["f = t"][0] == "plateau from 0.0000"
    assert found["f = t²"] == ["runs away", "", "", ""]
    assert found["f = √t"][0] == "0.0000"
    assert len(found) == 8
    for name, (distance, alpha, difference, _) in found.items():
        if not name.startswith("f = "):
            assert (distance, alpha) == ("3.0000", "3")
            assert abs(float(difference)) < 1e-4
    names = [
        f"landscape-{name}.{kind}" for name in ("classes", "forces", "functions") for kind in ("csv", "png", "svg")
    ]
    assert written(tmp_path) == names
    functions = csv_rows(tmp_path / "landscape-functions.csv")
    assert len(functions) == 101**2
    (own,) = (row for row in functions if float(row["x"]) == float(row["y"]) == 0)
    assert float(own["f = t"]) == pytest.approx(0.01815, abs=1e-5)  # log(1 + e^-4)
    warp = "warp: α = 3, k1 = 0.65, k2 = 1.5"
    assert all(float(row[warp]) > 0.00638 for row in functions)  # log(1 + e^(1.95 - 7))
    forces = csv_rows(tmp_path / "landscape-forces.csv")
    pairs = zip(*([row for row in forces if row["force"] == kind] for kind in ("pull", "proxy_pull")), strict=True)
    assert all(float(one["force_x"]) == -float(other["force_x"]) for one, other in pairs)


@pytest.mark.parametrize(
    ("flags", "name", "expected"),
    [
        (["--alpha", "1.5", "--classes", "3", "--temperature", "2"], "warp", "1.5000"),
        (["--functions", "square-root", "--distance", "0.5"], "square-root", "0.0000"),
        (["--functions", "power-1.5"], "power-1.5", "runs away"),
    ],
)
def test_one_landscape(flags: list[str], name: str, expected: str, tmp_path: Path, here: Here) -> None:
    result = here("analyze", "landscape", *flags, "--out", tmp_path / "new" / "mine")
    assert result.returncode == 0, result.stderr
    ((_, (distance, *_)),) = table(result.stdout).items()
    assert distance == expected
    assert written(tmp_path / "new") == [f"mine-{name}.{kind}" for kind in ("csv", "png", "svg")]


def test_a_run(warp: list[Path], tmp_path: Path, here: Here) -> None:
    result = here("analyze", "landscape", warp[0], "--class", "1", "--out", tmp_path / "l")
    assert result.returncode == 0, result.stderr
    ((title, (distance, alpha, *_)),) = table(result.stdout).items()
    assert (title, alpha) == ("warp, class 1", "2.5")
    assert float(distance) <= 2.5
    assert "16 dimensions: drawn on the plane through the proxy of class 'class 0" in result.stdout
    assert len(csv_rows(tmp_path / "l-class-1.csv")) == 101**2
    assert_refused(here("analyze", "landscape", warp[0], "--class", "90"), ["class is 90", "classes 0 to"])
    assert_refused(here("analyze", "landscape", warp[0], "--k1", "0.5"), ["k1 is given with a run"])


@pytest.mark.parametrize("size", [2, 3])
def test_a_run_whose_images_are_gone(size: int, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    class Run:
        name, loss = "old", EuclideanSoftmaxLoss(4, size)

        def __init__(self, path: Path) -> None:
            pass

        @property
        def train(self) -> object:
            raise UserError("The images are gone: put them back.")

    monkeypatch.setattr("proxemic.studies.finished.FinishedRun", Run)
    result = here("analyze", "landscape", tmp_path, "--class", "3", "--out", tmp_path / "l")
    assert result.returncode == 0, result.stderr
    assert table(result.stdout)["old, class 3"][1] == ""  # no α
    pushes = pushes_off_proxies(Run.loss)
    said = f"with {pushes.min():.2f} to {pushes.max():.2f}, where 1 means that all push in the same direction. With a"
    assert said in " ".join(result.stdout.split())
    assert ("3 dimensions: drawn on the plane through the proxy of class 3 and" in result.stdout) == (size == 3)
    assert written(tmp_path) == [f"l-class-3.{kind}" for kind in ("csv", "png", "svg")]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--functions", "square", "--alpha", "2"], ["alpha is given with the functions square"]),
        (["--class", "0"], ["class 0 is given without a run"]),
        (["--out", "."], ["--out is the folder ."]),
        (["--functions", "power-200"], ["f1 and f2 overflow"]),
    ],
)
def test_bad_flags(flags: list[str], words: list[str], tmp_path: Path, here: Here) -> None:
    assert_refused(here("analyze", "landscape", *flags, cwd=tmp_path), words)
    assert written(tmp_path) == []


def test_another_loss(run: Path, here: Here) -> None:
    result = here("analyze", "landscape", run)
    assert_refused(result, ["trained with AllPairMultiProxyAnchorLoss", "EuclideanSoftmaxLoss or WarpedSoftmaxLoss"])
