from pathlib import Path

import pytest

from comparisons import comparison, entry, finish
from images import write_folder, write_recipe
from proxemic.studies.comparison.directory import Comparison

A, B, C = [0.50, 0.52, 0.57], [0.60, 0.61, 0.68], [0.70, 0.40]
"""Recall@1 of three recipes by seed."""


@pytest.fixture
def three(tmp_path: Path) -> Comparison:
    """The third recipe has no third seed, and was chosen on the test classes."""
    entries = [entry("small/a"), entry("small/b", "BLoss"), entry("small/c", evaluation={"select_on": "test"})]
    made = comparison(tmp_path / "made", entries)
    for item, values in zip(entries, (A, B, C), strict=True):
        for seed, value in enumerate(values):
            finish(made.cell(item, seed), {"recall@1": value, "map@r": value / 2, "ndcg@8": value / 4})
    made.write()
    return made


@pytest.fixture(scope="session")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two, on one folder of images."""
    folder = tmp_path_factory.mktemp("compare")
    first = write_recipe(folder / "first.yaml", write_folder(folder / "images"))
    text = first.read_text()
    assert "AllPairMultiProxyAnchorLoss" in text
    (folder / "second.yaml").write_text(text.replace("AllPairMultiProxyAnchorLoss", "MultiProxyAnchorLoss"))
    return [str(first), str(folder / "second.yaml")]
