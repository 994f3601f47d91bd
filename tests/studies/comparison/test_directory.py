"""The directory of a comparison: written, read, and the states of its cells."""

import pytest

from comparisons import finish
from proxemic.errors import UserError
from proxemic.studies.comparison.directory import Comparison
from proxemic.studies.comparison.tables import write_tables


def test_a_run_of_another_recipe_is_refused(three: Comparison) -> None:
    run = three.cell(three.entries[1], 1).path
    (run / "recipe.yaml").write_text((run / "recipe.yaml").read_text().replace("scale: 16", "scale: 17"))
    with pytest.raises(UserError, match="holds a run of another recipe or seed than small/b, seed 1"):
        write_tables(three)


def test_states(three: Comparison) -> None:
    cell = three.cell(three.entries[2], 2)
    assert cell.state == "not begun"
    cell.path.mkdir(parents=True)
    (cell.path / "recipe.yaml").write_text(cell.entry.with_seed(2))
    assert cell.state == "begun"
    cell.fail("Why.")
    assert (cell.state, cell.failure) == ("failed", "Why.")
    cell.forget_failure()
    assert (cell.state, cell.failure) == ("begun", None)
    finish(cell, {"map@r": 0.5})
    assert cell.state == "finished"
    assert three.cell(three.entries[0], 1).entry.with_seed(1).count("seed: 1\n") == 1
