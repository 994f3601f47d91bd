"""``proxemic compare``: its words, and what it says to bad ones."""

from pathlib import Path

import pytest

from command_line import Here, assert_refused
from comparisons import comparison, entry, finish
from leftovers import killed_at


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A comparison of two runs of three."""
    begun = comparison(tmp_path / "made", [entry("glyphs-small/softmax", "NormalizedSoftmaxLoss")])
    for seed in (0, 1):
        finish(begun.cell(begun.entries[0], seed), {"recall@1": 0.9 + 0.02 * seed, "map@r": 0.5, "ndcg@8": 0.7})
    begun.write()
    return begun.path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ["A comparison needs recipes", "'glyphs-small/*'"]),
        (["glyphs-smal"], ["did you mean glyphs-small"]),
        (["glyphs-small", "--seeds", "a,b"], ["--seeds is 'a,b'", "as 5, or the seeds with commas, as 0,1,2"]),
        (["glyphs-small", "--workers", "0"], ["workers is 0, but must be at least 1"]),
        (["glyphs-small", "--resume", "there"], ["--resume takes recipes, seeds and flags", "--out there"]),
        (["--resume", "there"], ["there does not hold a comparison"]),
    ],
)
def test_what_is_refused(words: list[str], said: list[str], tmp_path: Path, here: Here) -> None:
    assert_refused(here("compare", *words, cwd=tmp_path), said)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_says_what_is_there_and_writes_nothing(made: Path, here: Here) -> None:
    before = sorted(made.rglob("*"))
    result = here("compare", "--resume", made, "--dry-run", "--against", "paper")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"Comparing {made}\nglyphs-small/softmax: finished 0 1, not begun 2\n")
    assert "These name no row of the papers' tables: `glyphs-small/softmax`." in result.stdout
    assert sorted(made.rglob("*")) == before


def test_a_dry_run_of_what_was_never_begun(tmp_path: Path, here: Here) -> None:
    result = here("compare", "glyphs-small/soft*", "--seeds", "3,", "--dry-run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "glyphs-small/softmax: not begun 3\n" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_failed_runs_are_told_at_the_end(made: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    from proxemic.errors import UserError
    from proxemic.studies.jobs import Workers

    def fail(workers, jobs, *, on_result, on_failure):
        for job in jobs:
            on_failure(job, UserError(f"The loss is nan. Then continue with proxemic train --resume {job.out}."))

    monkeypatch.setattr(Workers, "run", fail)
    killed_at(made / "runs" / "seed-0.failed")
    result = here("compare", "--resume", made, "--against", "paper", "--metrics", "map@r")
    said = ["1 of 3 runs failed, the first of them glyphs-small/softmax, seed 2: The loss is nan.", "--resume"]
    assert_refused(result, said)
    assert "| `glyphs-small/softmax` | NormalizedSoftmaxLoss | **50.00 ± 0.00** | 2 of 3, 1 failed |" in result.stdout
    assert "These name no row" in (made / "against-paper.md").read_text()
    assert (made / "points.png").exists()
    assert not list(made.rglob("*.tmp"))


def test_values_of_a_key_are_compared_without_a_recipe_of_ones_own(
    tiny: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxemic.studies.comparison.run.finish_comparison", lambda *_, **__: None)
    vary = ["--vary", "loss=ProxyAnchorLoss,ArcFaceLoss", "--seeds", "2"]
    result = here("compare", tiny, *vary, "--out", tmp_path / "made")
    assert "| `loss=ProxyAnchorLoss.yaml` | ProxyAnchorLoss |" in result.stdout
    assert "| `loss=ArcFaceLoss.yaml` | ArcFaceLoss |" in result.stdout
    assert_refused(here("compare", tiny, "glyphs", *vary, "--out", tmp_path / "two"), ["--vary takes one recipe"])
    assert_refused(here("compare", tiny, "--vary", "loss=NoLoss", "--out", tmp_path / "none"), ["--vary loss=NoLoss"])
    assert not (tmp_path / "none").exists()


def test_a_finished_comparison_is_printed_again(made: Path, here: Here) -> None:
    begun = comparison(made, [entry("glyphs-small/softmax", "NormalizedSoftmaxLoss")])
    finish(begun.cell(begun.entries[0], 2), {"recall@1": 0.94, "map@r": 0.5, "ndcg@8": 0.7})
    result = here("compare", "--resume", made)
    assert result.returncode == 0, result.stderr
    assert "**92.00 ± " in result.stdout
    assert result.stdout.endswith(f"Wrote {made}\nReport: {made}/report.html\n")
