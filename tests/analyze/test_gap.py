"""``proxemic analyze gap`` as a user runs it."""

from pathlib import Path

import pytest

from command_line import Here, assert_refused, cells, csv_rows
from comparisons import interval
from proxemic.analysis.gap import gap_bounds, softmax_form, squared_gaps
from proxemic.studies.finished import FinishedRun


def numbers(table: str, label: str) -> list[str]:
    ((_, *found),) = (row for row in cells(table) if row[0] == label)
    return found


def test_one_run(softmax: list[Path], tmp_path: Path, here: Here) -> None:
    result = here("analyze", "gap", softmax[0], "--out", tmp_path / "gap")
    assert result.returncode == 0, result.stderr
    opened = FinishedRun(softmax[0])
    trained, scale = softmax_form(opened.loss)
    untrained, _ = softmax_form(opened.untrained_loss())
    for label, values in {
        "mean squared gap at σ = 1": [float(squared_gaps(value).mean()) for value in (trained, untrained)],
        "L, printed (C⁻³)": [gap_bounds(value).lower_printed for value in (trained, untrained)],
        "U, of the proof (2/√e)": [gap_bounds(value).upper for value in (trained, untrained)],
    }.items():
        assert numbers(result.stdout, label) == [f"{value:.4g}" for value in values]
    assert numbers(result.stdout, "squared distance, class mean to minimiser")[1] == "–"
    rows = csv_rows(tmp_path / "gap.csv")
    assert [row["state"] for row in rows] == ["trained"] * len(trained) + ["untrained"] * len(trained)
    gaps = [float(row["gap_at_scale"]) for row in rows if row["state"] == "trained"]
    assert gaps == pytest.approx(squared_gaps(trained, scale=scale).tolist())
    assert {path.name for path in tmp_path.iterdir()} == {"gap.png", "gap.svg", "gap.csv"}


def test_seeds_are_a_group_and_two_groups_are_paired(
    softmax: list[Path], mean_proxy: list[Path], tmp_path: Path, here: Here
) -> None:
    runs = [*softmax, *mean_proxy]
    result = here("analyze", "gap", *runs, "--no-images", "--out", tmp_path / "gap")
    assert result.returncode == 0, result.stderr
    assert "class mean" not in result.stdout
    one, other, difference = result.stdout.split("\nsoftmax")
    norms = [gap_bounds(softmax_form(FinishedRun(run).loss)[0]).mean_proxy_norm for run in runs]
    mean, half = interval(*norms[:2])
    assert numbers(one, "norm of the mean proxy")[0] == f"{mean:.4g} ± {half:.2g}"
    assert other.startswith("-mean-proxy: mean and 95% interval over 2 seeds")
    mean = (norms[2] + norms[3] - norms[0] - norms[1]) / 2
    assert numbers(difference, "norm of the mean proxy")[0].startswith(f"{mean:.4g} ±")


def test_the_three_proxies_are_drawn_without_a_run(tmp_path: Path, here: Here) -> None:
    result = here("analyze", "gap", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "0.5244 radians, 0.5244 from its target proxy and 0.4244 from the second" in result.stdout
    rows = [(float(row["loss"]), float(row["angle"])) for row in csv_rows(tmp_path / "three-proxies.csv")]
    assert min(rows)[1] == pytest.approx(0.5244, abs=0.01)
    assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".svg", ".csv"}


def test_refused(run: Path, here: Here) -> None:
    fits = ["AllPairMultiProxyAnchorLoss", "NormalizedSoftmaxLoss", "ProxyNCAPlusPlusLoss"]
    assert_refused(here("analyze", "gap", run), [str(run), *fits])
    assert_refused(here("analyze", "gap", "--epsilon", "4"), ["epsilon is 4"])
